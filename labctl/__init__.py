"""Measure what each virtualization tuning really does on one host."""

__version__ = "0.1.0"
