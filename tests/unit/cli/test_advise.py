"""`labctl advise` as a command: what it advises, what it never does, what it writes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from labctl.base.hostfacts import FACTS
from labctl.rollout.card import HOST_FACTS, holds_while
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun, RunFolder
from tests.unit.analysis.alter import with_run
from tests.unit.records import plan_of
from tests.unit.synthetic import WORKLOADS, synthetic_run, write_run

from .conftest import Labctl

GOLDEN = Path(__file__).parents[2] / "golden" / "domain"
ARMS = ("native", "baseline", "control", "handicap", "pinned", "pinned+fifo", "cache-none", "idle")
SYSBENCH = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}
EFFECTS = {"native": 12.0, "handicap": 0.95, "pinned": 1.2, "pinned+fifo": 1.6, "cache-none": 1.0}
"""Two that improve, one that equals baseline; by default 'idle' makes things worse."""


def made(effects: dict[str, Any] | None = None, **options: Any) -> LoadedRun:
    options = {"tunings": ARMS, "workloads": SYSBENCH, "noise": 0.01, **options}
    run = synthetic_run(effects={**EFFECTS, "idle": 0.7, **(effects or {})}, **options)
    return with_run(run, vcpus=2)


def stored(results: Path, run: LoadedRun, name: str = "r1") -> RunFolder:
    """The run on disk, with the domain XML that labctl renders for tunings that it has."""
    folder = write_run(results / name, run)
    for tuning in run.run.to_json()["xml"]:
        golden = GOLDEN / f"{tuning}.kvm.xml"
        if golden.is_file():
            (folder.path / "xml" / f"{tuning}.xml").write_text(golden.read_text())
    return folder


def advised(labctl: Labctl, *words: str) -> Any:
    said = labctl("advise", "r1", "--json", *words)
    assert said.code == 0, said.err
    return json.loads(said.out)


def test_what_improves_is_advised_the_largest_effect_first(labctl: Labctl, results: Path) -> None:
    stored(results, made())
    found = advised(labctl)
    assert [item["tuning"] for item in found["advised"]] == ["pinned+fifo", "pinned"]
    first = found["advised"][0]["judged"][0]
    assert first["verdict"] == "improves"
    assert first["low"] < 1.6 < first["high"]
    assert found["headline"] == "Not shown that 'pinned+fifo' should be rolled out.", "one boot"
    assert {item["grade"] for item in found["advised"]} == {"not shown"}


def test_what_is_left_has_its_reason(labctl: Labctl, results: Path) -> None:
    stored(results, made())
    left = {item["tuning"]: item["why"] for item in advised(labctl)["left"]}
    assert left == {
        "idle": "it makes things worse",
        "cache-none": "equals baseline within the threshold",
    }


@pytest.mark.parametrize(
    ("verdicts", "run"),
    [
        ({"regresses"}, made({"pinned": 0.8, "pinned+fifo": 0.7, "cache-none": 0.6})),
        ({"equivalent", "regresses"}, made({"pinned": 1.0, "pinned+fifo": 1.0})),
        ({"real but small", "regresses"}, made(dict.fromkeys(EFFECTS, 1.02), noise=0.002)),
        ({"inconclusive", "suspended"}, made(noise=0.6, seed=3)),
        ({"suspended"}, made({"control": 1.2})),
        ({"demonstration, no verdict"}, made(blocks=9)),
    ],
    ids=["regresses", "equivalent", "small", "inconclusive", "suspended", "demonstration"],
)
def test_nothing_whose_verdict_is_not_improves_is_advised(
    labctl: Labctl, results: Path, verdicts: set[str], run: LoadedRun
) -> None:
    stored(results, run)
    found = advised(labctl)
    given = {judged["verdict"] for item in found["left"] for judged in item["judged"]}
    assert given & verdicts, given
    assert "improves" not in given
    assert found["advised"] == []
    assert found["card"] is None
    assert "virt-xml" not in labctl("advise", "r1").out


def test_a_gain_that_is_paid_elsewhere_is_a_trade_off_and_left(
    labctl: Labctl, results: Path
) -> None:
    effects = {"pinned": {"sysbench-cpu": 1.5, "fio-randread": 0.7}, "pinned+fifo": 1.0}
    stored(results, made(effects, workloads=WORKLOADS))
    found = advised(labctl)
    assert found["advised"] == []
    [pinned] = [item for item in found["left"] if item["tuning"] == "pinned"]
    assert pinned["why"] == "a trade-off: it also regresses a primary metric"


def test_a_gain_beside_a_loss_that_was_not_excluded_is_left_with_its_price(
    labctl: Labctl, results: Path, tmp_path: Path
) -> None:
    effects = {"pinned": {"sysbench-cpu": 2.0}, "pinned+fifo": 1.0, "idle": 1.0}
    noisy = made(effects, workloads=WORKLOADS, noise=0.1, boots=10, seed=4)
    stored(results, noisy)
    found = advised(labctl)
    assert found["advised"] == []
    [pinned] = [item for item in found["left"] if item["tuning"] == "pinned"]
    assert pinned["code"] == "trade-off-not-excluded"
    assert pinned["why"].startswith(
        "only if fio-randread with a noisy neighbour does not matter: this run could not "
        "exclude IOPS"
    )
    assert [one["workload"] for one in pinned["unshown"]] == ["fio-randread"]
    assert pinned["unshown"][0]["loss"] < 1 / 1.05
    assert "roll out" not in found["headline"].lower()
    said = labctl("advise", "r1", "--card", str(tmp_path / "card.md"))
    assert (said.code, "card: nothing is advised" in said.err) == (2, True)


def test_a_check_of_the_run_is_never_advised(labctl: Labctl, results: Path) -> None:
    stored(results, made({"handicap": 1.5, "native": 40.0}))
    found = advised(labctl)
    names = {item["tuning"] for part in ("advised", "left") for item in found[part]}
    assert not names & {"handicap", "control", "baseline", "native"}


def test_cost_names_cpus_the_neighbour_and_what_else_got_worse(
    labctl: Labctl, results: Path
) -> None:
    stored(results, made())
    cost = advised(labctl)["advised"][0]["cost"]
    assert cost["takes"][0].startswith("CPUs: vCPU 0 on CPU 1, vCPU 1 on CPU 5.")
    assert {entry["who"] for entry in cost["side_costs"]} >= {"neighbour", "host CPU"}
    assert cost["neighbour_loss"] == pytest.approx(1 - 1.6**-0.5, abs=0.03)


def test_emulated_guests_advise_with_a_caution_and_kvm_is_called_unverified(
    labctl: Labctl, results: Path
) -> None:
    stored(results, made())
    assert "emulated (TCG); only a run under KVM can confirm" in advised(labctl)["decision"]["sure"]
    stored(results, made(accelerator="kvm"), "r2")
    said = json.loads(labctl("advise", "r2", "--json").out)
    assert any("unverified on hardware" in warning for warning in said["warnings"])


def test_the_card_says_what_each_condition_was_in_the_words_of_its_file() -> None:
    half = {"description": "half of a CPU", "neighbours": [{"program": "cpu-hog"}]}
    plan = plan_of(
        {"conditions": ["quiet", "neighbour", "half", "other"], "neighbours": {"half": half}}
    )
    facts = {fact.name: fact.value for fact in holds_while(RunRecord(), plan)}
    assert facts["neighbours"] == (
        "quiet: nothing else to do on the host; neighbour: a CPU hog per CPU beside the guest; "
        "half: half of a CPU; other"
    )


def test_the_card_names_what_doctor_since_compares_and_by_the_same_words() -> None:
    compared = {fact.key: fact.name for fact in FACTS if fact.voids}
    assert set(HOST_FACTS) <= compared.keys()
    rows = [fact.name for fact in holds_while(RunRecord(), PlanRecord())]
    assert rows[: len(HOST_FACTS)] == [compared[key] for key in HOST_FACTS]


def test_files_are_whole_scripts_tasks_xml_and_card(
    labctl: Labctl, results: Path, tmp_path: Path
) -> None:
    stored(results, made())
    out = tmp_path / "rollout"
    said = labctl("advise", "r1", "--out", str(out), "--domain", "web 1")
    assert said.code == 0
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert files == {
        "card.md",
        *(f"{t}/{f}" for t in ("pinned", "pinned+fifo") for f in ("apply.sh", "domain.xml")),
        *("pinned/tasks.yaml", "pinned+fifo/tasks.yaml"),
    }
    assert set(re.findall(r"Wrote (.*)", said.out)) == {str(out / file) for file in files}
    assert "labctl doctor --since r1" in (out / "card.md").read_text()
    for path in out.rglob("apply.sh"):
        subprocess.run(["sh", "-n", str(path)], check=True)


def test_ansibles_tasks_give_virt_xml_the_scripts_words(
    labctl: Labctl, results: Path, tmp_path: Path
) -> None:
    stored(results, made())
    labctl("advise", "r1", "--out", str(tmp_path), "--domain", "web1")
    own = tmp_path / "pinned+fifo"
    [play] = yaml.safe_load((own / "tasks.yaml").read_text())
    assert play["vars"]["labctl_domain"] == "web1"
    argv = next(
        task["ansible.builtin.command"]["argv"]
        for task in play["block"]
        if task.get("ansible.builtin.command", {}).get("argv", [""])[0] == "virt-xml"
    )
    script = (own / "apply.sh").read_text()
    line = script[script.index("virt-xml") :].split("\n\n")[0].replace("\\\n", "")
    words = [word.replace("${domain}", "{{ labctl_domain }}") for word in shlex.split(line)]
    assert words == argv
    assert "./cputune/vcpupin[@vcpu='1']/@cpuset=5" in argv


def test_a_script_refuses_a_domain_with_other_vcpus_before_it_changes_anything(
    labctl: Labctl, results: Path, tmp_path: Path
) -> None:
    stored(results, made())
    labctl("advise", "r1", "--out", str(tmp_path / "out"), "--domain", "web1")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {"virsh": "echo 4", "virt-xml": f"touch {tmp_path}/changed"}.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    script = tmp_path / "out/pinned/apply.sh"
    path = f"{tools}:/usr/bin:/bin"
    done = subprocess.run(
        ["sh", str(script)], env={"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "web1 does not have the 2 vCPU(s) that this was made for\n"
    assert not (tmp_path / "changed").exists()


@pytest.mark.parametrize("name", ["", "-x", "a{b", "x;y'", 'x"y', "$(reboot)", "a\nb", "{{ x }}"])
def test_a_name_that_no_script_should_hold_is_refused(
    labctl: Labctl, results: Path, name: str
) -> None:
    stored(results, made())
    said = labctl("advise", "r1", f"--domain={name}")
    assert said.code == 2
    assert "is not a valid name for a domain" in said.err


def test_without_advice_there_is_no_card_and_no_folder(
    labctl: Labctl, results: Path, tmp_path: Path
) -> None:
    stored(results, made(blocks=9))
    for words in (("--out", str(tmp_path / "out")), ("--card", str(tmp_path / "card.md"))):
        said = labctl("advise", "r1", *words)
        assert said.code == 2
        assert "no rollout card: nothing is advised" in said.err
    assert not (tmp_path / "out").exists()
    assert labctl("advise", "r1").code == 0, "to hear that nothing is advised is no failure"


def test_a_run_of_an_old_labctl_says_what_it_has_not_recorded(
    labctl: Labctl, results: Path
) -> None:
    stored(results, with_run(made(), xml={}))
    [first, _] = advised(labctl)["advised"]
    assert first["cost"]["risks"] is None
    assert first["rollout"]["steps"] == []
    assert any("has no domain XML" in note for note in first["rollout"]["notes"])


@pytest.mark.parametrize(
    ("tuning", "baseline", "about", "parts"),
    [
        (
            *({"vcpu_slice_ms": 3.0}, {"vcpu_slice_ms": None}, "time slice"),
            ("slice of 3 ms", "'chrt --other --sched-runtime 3000000 --pid 0 TID'"),
        ),
        (
            *({"nice": -5}, {"nice": None}, "nice value"),
            ("'ls /proc/PID/task | xargs renice -n -5 -p'",),
        ),
        ({"pin": {"vhost": "1"}}, {}, "vhost", ("'taskset --cpu-list --pid 1 TID'",)),
        (
            *({"pin": {"partition": "isolated"}}, {}, "isolated partition"),
            (
                "write the CPUs of all its vCPUs to cpuset.cpus.exclusive of each folder from",
                "echo isolated >cpuset.cpus.partition; cat cpuset.cpus.partition'",
            ),
        ),
        (
            *({"cpu_weight": 25}, {"cpu_weight": None}, "CPU weight"),
            (
                "'virsh schedinfo DOMAIN --live --config --set cpu_shares=25' on a host with",
                "with cgroup v1 it is 256, the default being 1024",
            ),
        ),
    ],
)
def test_a_setting_without_an_option_of_libvirts_is_told_as_a_command(
    labctl: Labctl,
    results: Path,
    tuning: dict[str, Any],
    baseline: dict[str, Any],
    about: str,
    parts: tuple[str, ...],
) -> None:
    stored(results, with_run(made(), tunings={"pinned+fifo": tuning, "baseline": baseline}))
    [first, _] = advised(labctl)["advised"]
    (note,) = (one for one in first["rollout"]["notes"] if about in one)
    assert all(part in note for part in parts)
