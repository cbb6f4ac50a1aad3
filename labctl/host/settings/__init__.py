"""The host's settings: read, changed through the journal, undone."""
