"""Read the administrator's own domain, and rebuild it from known elements."""
