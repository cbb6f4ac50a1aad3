"""Measure what each virtualization tuning really does on one host."""

from labctl.base.interpreter import keep_out_plugins

__version__ = "0.1.0"

keep_out_plugins()
