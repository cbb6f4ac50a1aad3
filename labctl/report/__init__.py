"""Show results to people and programs: terminal tables, HTML pages, JSON and other exports."""
