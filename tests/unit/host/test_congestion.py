"""Which congestion controls a kernel has: listed, as a module, or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.host.tracers import has_congestion_control


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic\n",
        "proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
        "lib/modules/6.1.0-18-amd64/kernel/net/ipv4/tcp_bbr.ko.xz": "",
        "lib/modules/5.10.0/kernel/net/ipv4/tcp_vegas.ko": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "has"),
    [("cubic", True), ("bbr", True), ("vegas", False), ("bb", False)],
)
def test_a_control_is_listed_or_a_module_of_this_kernel(root: Path, name: str, has: bool) -> None:
    assert has_congestion_control(name, root) is has


def test_where_modules_lie_elsewhere_it_is_unknown(root: Path) -> None:
    """As in a container, whose kernel's modules are the host's."""
    (root / "proc/sys/kernel/osrelease").write_text("6.12.0\n")
    assert has_congestion_control("cubic", root) is True
    assert has_congestion_control("bbr", root) is None


def test_where_nothing_tells_it_is_unknown(tmp_path: Path) -> None:
    assert has_congestion_control("bbr", tmp_path) is None
