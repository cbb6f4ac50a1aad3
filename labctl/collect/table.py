"""Find every collector: each file of this package declares its own, and plug-ins add theirs."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

import labctl.collect
from labctl.base import plugins
from labctl.base.tuning import Level
from labctl.collect.collector import Collector, Source


def _declared() -> list[Source]:
    modules = walk_packages(labctl.collect.__path__, f"{labctl.collect.__name__}.")
    values = (value for module in modules for value in vars(import_module(module.name)).values())
    # One that several modules import counts once.
    found = dict.fromkeys(value for value in values if isinstance(value, Source))
    own = [source.name for source in found if isinstance(source, Collector)]
    added = plugins.rows(plugins.Group.COLLECTORS, Collector, own)
    return sorted([*found, *added.values()], key=lambda source: source.order)


SOURCES = tuple(_declared())
"""Sources in the order in which a trial is parsed."""

COLLECTORS = tuple(
    sorted(
        (source for source in SOURCES if isinstance(source, Collector)),
        key=lambda collector: list(Level).index(collector.level),
    )
)
"""Collectors by level. One that works here may still be refused in a trial, which then reports
it."""

RECORDERS = frozenset(name for collector in COLLECTORS for name in collector.recorders)
