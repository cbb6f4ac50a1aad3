"""Measure what each virtualization tuning really does on one host."""

from labctl.base.pydantic_plugins import keep_out

__version__ = "0.1.0"

keep_out()
