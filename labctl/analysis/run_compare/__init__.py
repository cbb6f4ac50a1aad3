"""Compare runs with each other: two of them, or a host's history."""
