"""Define workloads: what runs on a machine, and how to read its output. One file per workload."""
