"""The recorded run that tests read as a folder, unpacked once per process.

It is never recorded anew (docs/upgrading.md): `results/example` is, and no test but those of its
own page may know its numbers.
"""

from __future__ import annotations

import atexit
from pathlib import Path
from tempfile import TemporaryDirectory

from labctl.store.archive import RunArchive

ARCHIVE = Path(__file__).parent / "fixtures/versions/0.1.0-whole.tar.xz"

_made = TemporaryDirectory(prefix="labctl-tests-")
atexit.register(_made.cleanup)

EXAMPLE = Path(_made.name, "example")
EXAMPLE.mkdir()
RunArchive(ARCHIVE).unpack(EXAMPLE)
