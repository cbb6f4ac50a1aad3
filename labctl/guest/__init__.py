"""Manage guest images: recipes, building, verifying, and the seed of a first boot."""
