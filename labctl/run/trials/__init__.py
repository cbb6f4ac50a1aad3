"""One trial after the other: warm-up, window, parsing, validity."""
