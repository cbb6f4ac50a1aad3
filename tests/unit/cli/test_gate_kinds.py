"""The gate on runs made to pass, to fail and to be undecidable, by each kind of rule: by its exit
status, and in every form in which it answers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree

from labctl.analysis.gate.policy import LIMITS
from labctl.store.run_folder import LoadedRun
from tests.unit.cli.conftest import Labctl
from tests.unit.records import run_of
from tests.unit.synthetic import WORKLOADS, synthetic_run, write_run

ARMS = ("native", "native+pinned", "native+fifo", "baseline", "control", "pinned", "pinned+fifo")
EFFECTS = {"native": 1.02, "native+pinned": 1.3, "native+fifo": 2.7, "pinned": 0.8}
EFFECTS |= {"pinned+fifo": 2.7}
KEPT, BROKEN, OPEN = 0, 1, 2


def made(name: str, host: dict[str, str], **shape: object) -> LoadedRun:
    options: dict[str, object] = {
        "tunings": ARMS,
        "workloads": {"sysbench-cpu": WORKLOADS["sysbench-cpu"]},
        "effects": EFFECTS,
        "noise": 0.01,
        "block_noise": 0.02,
        **shape,
    }
    run = synthetic_run(**options)
    return replace(run, name=name, run=run_of({**run.run.to_json(), "host": host}))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run`: effects that ten blocks show; `short`: the same, of three blocks; `vague`: ten blocks
    and noise that hides them; `fleet`, `fleet-fast`: others to be like."""
    folder = tmp_path_factory.mktemp("results")
    host = {"kernel_release": "6.1", "cpu_model": "A"}
    for name, run in {
        "run": made("run", host),
        "short": made("short", {}, blocks=3),
        "vague": made("vague", {}, noise=0.5),
        "fleet": made("fleet", host, seed=2),
        "fleet-fast": made(
            "fleet-fast",
            {**host, "cpu_model": "B"},
            seed=3,
            effects={**EFFECTS, "baseline": 2.0, "control": 2.0},
        ),
    }.items():
        write_run(folder / name, run)
    return folder


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    monkeypatch.setenv("LABCTL_RESULTS", str(results))


VALUES = "metric: events_per_s, workload: sysbench-cpu"
KINDS = {
    "worse_by_at_most, baseline": (
        f"{VALUES}, tuning: pinned+fifo, against: baseline, worse_by_at_most: 5 %",
        f"{VALUES}, tuning: pinned, against: baseline, worse_by_at_most: 5 %",
    ),
    "worse_by_at_most, a latency": (
        "metric: latency_p95, tuning: pinned+fifo, against: baseline, worse_by_at_most: 5 %",
        "metric: latency_p95, tuning: pinned, against: baseline, worse_by_at_most: 5 %",
    ),
    "worse_by_at_most, an arm": (
        f"{VALUES}, tuning: pinned+fifo, against: pinned, worse_by_at_most: 5 %",
        f"{VALUES}, tuning: pinned, against: pinned+fifo, worse_by_at_most: 5 %",
    ),
    "worse_by_at_most, by difference": (
        "metric: 'host_cpu{thread=vcpu}', tuning: pinned, against: baseline, worse_by_at_most: 0.3",
        "metric: 'host_cpu{thread=vcpu}', tuning: pinned, against: baseline, "
        "better_by_at_least: 0.3",
    ),
    "better_by_at_least, baseline": (
        f"{VALUES}, tuning: pinned+fifo, against: baseline, better_by_at_least: 100 %",
        f"{VALUES}, tuning: pinned, against: baseline, better_by_at_least: 100 %",
    ),
    "within, twin": (
        f"{VALUES}, tuning: pinned+fifo, against: twin, within: 10 %",
        f"{VALUES}, tuning: pinned, against: twin, within: 10 %",
    ),
    "within, native": (
        f"{VALUES}, tuning: baseline, against: native, within: 10 %",
        f"{VALUES}, tuning: pinned, against: native, within: 10 %",
    ),
    "within, like": (
        f"{VALUES}, tuning: baseline, like: fleet, within: 10 %",
        f"{VALUES}, tuning: baseline, like: fleet-fast, within: 10 %",
    ),
    "worse_by_at_most, like": (
        f"{VALUES}, tuning: baseline, like: fleet, worse_by_at_most: 10 %",
        f"{VALUES}, tuning: baseline, like: fleet-fast, worse_by_at_most: 10 %",
    ),
    "below": (
        f"{VALUES}, tuning: baseline, below: 1000",
        f"{VALUES}, tuning: baseline, below: 100",
    ),
    "above": (
        f"{VALUES}, tuning: baseline, above: 100",
        f"{VALUES}, tuning: baseline, above: 1000",
    ),
    "facts": (
        "like: fleet, facts: [kernel_release, cpu_model]",
        "like: fleet-fast, facts: [kernel_release, cpu_model]",
    ),
}
"""A rule that `run` keeps and one that it breaks; `short` decides neither."""


