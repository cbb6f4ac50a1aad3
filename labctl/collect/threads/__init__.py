"""Account for the CPU time of the threads that a trial has, and of strangers."""
