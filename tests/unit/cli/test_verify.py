"""`labctl advise --verify`: the same question once more, and an answer of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.answer.grade import evidence
from labctl.base.paths import MARKER
from labctl.cli import sweep as sweep_command
from labctl.run.planning.plan import plan_sweep
from labctl.run.planning.planned import SweepRequest
from labctl.store.jsonfile import canonical
from labctl.store.records.run_record import AdviceVerified
from labctl.store.run_folder import LoadedRun, RunFolder
from tests.unit.analysis.alter import with_plan, with_run
from tests.unit.synthetic import WORKLOADS, synthetic_run, write_run

from .conftest import Labctl

COMMAND = "labctl sweep pinning --seed 1 --quick --blocks 10 --workload sysbench-cpu"
ARMS = ("native", "native+fifo", "baseline", "control", "handicap", "pinned", "pinned+fifo")
_SAME = ("workloads", "conditions", "guest", "blocks", "limits")


def run_of(gain: float, plan: Mapping[str, Any], **options: Any) -> LoadedRun:
    """A run of that command in which pinned+fifo gains so much."""
    effects = {"native": 12.0, "native+fifo": 14.0, "handicap": 0.95, "pinned+fifo": gain}
    made = synthetic_run(
        tunings=ARMS,
        workloads={"sysbench-cpu": WORKLOADS["sysbench-cpu"]},
        effects=effects,
        noise=0.01,
        **{"boots": 5, **options},
    )
    asked = {key: plan[key] for key in _SAME}
    return with_run(with_plan(made, **asked), command=COMMAND)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


@pytest.fixture
def plan(results: Path) -> dict[str, Any]:
    """What the command plans on this host, whatever that is."""
    from labctl.base.paths import StatePaths
    from labctl.study.load_study import Overrides

    request = SweepRequest(
        study="pinning",
        places=StatePaths.default(),
        results=results,
        quick=True,
        overrides=Overrides(tunings=("pinned+fifo",), workloads=("sysbench-cpu",), blocks=10),
        seed=1,
    )
    return plan_sweep(request).plan.to_json()


@pytest.fixture
def swept(
    results: Path, plan: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> list[SweepRequest]:
    """Sweeps that were asked for; each finds a gain of 50 %, or what a test puts in its place."""
    asked: list[SweepRequest] = []

    def sweep(request: SweepRequest, *, quiet: bool) -> RunFolder:
        asked.append(request)
        return write_run(results / "fresh", run_of(1.5, plan, seed=2))

    monkeypatch.setattr(sweep_command, "swept", sweep)
    return asked


def test_the_advised_tuning_is_measured_anew_with_the_runs_own_options_and_another_seed(
    labctl: Labctl, results: Path, plan: Mapping[str, Any], swept: list[SweepRequest]
) -> None:
    write_run(results / "r1", run_of(1.6, plan))
    said = labctl("advise", "r1", "--verify", "--json")
    assert said.code == 0, said.err
    [request] = swept
    assert tuple(request.overrides.tunings or ()) == ("pinned+fifo",)
    assert request.overrides.workloads == ("sysbench-cpu",)
    assert (request.study, request.quick, request.overrides.blocks) == ("pinning", True, 10)
    assert request.seed not in (None, 1)
    found = json.loads(said.out)
    assert found["confirmed"] is True
    [pair] = found["pairs"]
    assert pair["advised"]["ratio"] == pytest.approx(1.6, rel=0.03)
    assert pair["fresh"]["ratio"] == pytest.approx(1.5, rel=0.03), "alone, never pooled"
    assert request.verifies == AdviceVerified(
        run="r1", tuning="pinned+fifo", evidence=evidence(RunFolder(results / "r1").load())
    )


def test_what_does_not_improve_again_is_not_confirmed_and_exits_with_1(
    labctl: Labctl,
    results: Path,
    plan: Mapping[str, Any],
    swept: list[SweepRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_run(results / "r1", run_of(1.6, plan))

    def nothing_gained(request: SweepRequest, *, quiet: bool) -> RunFolder:
        return write_run(results / "fresh", run_of(1.0, plan, seed=2))

    monkeypatch.setattr(sweep_command, "swept", nothing_gained)
    said = labctl("advise", "r1", "--verify")
    assert said.code == 1
    assert "Not confirmed: 'pinned+fifo' does not repeat its result in sysbench-cpu" in said.out


def test_a_host_that_changed_meanwhile_is_named(
    labctl: Labctl, results: Path, plan: Mapping[str, Any], swept: list[SweepRequest]
) -> None:
    write_run(results / "r1", with_run(run_of(1.6, plan), accelerator="kvm"))
    found = json.loads(labctl("advise", "r1", "--verify", "--json").out)
    assert {"name": "accelerator", "then": "kvm", "now": "tcg"} in found["moved"]


@pytest.mark.parametrize("key", _SAME)
def test_another_question_than_the_runs_is_refused(
    labctl: Labctl,
    results: Path,
    plan: Mapping[str, Any],
    swept: list[SweepRequest],
    key: str,
) -> None:
    other = {
        "workloads": {},
        "conditions": ["quiet"],
        "guest": {**plan["guest"], "memory_mib": 512},
        "blocks": 12,
        "limits": {**plan["limits"], "other_cpu": 3},
    }
    write_run(results / "r1", with_plan(run_of(1.6, plan, blocks=12), **{key: other[key]}))
    said = labctl("advise", "r1", "--verify")
    assert said.code == 2
    assert swept == [], "nothing was started"
    # Of a run whose workloads or conditions are gone nothing is advised to begin with.
    assert f"has changed: {key}" in said.err or "nothing to verify" in said.err


def test_limits_that_an_older_run_does_not_know_are_no_difference(
    labctl: Labctl, results: Path, plan: Mapping[str, Any], swept: list[SweepRequest]
) -> None:
    limits = {key: value for key, value in plan["limits"].items() if key != "boot_s"}
    write_run(results / "r1", with_plan(run_of(1.6, plan), limits=limits))
    assert labctl("advise", "r1", "--verify").code == 0


def test_without_advice_there_is_nothing_to_verify(
    labctl: Labctl, results: Path, plan: Mapping[str, Any], swept: list[SweepRequest]
) -> None:
    write_run(results / "r1", run_of(1.0, plan))
    said = labctl("advise", "r1", "--verify")
    assert said.code == 2
    assert "there is nothing to verify" in said.err
    assert swept == []


def test_the_runs_own_seed_is_no_new_sample(
    labctl: Labctl, results: Path, plan: Mapping[str, Any], swept: list[SweepRequest]
) -> None:
    write_run(results / "r1", run_of(1.6, plan))
    said = labctl("advise", "r1", "--verify", "--seed", "1")
    assert said.code == 2
    assert "seed 1 is the seed of run 'r1'" in said.err


@pytest.mark.parametrize("command", ["", "labctl sweep --resume r0", "labctl run rm r1"])
def test_a_run_that_does_not_say_which_study_made_it_cannot_be_verified(
    labctl: Labctl,
    results: Path,
    plan: Mapping[str, Any],
    swept: list[SweepRequest],
    command: str,
) -> None:
    write_run(results / "r1", with_run(run_of(1.6, plan), command=command))
    said = labctl("advise", "r1", "--verify")
    assert said.code == 2
    assert "does not name its study" in said.err
    assert swept == []


@pytest.fixture
def own_lab(tmp_path: Path) -> Path:
    (tmp_path / "lab").mkdir(mode=0o755)
    (tmp_path / "lab" / MARKER).touch()
    return tmp_path / "lab"


def test_a_run_of_a_lab_folder_that_was_named_is_verified_there(
    labctl: Labctl,
    results: Path,
    plan: Mapping[str, Any],
    swept: list[SweepRequest],
    own_lab: Path,
) -> None:
    recorded = COMMAND.replace("labctl ", f"labctl --lab {own_lab} ")
    write_run(results / "r1", with_run(run_of(1.6, plan), command=recorded))
    said = labctl("--lab", f"{own_lab}", "advise", "r1", "--verify", "--json")
    assert said.code == 0, said.err
    assert [request.study for request in swept] == ["pinning"]


def test_a_run_names_no_lab_folder_that_the_caller_did_not_name(
    labctl: Labctl,
    results: Path,
    plan: Mapping[str, Any],
    swept: list[SweepRequest],
    own_lab: Path,
) -> None:
    recorded = COMMAND.replace("labctl ", f"labctl --lab {own_lab} ")
    write_run(results / "r1", with_run(run_of(1.6, plan), command=recorded))
    said = labctl("advise", "r1", "--verify")
    assert said.code == 2
    assert f"made with the lab folder {own_lab}" in said.err
    assert f"labctl --lab {own_lab} advise r1 --verify" in said.err.replace("\n", " ")
    assert swept == []


def fresh_run(
    results: Path, plan: Mapping[str, Any], gain: float, boots: int = 5, **verifies: str
) -> None:
    first = RunFolder(results / "r1").load()
    asked = {"run": "r1", "tuning": "pinned+fifo", "evidence": evidence(first), **verifies}
    made = with_run(run_of(gain, plan, seed=2, boots=boots), verifies=AdviceVerified(**asked))
    folder = write_run(results / "again", made)
    written = json.loads((folder.path / "plan.json").read_text())
    content = {key: value for key, value in written.items() if key not in ("schema", "digest")}
    written["digest"] = sha256(canonical(content).encode()).hexdigest()
    (folder.path / "plan.json").write_text(json.dumps(written))


@pytest.mark.parametrize(("gain", "code"), [(1.5, 0), (1.0, 1)])
def test_a_fresh_run_that_is_there_is_judged_without_measuring(
    gain: float,
    code: int,
    labctl: Labctl,
    results: Path,
    plan: Mapping[str, Any],
    swept: list[SweepRequest],
) -> None:
    write_run(results / "r1", run_of(1.6, plan))
    fresh_run(results, plan, gain)
    said = labctl("advise", "r1", "--verify", "--fresh", "again", "--json")
    assert said.code == code, said.err
    assert json.loads(said.out)["confirmed"] is (code == 0)
    assert swept == []


def test_fewer_boots_than_a_report_asks_for_confirm_nothing(
    labctl: Labctl, results: Path, plan: Mapping[str, Any]
) -> None:
    write_run(results / "r1", run_of(1.6, plan))
    fresh_run(results, plan, 1.5, boots=2)
    said = labctl("advise", "r1", "--verify", "--fresh", "again")
    assert said.code == 1
    assert "was measured again with 2 boots; 5 are needed" in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("verifies", "why"),
    [
        ({"evidence": "0" * 64}, "it names a different state of run r1"),
        ({"tuning": "pinned"}, "it measured 'pinned'"),
    ],
)
def test_a_fresh_run_of_something_else_confirms_nothing(
    verifies: dict[str, str],
    why: str,
    labctl: Labctl,
    results: Path,
    plan: Mapping[str, Any],
) -> None:
    write_run(results / "r1", run_of(1.6, plan))
    fresh_run(results, plan, 1.5, **verifies)
    said = labctl("advise", "r1", "--verify", "--fresh", "again")
    assert said.code == 2
    assert why in said.err


def test_another_tuning_than_the_advised_one_is_measured_where_it_is_named(
    labctl: Labctl, results: Path, plan: Mapping[str, Any], swept: list[SweepRequest]
) -> None:
    write_run(results / "r1", run_of(1.6, plan))
    labctl("advise", "r1", "--verify", "--tuning", "pinned")
    assert swept[0].overrides.tunings == ("pinned",)
    said = labctl("advise", "r1", "--verify", "--tuning", "native")
    assert (said.code, "did not measure tuning 'native'" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--verify", "--apply"), "--verify and --apply exclude each other"),
        (("--check",), "--check goes with --apply"),
        (("--restore-after", "1h"), "--restore-after goes with --apply"),
        (("--fresh", "r2"), "--fresh goes with --verify"),
        (("--detach",), "--detach goes with --verify"),
        (("--tuning", "pinned"), "--tuning goes with --verify, --apply or --as"),
    ],
)
def test_options_that_do_nothing_alone_are_refused(
    words: tuple[str, ...], why: str, labctl: Labctl, results: Path, plan: Mapping[str, Any]
) -> None:
    write_run(results / "r1", run_of(1.6, plan))
    said = labctl("advise", "r1", *words)
    assert (said.code, why in said.err) == (2, True), said.err
