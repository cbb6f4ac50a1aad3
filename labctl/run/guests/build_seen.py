"""Read back which build a guest runs: its QEMU binary, and the release of its kernel."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

from labctl.base.channel import Channel
from labctl.base.process import Deadline
from labctl.base.tuning import Tuning
from labctl.run.guests.lab import Lab

RAW = "build.json"

_RELEASE = "/proc/sys/kernel/osrelease"
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class BuildSeen:
    """Hold what a guest of a tuning with its own build runs, and how it differs from the plan."""

    problems: tuple[str, ...] = ()
    seen: dict[str, str] = field(default_factory=dict)

    @property
    def evidence(self) -> dict[str, object]:
        return {RAW: self.seen} if self.seen else {}

    @classmethod
    def of_emulator(cls, lab: Lab, tuning: Tuning, pid: int) -> Self:
        """Return the QEMU binary of a guest's process, compared with the planned one."""
        if tuning.emulator is None:
            return cls()
        exe = Path(f"/proc/{pid}/exe")
        path, digest = os.readlink(exe), _digest(exe)
        planned = lab.builds[tuning.emulator].sha256
        problems: tuple[str, ...] = ()
        if digest != planned:
            problems = (
                f"QEMU: expected {tuning.emulator} (SHA-256 {planned[:_SHOWN]}), got {path} "
                f"(SHA-256 {digest[:_SHOWN]})",
            )
        return cls(problems, {"emulator": path, "emulator_sha256": digest})

    def with_kernel(self, lab: Lab, tuning: Tuning, channel: Channel) -> BuildSeen:
        """Return the same with the release of the guest's kernel."""
        if tuning.kernel is None:
            return self
        texts = channel.read([_RELEASE], Deadline.after(30, "the guest's kernel release"))
        release = (texts[_RELEASE] or "").strip()
        planned = lab.builds[tuning.kernel].version
        problems = self.problems
        if release != planned:
            problems = (*problems, f"guest's kernel: expected {planned}, got {release}")
        return replace(self, problems=problems, seen={**self.seen, "kernel_release": release})


def _digest(exe: Path) -> str:
    status = exe.stat()
    return _digest_of(exe, (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=16)
def _digest_of(exe: Path, _stamp: tuple[int, ...]) -> str:
    with open(exe, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
