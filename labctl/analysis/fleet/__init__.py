"""Judge a fleet: pool what hosts' runs add, and say which hosts and groups differ."""
