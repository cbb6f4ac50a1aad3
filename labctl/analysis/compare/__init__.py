"""Compare two runs, or the runs of a host over time."""
