"""Run one trial after the other: warm-up, window, parsing, validity."""
