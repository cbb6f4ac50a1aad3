"""Hold the JSON files of a run folder as typed records."""
