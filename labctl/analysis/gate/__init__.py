"""Whether a run keeps a policy's rules."""
