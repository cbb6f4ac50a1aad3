"""Pack the runner (`labctl/runner`) into the one file that goes to a machine."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import labctl

_LABCTL = Path(labctl.__file__).parent
_START = "from labctl.runner.main import main\n\nmain()\n"


def runner_archive() -> bytes:
    """Return an archive that Python runs (zipapp, "The Python Zip Application Archive Format").

    Its bytes depend on the modules' texts alone, so that equal runners have equal digests. Nothing
    in it is compressed: a guest's Python may lack zlib.
    """
    texts = {"__main__.py": _START, "labctl/__init__.py": ""}
    for module in sorted((_LABCTL / "runner").glob("*.py")):
        texts[f"labctl/runner/{module.name}"] = module.read_text(encoding="utf-8")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in texts.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return packed.getvalue()
