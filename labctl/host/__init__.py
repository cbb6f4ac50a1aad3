"""The host: its facts, what is changed on it (and undone), the native machine."""
