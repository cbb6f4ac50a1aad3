"""Read metrics from a program's output, as a declaration says: a file for each kind of reader."""