def gate_of(labctl: Labctl, results: Path, run: str, rule: str, *words: str) -> tuple[int, str]:
    path = results / "policy.yaml"
    path.write_text(f"undecided: open\nrules:\n  - {{{rule}}}\n")
    said = labctl("gate", run, "--policy", str(path), *words)
    return said.code, said.out + said.err


def test_each_limit_of_a_policy_has_a_rule_here() -> None:
    assert {kind.partition(",")[0] for kind in KINDS} >= {*LIMITS, "facts"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_of_each_kind_is_kept(labctl: Labctl, results: Path, kind: str) -> None:
    assert gate_of(labctl, results, "run", KINDS[kind][0])[0] == KEPT


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_of_each_kind_is_broken(labctl: Labctl, results: Path, kind: str) -> None:
    assert gate_of(labctl, results, "run", KINDS[kind][1])[0] == BROKEN


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_of_each_kind_is_left_open(
    labctl: Labctl, results: Path, kind: str, which: int
) -> None:
    code, said = gate_of(labctl, results, "short", KINDS[kind][which])
    assert code == OPEN
    assert "undecided" in said


def test_ten_blocks_of_noise_decide_nothing(labctl: Labctl, results: Path) -> None:
    rule = KINDS["worse_by_at_most, baseline"][1].replace("5 %", "15 %")
    code, said = gate_of(labctl, results, "vague", rule, "--json")
    assert code == OPEN
    assert json.loads(said)["checks"][0]["why"] == "the interval includes both"


ALL_OUTCOMES = """
undecided: %s
rules:
  - {name: kept, tuning: pinned+fifo, metric: events_per_s, against: native, within: 900 %%}
  - {name: broken, tuning: pinned, metric: events_per_s, against: baseline, within: 1 %%}
  - {name: open, tuning: pinned, metric: exits, below: 1}
  - {name: a slip, tuning: pined, metric: events_per_s, above: 1}
  - {name: facts, like: fleet-fast, facts: [all]}
"""


@pytest.mark.parametrize(
    ("undecided", "failures", "skipped"), [("open", 2, 2), ("fail", 4, 0), ("pass", 2, 1)]
)
def test_junit_keeps_the_schema_and_its_own_counts(
    labctl: Labctl, results: Path, undecided: str, failures: int, skipped: int
) -> None:
    policy, file = results / "all.yaml", results / "junit.xml"
    policy.write_text(ALL_OUTCOMES % undecided)
    assert labctl("gate", "run", "--policy", str(policy), "--junit", str(file)).code == BROKEN
    document = etree.parse(file)
    etree.XMLSchema(etree.parse(Path(__file__).with_name("junit.xsd"))).assertValid(document)
    suite = document.getroot()
    counted = Counter(child.tag for case in suite for child in case)
    told = {name: suite.get(name) for name in ("tests", "failures", "skipped")}
    assert told == {"tests": "5", "failures": str(failures), "skipped": str(skipped)}
    assert (counted["failure"], counted["skipped"]) == (failures, skipped)


def test_every_form_gives_the_same_answer(labctl: Labctl, results: Path) -> None:
    policy = results / "all.yaml"
    policy.write_text(ALL_OUTCOMES % "open")
    words = ("gate", "run", "--policy", str(policy))
    checks = json.loads(labctl(*words, "--json").out)["checks"]
    outcomes = ["holds", "violated", "undecided", "undecided", "violated"]
    assert [check["outcome"] for check in checks] == outcomes
    assert [check["kind"] for check in checks] == ["ratio", "ratio", "value", "value", "facts"]
    rows = labctl(*words, "--markdown").out.splitlines()[6:]
    assert [row.split(" | ")[3].split(",")[0].split(":")[0].strip(" |") for row in rows] == outcomes
    table = labctl(*words).out
    assert "Failed: 5 checks, 1 holds, 2 violated, 2 undecided." in table
    assert "CPU is A, there B" in " ".join(table.split())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a | b", r"a \| b"),
        ("<img src=x>", r"\<img src=x\>"),
        ("`rm` *x* _y_ [z](q)", r"\`rm\` \*x\* \_y\_ \[z\](q)"),
        ("&lt;b&gt; ~~s~~ #12 !9 $x$", r"\&lt;b\&gt; \~\~s\~\~ \#12 \!9 \$x\$"),
        ("ask @everyone", "ask @\N{WORD JOINER}everyone"),
        ("see https://x.example", "see https:\N{WORD JOINER}//x.example"),
        ("two\\nlines\\t\\e[31m", "two lines \ufffd\\[31m"),
    ],
)
def test_no_name_is_taken_for_markdown(
    labctl: Labctl, results: Path, name: str, shown: str
) -> None:
    _, said = gate_of(
        labctl, results, "run", f'name: "{name}", metric: none, above: 1', "--markdown"
    )
    (row,) = [line for line in said.splitlines() if "no value" in line]
    assert row.startswith(f"| {shown} | no value in the run |")


