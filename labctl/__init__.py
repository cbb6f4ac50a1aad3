"""Measure what each virtualization tuning really does on one host."""

import os

from labctl.base.interpreter import keep_out_plugins

__version__ = "0.1.0"

keep_out_plugins()

# libvirt reads this when a module loads it. Its messages also reach labctl as exceptions.
os.environ.setdefault("LIBVIRT_LOG_OUTPUTS", "4:file:/dev/null")
