"""Provide guests and machines with a tuning in force, ready for trials."""
