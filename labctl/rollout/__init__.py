"""Define what to roll out and how: steps, files, rollout card."""
