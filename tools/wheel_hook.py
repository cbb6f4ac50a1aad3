"""Add man pages to the wheel when hatchling builds it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NEEDED = ("click", "numpy", "pydantic")
"""Libraries without which the commands can't be loaded: an isolated build has none."""


class ManPages(BuildHookInterface[Any]):
    """Write the pages before the wheel is packed, and remove them afterwards."""

    _made: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if missing := [name for name in _NEEDED if find_spec(name) is None]:
            self.app.display_warning(
                f"The wheel gets no man pages: {', '.join(missing)} not installed. "
                "Build it in the project's environment, with --no-isolation."
            )
            return
        self._made = mkdtemp(prefix="labctl-man-")
        subprocess.run(
            [sys.executable, "-m", "tools.man_pages", self._made],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": self.root},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        for page in sorted(Path(self._made).iterdir()):
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._made is not None:
            for page in Path(self._made).iterdir():
                page.unlink()
            Path(self._made).rmdir()
