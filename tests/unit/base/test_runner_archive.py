"""The runner's archive: whole, always the same bytes, and sufficient by itself."""

from __future__ import annotations

import ast
import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import labctl.runner
from labctl.base.runner_messages import runner_archive

MODULES = {path.name for path in Path(labctl.runner.__file__).parent.glob("*.py")}
OLDEST = (3, 9)
"""Oldest Python in a machine."""


def texts() -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(runner_archive())) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def test_every_module_is_in_it() -> None:
    packed = {name.removeprefix("labctl/runner/") for name in texts()}
    assert packed == {"__main__.py", "labctl/__init__.py", *MODULES}


def test_the_same_runner_is_the_same_bytes_on_any_day_and_none_is_compressed() -> None:
    assert runner_archive() == runner_archive()
    with zipfile.ZipFile(io.BytesIO(runner_archive())) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}


def test_it_needs_nothing_but_itself_and_the_standard_library() -> None:
    names = {name for text in texts().values() for name in imported(text)}
    ours = {name for name in names if name.partition(".")[0] == "labctl"}
    assert {name.partition(".")[0] for name in names - ours} <= set(sys.stdlib_module_names)
    assert ours
    assert all(name.startswith("labctl.runner.") for name in ours)


def test_the_oldest_python_of_a_machine_reads_it() -> None:
    for name, text in texts().items():
        ast.parse(text, name, feature_version=OLDEST)
