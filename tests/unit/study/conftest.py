from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.tuning import Kind, Tuning
from labctl.study.load_study import Overrides, load_study
from labctl.study.study import Study

from .small import NAMES, PROGRAMS, STUDY


@pytest.fixture
def write_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes the study as benchmarks/small.yaml of a lab folder, with `old` replaced by `new`."""
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    for module in ("load_study", "studyfile"):
        monkeypatch.setattr(f"labctl.study.{module}.tuning_names", lambda: list(NAMES))
    images = tmp_path / "guest-images"
    images.mkdir()
    for name in ("debian-12", "debian-13"):
        (images / f"{name}.yaml").write_text("")

    def write(old: str = "", new: str = "") -> Path:
        path = tmp_path / "benchmarks" / "small.yaml"
        path.parent.mkdir(exist_ok=True)
        assert old in STUDY
        path.write_text(STUDY.replace(old, new, 1) if old else STUDY)
        return path

    return write


@pytest.fixture
def make_study(write_study: Callable[..., Path]) -> Callable[..., Study]:
    def make(
        old: str = "", new: str = "", *, quick: bool = False, overrides: Overrides | None = None
    ) -> Study:
        write_study(old, new)
        return load_study("small", programs=PROGRAMS, quick=quick, overrides=overrides)

    return make


@pytest.fixture
def tunings() -> dict[str, Tuning]:
    def tuning(name: str, kind: Kind = Kind.GUEST, **fields: Any) -> Tuning:
        return Tuning(name=name, description=f"The {name} arm.", kind=kind, **fields)

    made = [
        tuning("native", Kind.NATIVE),
        tuning("native+pinned", Kind.NATIVE),
        tuning("baseline", twin="native"),
        tuning("control", twin="native"),
        tuning("handicap", twin="native", handicap_percent=5.0),
        tuning("pinned", twin="native+pinned"),
        tuning("mine", restore=False),
    ]
    return {item.name: item for item in made}
