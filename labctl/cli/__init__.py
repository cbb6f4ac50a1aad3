"""The commands: each file parses, calls, prints, and nothing else."""
