"""What firmware takes: looked for on request only, and told honestly where it can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.host.doctor.check import Status
from labctl.host.doctor.reader import Output

from .conftest import FakeHost

FIXTURES = Path(__file__).parent / "fixtures"
TRACERS = "/sys/kernel/tracing/available_tracers"


def _with_tool(host: FakeHost, monkeypatch: pytest.MonkeyPatch, output: Output | None) -> None:
    host.write(TRACERS, "hwlat function nop\n")
    host.write("/usr/sbin/hwlatdetect", "", mode=0o755)
    monkeypatch.setenv("PATH", "/usr/sbin")
    if output:
        host.commands["unshare"] = output


def test_a_kernel_without_the_tracer_is_told_by_its_option(host: FakeHost) -> None:
    host.write(TRACERS, "function nop\n")
    found = host.find("hwlat", hwlat_s=10)
    assert found.status is Status.UNKNOWN
    assert "CONFIG_HWLAT_TRACER" in found.found
    assert host.asked == []


@pytest.mark.parametrize(("line", "has"), [("CONFIG_HWLAT_TRACER=y", True), ("", False)])
def test_without_tracefs_the_kernel_s_configuration_tells(
    host: FakeHost, line: str, has: bool
) -> None:
    host.write("/proc/sys/kernel/osrelease", "6.1.0-rt\n")
    host.write("/boot/config-6.1.0-rt", f"{line}\n")
    assert ("not measured" in host.find("hwlat").found) is has


def test_it_runs_on_request_only(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_tool(host, monkeypatch, Output(0, "Max Latency: Below threshold\n"))
    assert host.find("hwlat").remedy == "labctl doctor --hwlat 60"
    assert host.asked == []
    assert host.find("hwlat", hwlat_s=60).status is Status.OK
    assert len(host.asked) == 1


def test_the_longest_stop_is_a_warning(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = (FIXTURES / "hwlatdetect-2.4-stops.txt").read_text()
    _with_tool(host, monkeypatch, Output(1, recorded))
    found = host.find("hwlat", hwlat_s=5)
    assert found.status is Status.WARN
    assert "24527 us" in found.found
    assert found.value == {"seconds": 5, "longest_us": 24527, "smis": None}


def test_nothing_above_the_threshold_is_fine(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = (FIXTURES / "hwlatdetect-2.4-none.txt").read_text()
    _with_tool(host, monkeypatch, Output(0, recorded + "SMIs during run: 3\n"))
    found = host.find("hwlat", hwlat_s=5)
    assert found.status is Status.OK
    assert found.value == {"seconds": 5, "longest_us": 0, "smis": 3}


def test_a_cpu_that_does_not_count_smis_had_no_known_number_of_them(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What rdmsr and hwlatdetect say on AMD's.
    said = "SMIs during run: 0\nrdmsr: CPU 0 cannot read MSR 0x00000034\n"
    _with_tool(host, monkeypatch, Output(0, f"Max Latency: Below threshold\n{said}"))
    found = host.find("hwlat", hwlat_s=5)
    assert found.value == {"seconds": 5, "longest_us": 0, "smis": None}
    assert "SMI" not in found.found


@pytest.mark.parametrize(
    "output", [None, Output(1, ""), Output(9, "somebody traces here (function)\n")]
)
def test_no_answer_is_unknown_and_never_fine(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, output: Output | None
) -> None:
    _with_tool(host, monkeypatch, output)
    found = host.find("hwlat", hwlat_s=5)
    assert found.status is Status.UNKNOWN
    if output and output.text:
        assert "somebody traces here" in found.found


def test_without_rt_tests_it_says_what_to_install(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write(TRACERS, "hwlat nop\n")
    monkeypatch.setenv("PATH", "/usr/sbin")
    assert host.find("hwlat", hwlat_s=5).remedy == "apt-get install rt-tests"
