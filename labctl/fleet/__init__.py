"""Measure many hosts, keep what they measured, and read it back."""
