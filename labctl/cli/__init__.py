"""Provide the commands: each file parses, calls, prints, and does nothing else."""
