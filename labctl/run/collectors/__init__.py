"""Run what records around a trial's measured window."""
