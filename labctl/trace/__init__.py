"""Read kernel traces from perf's files, reduce them to figures, combine them on one time line.
Pure."""
