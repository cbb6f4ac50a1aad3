"""What the JSON files of a run folder hold, as typed records."""
