"""Provide what every other package stands on: errors, subprocesses, CPU sets, units, deadlines,
events."""
