"""Reads perf.data."""
