"""Files of somebody else, whoever runs the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

STRANGER = 4242


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `path` a stranger's: by its owner for root, else by who the caller is."""
    if os.geteuid() == 0:
        os.lchown(path, STRANGER, STRANGER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
