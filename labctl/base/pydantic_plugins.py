"""Keep pydantic from looking for plugins.

Before its first model it imports `importlib.metadata` and reads what every installed package
offers, which takes a seventh of the time of `labctl tuning list`; and it would let any of those
packages see and change what labctl validates. Its own switch, $PYDANTIC_DISABLE_PLUGINS, comes
after the import, and would be in the environment of the workloads as well.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

_LOADER: Final = "pydantic.plugin._loader"


class _NoPlugins(ModuleType):
    """Stand in for the module that finds plugins."""

    @staticmethod
    def get_plugins() -> tuple[Any, ...]:
        return ()


def keep_out() -> None:
    """Load no plugins of pydantic in this process. To be called before its first model."""
    sys.modules.setdefault(_LOADER, _NoPlugins(_LOADER))
