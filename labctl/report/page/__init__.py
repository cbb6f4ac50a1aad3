"""Write the report and the history as self-contained pages."""
