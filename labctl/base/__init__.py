"""Provide the foundations of every other package: errors, subprocesses, CPU sets, units, deadlines,
events."""
