"""Find studies by name: labctl's own, and those of the lab folder."""

from __future__ import annotations

from pathlib import Path

from labctl.base.errors import UsageError
from labctl.base.nearest import nearest
from labctl.base.paths import data_files
from labctl.base.yamlfile import load_mapping


def study_names() -> list[str]:
    return list(data_files("benchmarks"))


def study_titles() -> list[tuple[str, str]]:
    """Return each study's name and title; the title is "" where its file has none. Whether the rest
    of a file is right shows when the study is loaded."""
    return [
        (name, str(load_mapping(path).get("title", "")))
        for name, path in data_files("benchmarks").items()
    ]


def study_path(name: str) -> Path:
    """Return the file of the study of that name, or the one at that path; raises UsageError."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    files = data_files("benchmarks")
    if name not in files:
        raise UsageError(f"no study '{name}'", hint=nearest(name, files))
    return files[name]
