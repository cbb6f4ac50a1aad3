"""Turn a request into a plan: requirements, the image, the administrator's own domain."""
