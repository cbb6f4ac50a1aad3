"""Workloads: what runs on a machine, and how to read what it printed. One file per workload."""
