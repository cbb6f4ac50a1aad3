"""Add man pages and completion scripts to the wheel when hatchling builds it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NEEDED = ("click", "numpy", "pydantic")
"""Libraries without which the commands can't be loaded: an isolated build has none."""

_COMPLETIONS = {
    "bash": "bash-completion/completions/labctl",
    "zsh": "zsh/site-functions/_labctl",
    "fish": "fish/vendor_completions.d/labctl.fish",
}
"""Shell to the place below share/ in which it looks for scripts."""


class SharedFiles(BuildHookInterface[Any]):
    """Write the files before the wheel is packed, and remove them afterwards."""

    _made: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if missing := [name for name in _NEEDED if find_spec(name) is None]:
            self.app.display_warning(
                "The wheel gets no man pages and completion scripts: "
                f"{', '.join(missing)} not installed. "
                "Build it in the project's environment, with --no-isolation."
            )
            return
        self._made = Path(mkdtemp(prefix="labctl-share-"))
        self._python("tools.man_pages", str(self._made / "man" / "man1"))
        for shell, place in _COMPLETIONS.items():
            (self._made / place).parent.mkdir(parents=True)
            (self._made / place).write_bytes(self._python("labctl.cli.main", "completion", shell))
        build_data["shared_data"][str(self._made)] = "share"

    def _python(self, module: str, *words: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": self.root},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._made is not None:
            rmtree(self._made)
