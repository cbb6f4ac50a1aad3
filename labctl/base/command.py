"""Describe a command for a machine (native or guest), and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Describe an argv that means the same on both sides. `files`: what it writes that is brought
    back, names relative to the working directory, which is empty and the command's own."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Hold what one command did on its machine.

    `duration_s` is CLOCK_MONOTONIC of that machine from before the fork to after the wait.
    `counts` holds what that machine's kernel counted meanwhile, as the runner read it before and
    after: see `labctl/base/runner_program.py`.
    """

    returncode: int
    stdout: bytes
    stderr: bytes
    files: Mapping[str, bytes]
    duration_s: float
    counts: Mapping[str, Any]
