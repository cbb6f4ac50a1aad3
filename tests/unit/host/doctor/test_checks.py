"""All checks together: what holds for each of them."""

from __future__ import annotations
