"""The administrator's own domain: read, and rebuilt from what is known."""
