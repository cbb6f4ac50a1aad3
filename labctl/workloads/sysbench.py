"""Provide what workloads made of sysbench have in common."""

BINARY = "/usr/bin/sysbench"
STDOUT = "stdout.txt"

EACH_WINDOW = "--report-interval=1"
"""The shortest interval of which sysbench 1.0 prints the rate: it takes whole seconds
(readers/sysbench.py)."""
