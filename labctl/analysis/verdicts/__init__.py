"""Decide verdicts: rules, checks of the run, families of tests, and looks."""
