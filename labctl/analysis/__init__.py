"""Compute effects, intervals, verdicts and checks from loaded runs. Pure."""
