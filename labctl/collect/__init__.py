"""Collectors: what host and guest counted during a trial, parsed from its raw files only."""
