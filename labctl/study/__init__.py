"""Load, validate and freeze tunings and studies, and make plans with pure functions."""
