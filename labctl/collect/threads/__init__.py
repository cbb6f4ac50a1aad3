"""Account for the CPU time of a trial's threads, and of foreign threads."""
