"""Run trials one after the other: warm-up, window, parsing, validity."""
