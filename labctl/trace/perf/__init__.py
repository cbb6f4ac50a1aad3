"""Read perf.data."""
