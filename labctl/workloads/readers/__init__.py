"""Read metrics from what a program left, as a declaration says: a file for each kind of reader."""
