"""From a request to a plan: requirements, the image, the administrator's own domain."""
