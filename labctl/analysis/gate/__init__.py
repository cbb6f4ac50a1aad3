"""Decide whether a run keeps a policy's rules."""
