"""Hardware counters of a trial, where the host has a PMU (METHOD rule 12)."""
