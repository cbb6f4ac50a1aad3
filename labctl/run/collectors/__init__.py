"""What records around a trial's measured window."""
