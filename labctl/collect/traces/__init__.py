"""Record the schedulers of host and guest, and say how threads waited for a CPU."""
