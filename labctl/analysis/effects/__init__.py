"""Reduce trials to values per block, and compare arms: effects with their intervals."""
