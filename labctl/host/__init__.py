"""Manage the host: its facts, its settings (changed and undone), the native machine."""
