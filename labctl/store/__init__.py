"""Run folders: what lies where, in which schema version."""
