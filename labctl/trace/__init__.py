"""Kernel traces: read from perf's files, reduced to figures, put on one time line. Pure."""
