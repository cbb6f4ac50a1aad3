"""Reading back which QEMU and kernel a guest runs."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labctl.base.tuning import Kind, Tuning
from labctl.run.guests.build_seen import RAW, BuildSeen
from labctl.store.records.plan_record import BuildFile

OURS = str(Path(f"/proc/{os.getpid()}/exe").resolve())


def tuning(**keys: Any) -> Tuning:
    return Tuning(name="B", description="", kind=Kind.GUEST, restore=False, **keys)


def lab(**builds: BuildFile) -> Any:
    return SimpleNamespace(builds={name.replace("_", "/"): one for name, one in builds.items()})


class Release:
    """A guest that runs this kernel."""

    def __init__(self, release: str) -> None:
        self.release = release

    def read(self, paths: list[str], deadline: object) -> dict[str, str]:
        return dict.fromkeys(paths, f"{self.release}\n")


def test_the_binary_of_the_process_is_compared_by_its_content() -> None:
    digest = hashlib.sha256(Path(sys.executable).resolve().read_bytes()).hexdigest()
    same = lab(_qemu=BuildFile(sha256=digest))
    seen = BuildSeen.of_emulator(same, tuning(emulator="/qemu"), os.getpid())
    assert seen.problems == ()
    assert seen.evidence == {RAW: {"emulator": OURS, "emulator_sha256": digest}}
    other = lab(_qemu=BuildFile(sha256="0" * 64))
    (problem,) = BuildSeen.of_emulator(other, tuning(emulator="/qemu"), os.getpid()).problems
    assert problem.startswith("QEMU: expected /qemu (SHA-256 000000000000), got ")


def test_the_release_of_the_guest_is_compared() -> None:
    planned = lab(_vmlinuz=BuildFile(sha256="", version="6.18.1"))
    asked: Any = tuning(kernel="/vmlinuz")
    guest: Any = Release("6.18.1")
    seen = BuildSeen().with_kernel(planned, asked, guest)
    assert (seen.problems, seen.seen) == ((), {"kernel_release": "6.18.1"})
    guest = Release("6.12.0")
    (problem,) = BuildSeen().with_kernel(planned, asked, guest).problems
    assert problem == "guest's kernel: expected 6.18.1, got 6.12.0"


def test_a_tuning_without_its_own_build_has_no_evidence() -> None:
    guest: Any = Release("6.1")
    seen = BuildSeen.of_emulator(lab(), tuning(), os.getpid()).with_kernel(lab(), tuning(), guest)
    assert (seen.problems, seen.evidence) == ((), {})
