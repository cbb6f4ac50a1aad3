"""`labctl tuning diff` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from labctl.base.errors import UsageError
from labctl.cli import tuning
from labctl.host import topology as topology_module
from tests.unit.domain import hosts

DIRECT = hosts.FIXTURES / "virt-install-4.1.0-own-direct.xml"
PINS = {
    "cputune/vcpupin[@vcpu='0']/@cpuset": (None, "1"),
    "cputune/emulatorpin/@cpuset": (None, "0"),
}
FIFO = {
    "cputune/vcpusched[@vcpus='0']/@scheduler": (None, "fifo"),
    "cputune/vcpusched[@vcpus='0']/@priority": (None, "1"),
}


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_module, "read_topology", lambda: hosts.TWO_CPUS)


def diff(*arguments: str | Path) -> Result:
    return CliRunner().invoke(tuning.command, ["diff", *map(str, arguments)])


def as_json(*arguments: str | Path) -> dict[str, Any]:
    result = diff(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    found: dict[str, Any] = json.loads(result.output)
    return found


def changed(*arguments: str | Path) -> dict[str, tuple[str | None, str | None]]:
    found = as_json(*arguments)["changes"]
    return {change["path"]: (change["before"], change["after"]) for change in found}


def refusal(*arguments: str | Path) -> str:
    error = diff(*arguments).exception
    assert isinstance(error, UsageError)
    assert error.hint
    return f"{error.message}\n{error.hint}"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("baseline", "pinned"), PINS),
        (("baseline", "pinned+fifo"), {**PINS, **FIFO}),
        (("pinned", "pinned+fifo"), FIFO),
        (("pinned+fifo", "pinned"), {path: (now, was) for path, (was, now) in FIFO.items()}),
        (("baseline", "control"), {}),
        (
            ("baseline", "cache-none"),
            {"devices/disk[target/@dev='vdb']/driver/@cache": (None, "none")},
        ),
        (("baseline", "memory-locked"), {"memoryBacking/locked": (None, "")}),
        (("baseline", "no-balloon"), {"devices/memballoon/@model": ("virtio", "none")}),
    ],
)
def test_two_tunings_differ_in_what_they_are_about(
    names: tuple[str, str], expected: dict[str, tuple[str | None, str | None]]
) -> None:
    assert changed(*names, "--accel=tcg") == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("pinned",), PINS),
        (("pinned", "pinned+fifo"), FIFO),
        (
            ("cache-none",),
            {
                "devices/disk[target/@dev='vda']/driver/@cache": (None, "none"),
                "devices/disk[target/@dev='sda']/driver/@cache": (None, "none"),
            },
        ),
        (("no-balloon",), {"devices/memballoon/@model": ("virtio", "none")}),
        (("cpu-host-passthrough",), {}),
        (
            ("guest-idle-poll",),
            {
                "os/cmdline": (
                    "root=/dev/vda1 console=ttyS0",
                    "root=/dev/vda1 console=ttyS0 idle=poll",
                )
            },
        ),
    ],
)
def test_a_tuning_changes_in_a_domain_exactly_what_it_is_about(
    names: tuple[str, ...], expected: dict[str, tuple[str | None, str | None]]
) -> None:
    assert changed(*names, f"--domain={DIRECT}") == expected


def test_the_table_says_both_sides() -> None:
    output = diff("baseline", "pinned+fifo").output
    heading, *rows = output.splitlines()
    assert heading.split() == ["what", "baseline", "pinned+fifo"]
    assert ["cputune/vcpupin[@vcpu='0']/@cpuset", "-", "1"] in [row.split() for row in rows]
    assert "locked  -         there" in diff("baseline", "memory-locked").output


def test_the_unified_diff_is_the_xmls_and_nothing_else() -> None:
    output = diff("pinned", f"--domain={DIRECT}", "--unified").output
    assert output.startswith("--- direct1\n+++ direct1 with pinned\n@@")
    assert '+    <vcpupin vcpu="0" cpuset="1"/>' in output.splitlines()
    assert diff("baseline", "control", "--unified").output == ""


def test_what_is_not_in_the_xml_is_told() -> None:
    output = diff("baseline", "guest-elevator-none", "--accel=tcg").output
    assert "The XML of baseline and guest-elevator-none is the same under tcg." in output
    assert "guest-elevator-none, outside the XML: guest.elevator: none" in output
    found = as_json("guest-elevator-none", f"--domain={DIRECT}")
    assert found["after"]["outside_xml"] == ["guest.elevator: none"]


def test_why_a_domain_can_not_be_measured_with_a_tuning_is_told() -> None:
    found = as_json("cpu-host-passthrough", f"--domain={DIRECT}")
    assert found["after"]["misfits"] == [
        "'direct1' has all of it already, or nothing that it would change"
    ]
    assert "can't be measured" in diff("disk-scsi", f"--domain={DIRECT}").output


def test_the_domains_file_is_only_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.xml"
    path.write_bytes(DIRECT.read_bytes())
    assert diff("pinned+fifo", f"--domain={path}").exit_code == 0
    assert path.read_bytes() == DIRECT.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


def test_wrong_usage_is_told() -> None:
    assert "1 tuning named; two are needed" in refusal("pinned")
    assert "3 tunings named" in refusal("a", "b", "c")
    assert "--memory-mib is for labctl's own guests" in refusal(
        "pinned", f"--domain={DIRECT}", "--memory-mib=512"
    )
    assert "no tuning 'pined'" in refusal("baseline", "pined")
    assert "native" in refusal("baseline", "native")
    assert "has no domain 'web'" in refusal("pinned", "--domain=web")
    assert "cannot read gone.xml" in refusal("pinned", "--domain=gone.xml")


def test_a_domain_with_more_vcpus_than_cpus_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.xml"
    path.write_text(DIRECT.read_text().replace("<vcpu>1", "<vcpu>16"))
    assert "'direct1' has 16 vCPUs" in refusal("pinned", f"--domain={path}")