def test_a_runs_name_stands_in_markdown_as_it_is(labctl: Labctl, results: Path) -> None:
    _, said = gate_of(labctl, results, "run", KINDS["above"][0], "--markdown")
    assert said.splitlines()[0] == "**Passed: 1 check, 1 holds.** Run run."


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"", "has no mapping"),
        (b"undecided: [", "not valid YAML"),
        (b"undecided: open\nrules: {}", "'rules'"),
        (None, "is a directory"),
    ],
)
def test_a_policy_that_cannot_be_read_is_no_answer(
    labctl: Labctl, tmp_path: Path, content: bytes | None, says: str
) -> None:
    path = tmp_path / "policy.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    said = labctl("gate", "run", "--policy", str(path))
    assert said.code == OPEN
    assert says in said.err
    assert said.out == ""


def test_where_junits_file_cannot_be_is_told_before_the_gate(
    labctl: Labctl, results: Path, tmp_path: Path
) -> None:
    words = ("--junit", str(tmp_path / "none" / "junit.xml"))
    code, said = gate_of(labctl, results, "run", KINDS["above"][0], *words)
    assert code == OPEN
    assert "there is no folder" in said


def test_what_was_imported_is_gated_as_well(labctl: Labctl, results: Path, tmp_path: Path) -> None:
    (tmp_path / "samples.csv").write_text(labctl("report", "run", "--csv").out)
    imported = labctl(
        *("run", "import", str(tmp_path / "samples.csv"), "--name", "theirs"),
        *("--primary", "events_per_s"),
    )
    assert imported.code == 0, imported.err
    kept, broken = KINDS["worse_by_at_most, baseline"]
    assert gate_of(labctl, results, "theirs", kept)[0] == KEPT
    assert gate_of(labctl, results, "theirs", broken)[0] == BROKEN
    code, said = gate_of(labctl, results, "theirs", KINDS["within, like"][0])
    assert code == OPEN
    assert "was imported" in " ".join(said.split())
