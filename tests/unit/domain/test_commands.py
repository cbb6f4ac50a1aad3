"""`labctl tuning` and `labctl pins` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl.base.errors import UsageError
from labctl.cli import pins, tuning
from labctl.host import topology as topology_module

from . import hosts


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_module, "read_topology", lambda: hosts.TWO_CPUS)
    monkeypatch.setattr(topology_module, "read_rt_runtime_us", lambda: 950_000)


def labctl(*arguments: str) -> Result:
    group = {"tuning": tuning.command, "pins": pins.command}[arguments[0]]
    return CliRunner().invoke(group, arguments[1:])


def test_the_list_names_each_tuning_with_its_kind_and_twin() -> None:
    listed = {item["name"]: item for item in json.loads(labctl("tuning", "list", "--json").output)}
    assert listed["pinned+fifo"]["twin"] == "native+fifo"
    assert listed["native"]["kind"] == "native"
    assert "pinned+fifo+iothreads" in labctl("tuning", "list").output


def test_the_list_as_markdown_is_the_reference() -> None:
    found = labctl("tuning", "list", "--markdown").output
    assert found == (Path(__file__).parents[3] / "docs" / "tunings.md").read_text()


def test_a_tuning_is_shown_with_what_it_extends() -> None:
    shown = labctl("tuning", "show", "pinned+rr").output
    for words in ("vcpu_sched: rr, priority 1", "pin.emulator: plan", "native+rr", "risks"):
        assert words in shown
    assert json.loads(labctl("tuning", "show", "pinned+rr", "--json").output)["vcpu_sched"] == {
        "policy": "rr",
        "priority": 1,
    }


def test_rendering_needs_no_image_and_says_which_is_which() -> None:
    output = labctl("tuning", "render", "baseline", "vcpupin", "--accel", "tcg").output
    assert output.count('<domain type="qemu">') == 2
    assert "<!-- vcpupin -->" in output
    assert '<vcpupin vcpu="0" cpuset="1"/>' in output


def test_rendering_a_native_tuning_is_wrong_usage() -> None:
    error = labctl("tuning", "render", "native").exception
    assert isinstance(error, UsageError)


def test_all_tunings_are_valid_on_a_host_with_two_cpus() -> None:
    result = labctl("tuning", "validate", "--all")
    assert result.exit_code == 0, result.output
    assert "pinned+fifo: valid" in result.output
    assert "for 50 ms in each second" in result.output


def test_a_tuning_that_this_host_cannot_take_is_found_with_status_1() -> None:
    result = labctl("tuning", "validate", "pinned+fifo", "--vcpus", "2")
    assert result.exit_code == 1
    assert "the emulator threads can run only on CPU 0" in result.output
    data = json.loads(labctl("tuning", "validate", "pinned+fifo", "--vcpus", "2", "--json").output)
    assert data[0]["valid"] is False


def test_a_workload_that_no_one_knows_makes_a_tuning_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "domains").mkdir()
    text = "extends: baseline\ndescription: Mine.\nexercised_by: [fio-randon]\n"
    (tmp_path / "domains/mine.yaml").write_text(text)
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    result = labctl("tuning", "validate", "mine")
    assert result.exit_code == 1
    assert "'exercised_by': no workload" in result.output
    assert "fio-randon" in labctl("tuning", "show", "mine").output


def test_an_invalid_template_is_found_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/domain.xml.j2").write_text("<domain type='qemu'><nmae/></domain>")
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    result = labctl("tuning", "validate", "baseline")
    assert result.exit_code == 1
    assert "baseline: NOT VALID" in result.output


@pytest.mark.parametrize("arguments", [[], ["--all", "pinned"]])
def test_validate_wants_names_or_all(arguments: list[str]) -> None:
    assert isinstance(labctl("tuning", "validate", *arguments).exception, UsageError)


def test_the_pin_plan_is_drawn_and_explained() -> None:
    output = labctl("pins").output
    assert "  core 1   [1: vCPU 0]" in output
    assert "No CPU is left for the emulator threads" in output
    assert "CPU 0 is shared by" in output


def test_the_pin_plan_as_json_has_picture_and_places() -> None:
    data = json.loads(labctl("pins", "--iothreads", "2", "--json").output)
    assert data["vcpus"] == {"0": 1}
    assert data["iothreads"] == {"1": "0", "2": "0"}
    assert data["picture"].startswith("package 0")


def test_a_plan_for_too_many_vcpus_is_wrong_usage() -> None:
    assert isinstance(labctl("pins", "--vcpus", "3").exception, UsageError)
