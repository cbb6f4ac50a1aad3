"""Parse what host and guest counted during a trial, from its raw files alone."""
