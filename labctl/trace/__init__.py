"""Read kernel traces from perf's files, reduce them to figures, put them on one time line. Pure."""
