"""Read the host's settings, change them through the journal, undo them."""
