"""Run the collectors around a trial's measured window."""
