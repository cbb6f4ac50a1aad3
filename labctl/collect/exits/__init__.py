"""Count VM exits, all together and by reason."""
