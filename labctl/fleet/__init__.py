"""Measure many hosts, store their results, and read them back."""
