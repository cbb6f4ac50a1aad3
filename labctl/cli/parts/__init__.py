"""Provide what several commands share, and parts of long commands."""
