"""Count what the trial's CPUs and its instructions did."""
