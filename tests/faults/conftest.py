"""Guests and their sandboxes are those of tests/guest."""

from __future__ import annotations

import os

import pytest

from tests.guest.conftest import built, image, kept, sandbox, swept

__all__ = ["built", "image", "kept", "sandbox", "swept"]

NEEDS_GUESTS = pytest.mark.skipif(os.geteuid() != 0, reason="guests and mounts need root")
