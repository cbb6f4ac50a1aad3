"""Run a plan: boot, run trials in plan order, invalidate, retry, resume, clean up."""
