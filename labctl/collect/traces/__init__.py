"""Record the schedulers of host and guest, and report how threads waited for a CPU."""
