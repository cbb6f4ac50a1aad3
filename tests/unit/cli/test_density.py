"""`labctl density` as a user calls it, short of guests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import ExitCode
from labctl.base.events import Listener
from labctl.host import guest_memory
from labctl.run.commands import density as module
from labctl.run.planning.density import DensityRequest
from labctl.store.density_record import DensityFolder
from tests.unit.cli.conftest import Labctl
from tests.unit.density_records import record
from tests.unit.domain import hosts
from tests.unit.run.asked import plan_on

NAME = "20261124T100000Z-density-frame-loop"
WORDS = ("density", "frame-loop", "--tuning", "baseline", "--tuning", "vcpupin")
LIMIT = ("--limit", "frame_p95 < 16 ms")


@pytest.fixture(autouse=True)
def results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    plan_on(monkeypatch, hosts.TWO_CPUS)
    monkeypatch.setattr(guest_memory, "memory_available", lambda root: 10 << 30)
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))
    # Not below the test's own folder: sockets lie there, whose paths are short.
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path_factory.mktemp("s")))
    return tmp_path / "results"


@pytest.fixture
def folder(results: Path) -> DensityFolder:
    found = DensityFolder.create(results / NAME)
    found.write(record({"baseline": [2], "vcpupin": ["3+"]}))
    return found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("density",), "missing argument WORKLOAD"),
        (("density", "frame-loop", *LIMIT), "--tuning is missing"),
        (WORDS, "--limit is missing"),
        ((*WORDS, "--limit", "latency_p95 < 16 ms"), "has no metric 'latency_p95'"),
        ((*WORDS, "--tuning", "baseline", *LIMIT), "names a tuning twice"),
        ((*WORDS, *LIMIT, "--duration", "0.5"), "cannot run for 0.5 s"),
        ((*WORDS, *LIMIT, "--set", "hz=0"), "expected a whole number from 1"),
        (("density", "frame-lop", *LIMIT), "frame-loop"),
        (("density", "frame-loop", "--show", "latest"), "--show reads an earlier run"),
        (("density", "--show", "latest"), "no density run 'latest'"),
    ],
)
def test_wrong_usage_is_refused_before_anything(
    labctl: Labctl, words: tuple[str, ...], said: str, results: Path
) -> None:
    found = labctl(*words)
    assert found.code == ExitCode.USAGE
    assert said in found.err
    assert not results.exists()


def test_the_plan_says_guests_memory_and_time(labctl: Labctl, results: Path) -> None:
    found = labctl(*WORDS, *LIMIT, "--plan-only", "--most", "3", "--blocks", "2")
    assert found.code == 0
    assert "baseline, vcpupin: guests of 1 vCPU and 1024 MiB" in found.out
    assert "at most 3 guests (--most): 3264 MiB with their QEMUs" in found.out
    assert "2 blocks, 4 counts" in found.out
    assert "guest 2, where its tuning pins vCPUs: CPU compact 0" in found.out
    assert not results.exists()


def test_the_plan_is_json_too(labctl: Labctl) -> None:
    words = (*WORDS, *LIMIT, "--plan-only", "--seed", "1", "--blocks", "2", "--json")
    found = json.loads(labctl(*words).out)
    assert (found["most"], found["most_by"], found["limit"]) == (
        9,
        "the host's memory",
        "frame_p95 < 16.0 ms",
    )
    assert sorted(order[0] for order in found["orders"]) == ["baseline", "vcpupin"]


def test_memory_that_is_not_there_is_refused_with_both_numbers(labctl: Labctl) -> None:
    found = labctl(*WORDS, *LIMIT, "--plan-only", "--most", "10")
    assert found.code == ExitCode.HOST
    assert "10880 MiB needed" in found.err
    assert "has 10240 MiB" in found.err


def test_the_request_is_what_was_asked_for(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch, folder: DensityFolder
) -> None:
    asked: dict[str, Any] = {}

    def fake(
        request: DensityRequest, words: tuple[str, ...], listener: Listener, why_ended: object
    ) -> DensityFolder:
        asked.update(request=request, words=words)
        return folder

    monkeypatch.setattr(module, "density", fake)
    options = ("--blocks", "6", "--most", "5", "--search", "bisect", "--set", "work_us=5000")
    found = labctl(*WORDS, *LIMIT, *options, "--memory", "512", "--seed", "3", "--quiet")
    assert found.code == 0
    assert "Number of guests that run frame-loop at once" in found.out
    request = asked["request"]
    assert (request.blocks, request.most, str(request.search), request.vcpus) == (6, 5, "bisect", 1)
    assert (request.memory_mib, request.seed, list(request.tunings)) == (
        512,
        3,
        ["baseline", "vcpupin"],
    )
    assert request.workload.workload.parameters["work_us"] == 5000
    assert request.workload.workload.duration_s == 10
    said = list(asked["words"])
    assert said[:3] == ["labctl", "density", "frame-loop"]
    assert said[said.index("--set") + 1] == "work_us=5000"


def test_a_run_is_shown_again(labctl: Labctl, folder: DensityFolder, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = labctl("density", "--show", "latest", "--html", str(page))
    assert "at least 3" in found.out
    assert "at least 3 guests." in page.read_text()
    told = json.loads(labctl("density", "--show", NAME, "--json").out)
    assert (told["schema"], told["run"]) == (1, NAME)


def test_runs_are_listed_with_the_command_that_reads_them(
    labctl: Labctl, folder: DensityFolder
) -> None:
    assert f"density run: labctl density --show {NAME}" in labctl("run", "list").out
    assert json.loads(labctl("run", "list", "--json").out)["density_runs"] == [NAME]


@pytest.mark.parametrize(
    "words", [("report",), ("run", "show"), ("run", "export"), ("run", "verify"), ("advise",)]
)
def test_other_commands_refuse_it_and_name_that_command(
    labctl: Labctl, folder: DensityFolder, words: tuple[str, ...]
) -> None:
    found = labctl(*words, NAME)
    assert found.code == ExitCode.USAGE
    assert "is a density run" in found.err
    assert f"labctl density --show {folder.path}" in found.err


def test_it_is_removed_as_a_run_is(labctl: Labctl, folder: DensityFolder) -> None:
    assert labctl("run", "rm", NAME, "--yes").code == 0
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("platform", "settings"),
    [
        ("kubevirt", {"cpuAllocationRatio": "1", "resources.requests.cpu": "1333m"}),
        ("openstack", {"cpu_allocation_ratio": "1.5"}),
        ("proxmox", {"cpuunits": "100", "cpulimit": "1.33"}),
    ],
)
def test_the_number_of_guests_is_said_as_a_platforms_overcommit(
    labctl: Labctl, results: Path, platform: str, settings: dict[str, str]
) -> None:
    """Three guests of two vCPUs on four CPUs."""
    folder = DensityFolder.create(results / NAME)
    folder.write(record({"baseline": [3] * 5}, vcpus=2, host={"cpus_online": "0-3"}))
    shown = labctl("density", "--show", NAME, "--as", platform, "--json")
    assert json.loads(shown.out)["overcommit"] == {"baseline": settings}
    text = labctl("density", "--show", NAME, "--as", platform).out
    assert "baseline: 3 guests: " in text
    assert "memory is not overcommitted" in " ".join(text.split())


@pytest.mark.parametrize(("guests", "cpus"), [(3, 4), (7, 3), (10, 12), (20, 64), (1, 2), (31, 8)])
@pytest.mark.parametrize("platform", ["kubevirt", "openstack"])
def test_as_many_guests_fit_as_were_measured(
    labctl: Labctl, results: Path, platform: str, guests: int, cpus: int
) -> None:
    folder = DensityFolder.create(results / NAME)
    folder.write(record({"baseline": [guests] * 5}, vcpus=1, host={"cpus_online": f"0-{cpus - 1}"}))
    shown = labctl("density", "--show", NAME, "--as", platform, "--json")
    settings = json.loads(shown.out)["overcommit"]["baseline"]
    if platform == "openstack":  # Placement has int(total * ratio) of them
        assert int(cpus * float(settings["cpu_allocation_ratio"])) == guests
    else:
        assert 1000 * cpus // int(settings["resources.requests.cpu"].removesuffix("m")) == guests


def test_no_overcommit_follows_without_the_hosts_cpus(labctl: Labctl, results: Path) -> None:
    DensityFolder.create(results / NAME).write(record({"baseline": [3] * 5}))
    found = labctl("density", "--show", NAME, "--as", "openstack")
    assert (found.code, "the run did not record the host's CPUs" in found.err) == (2, True)
