"""Which tracers a kernel has: by tracefs, by how it was built, or unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labctl.host import tracers
from labctl.host.tracers import has_tracer, is_built_with, read_config


def _root(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_tracefs_tells_where_it_is_mounted(tmp_path: Path) -> None:
    root = _root(tmp_path, sys__kernel__tracing__available_tracers="timerlat osnoise nop\n")
    assert has_tracer("timerlat", root)
    assert has_tracer("hwlat", root) is False


@pytest.mark.parametrize(("line", "has"), [("=y", True), ("=m", False), (" is not set", False)])
def test_without_tracefs_the_configuration_tells(tmp_path: Path, line: str, has: bool) -> None:
    root = _root(tmp_path, proc__sys__kernel__osrelease="6.1.0-rt\n")
    (root / "boot").mkdir()
    (root / "boot/config-6.1.0-rt").write_text(f"CONFIG_TIMERLAT_TRACER{line}\n")
    assert has_tracer("timerlat", root) is has


def test_a_kernel_of_which_nothing_tells_is_unknown(tmp_path: Path) -> None:
    assert has_tracer("timerlat", _root(tmp_path, proc__sys__kernel__osrelease="6.1.0\n")) is None
    assert has_tracer("timerlat", tmp_path / "nothing") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which takes root")
def test_this_hosts_tracefs_and_its_configuration_say_the_same() -> None:
    config = read_config(os.uname().release)
    privately = {name: tracers._has_privately(name) for name in tracers.OPTIONS}
    if config is None or None in privately.values():
        pytest.skip("this host tells in one way at most")
    assert privately == {name: is_built_with(config, name) for name in tracers.OPTIONS}
