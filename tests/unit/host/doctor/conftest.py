"""A host made of files below a folder and of what its commands print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labctl.base.tuning import Kind, Tuning
from labctl.host.accelerator import Accelerator
from labctl.host.doctor import CHECKS
from labctl.host.doctor.activity import Activity
from labctl.host.doctor.check import Finding, Scope
from labctl.host.doctor.reader import Output, Reader

QUIET = Activity(
    seconds=0.5, busy={0: 0.01, 1: 0.0}, steal={}, steal_since_boot=0.0, processes=(), machines=()
)
KVM = Accelerator(name="kvm", reason="Guests run under KVM: a kernel boots with it here.")


@dataclass
class FakeHost:
    root: Path
    commands: dict[str, Output] = field(default_factory=dict)
    """What a command prints, by its first word; one that isn't here is not installed."""
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def write(self, path: str, text: str = "", mode: int | None = None) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        if mode is not None:
            target.chmod(mode)

    def write_all(self, texts: Mapping[str, str]) -> None:
        for path, text in texts.items():
            self.write(path, text)

    def run(self, argv: Sequence[str], *, seconds: float = 10.0) -> Output | None:
        self.asked.append(tuple(argv))
        return self.commands.get(argv[0])

    @property
    def reader(self) -> Reader:
        return Reader(root=self.root, run=self.run)

    def find(self, name: str, **scope: Any) -> Finding:
        """What one check finds; `scope`: what differs from an idle host with KVM."""
        values: dict[str, Any] = {
            "accelerator": KVM,
            "activity": QUIET,
            "state_folder": Path("/var/lib/labctl"),
            "lock": Path("/run/labctl.lock"),
            "journal": Path("/var/lib/labctl/journal.jsonl"),
            "cpus": frozenset({1}),
            **scope,
        }
        [check] = [check for check in CHECKS if check.name == name]
        return check.finding(self.reader, Scope(**values))


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path / "root")


def tuning(name: str = "t", **fields: Any) -> Tuning:
    return Tuning(name=name, description="d", kind=Kind.GUEST, **fields)
