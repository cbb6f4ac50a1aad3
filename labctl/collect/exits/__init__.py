"""Count VM exits, in total and by reason."""
