"""Reports as text in a terminal."""
