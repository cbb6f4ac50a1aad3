"""`labctl run import` as a user meets it: what was exported is judged as it was, and trials from
elsewhere are judged, compared and held against rules without a word that isn't theirs."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from labctl.analysis.judge import judge
from labctl.analysis.model import Comparison, Contrast, Judgement
from labctl.analysis.verdicts.table import Verdict
from labctl.report.export.samples import samples_csv
from labctl.store.run_folder import LoadedRun
from labctl.store.run_places import find_run
from labctl.store.samples import Sample
from tests.unit.cli.conftest import Labctl
from tests.unit.example import EXAMPLE
from tests.unit.factor_runs import factorial_run
from tests.unit.records import plan_of
from tests.unit.synthetic import synthetic_run, write_run

REAL_S = {
    ("other", "cpu"): 0.166,
    ("fifo", "cpu"): 0.328,
    ("rr", "cpu"): 0.318,
    ("other", "io"): 0.572,
    ("fifo", "io"): 0.334,
    ("rr", "io"): 0.272,
}
"""Means of a published scheduler experiment; the trials below are drawn around them."""


@pytest.fixture(autouse=True)
def _results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))


Experiment = Callable[..., str]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """A file of raw trials: policies by kinds of process, each measured `trials` times."""

    def written(name: str, trials: int = 5, slower: float = 1.0, seed: int = 1) -> str:
        rng = random.Random(seed)
        path = tmp_path / f"{name}.csv"
        lines = ["tuning,workload,condition,block,metric,value,unit,better"]
        for trial in range(1, trials + 1):
            for (policy, kind), seconds in REAL_S.items():
                value = seconds * slower * rng.lognormvariate(0, 0.03)
                here = f"{policy},{kind},10 processes,{trial}"
                lines.append(f"{here},real,{value:.4f},s,lower")
                lines.append(f"{here},ctx_switches,{rng.randrange(90)},count,neither")
        path.write_text("\n".join(lines))
        return str(path)

    return written


def loaded(tmp_path: Path, name: str) -> LoadedRun:
    return find_run(tmp_path / "results", name).load()


def without_sources(judgement: Judgement) -> list[dict[str, Any]]:
    """Its comparisons; where a number was read from is all that an export leaves out."""
    fields = [name for name in Comparison.__slots__ if name != "source"]
    return [{name: getattr(item, name) for name in fields} for item in judgement.comparisons]


def test_an_export_comes_back_with_the_same_judgement(labctl: Labctl, tmp_path: Path) -> None:
    run = synthetic_run(repeated=[("pinned", "sysbench-cpu", 1)], boots=2)
    write_run(tmp_path / "results" / "measured", run)
    exported = labctl("report", "measured", "--csv").out
    (tmp_path / "samples.csv").write_text(exported)
    result = labctl(
        *("run", "import", str(tmp_path / "samples.csv"), "--name", "again", "--design", "measured")
    )
    assert result.code == 0, result.err
    again = loaded(tmp_path, "again")
    assert again.problems == ()
    ours, theirs = judge(again), judge(loaded(tmp_path, "measured"))
    assert without_sources(ours) == without_sources(theirs)
    assert [item.typical for item in ours.levels] == [item.typical for item in theirs.levels]
    assert (ours.control, ours.known_loss) == (theirs.control, theirs.known_loss)
    assert (ours.blocks, ours.boots, ours.done) == (theirs.blocks, theirs.boots, theirs.done)


def test_a_real_run_comes_back_as_well(labctl: Labctl, tmp_path: Path) -> None:
    """The recorded run in the repository, with its invalid trials and what is unavailable."""
    shutil.copytree(EXAMPLE, tmp_path / "results" / "example")
    measured = loaded(tmp_path, "example")
    (tmp_path / "samples.csv").write_text("".join(samples_csv(measured)))
    words = ("--name", "again", "--design", "example")
    assert labctl("run", "import", str(tmp_path / "samples.csv"), *words).code == 0
    ours, theirs = judge(loaded(tmp_path, "again")), judge(measured)
    assert without_sources(ours) == without_sources(theirs)
    assert (ours.control, ours.known_loss) == (theirs.control, theirs.known_loss)
    assert (ours.boots, ours.done, ours.invalid) == (theirs.boots, theirs.done, theirs.invalid)


def test_an_export_of_an_import_is_the_same_file(labctl: Labctl, tmp_path: Path) -> None:
    exported = "".join(samples_csv(synthetic_run(blocks=2)))
    (tmp_path / "samples.csv").write_text(exported, newline="")
    words = ("--primary", "sysbench-cpu=events_per_s", "--primary", "iops")
    result = labctl(
        *("run", "import", str(tmp_path / "samples.csv"), "--name", "synthetic", *words)
    )
    assert result.code == 0, result.err
    back = "".join(samples_csv(loaded(tmp_path, "synthetic")))
    assert sorted(back.splitlines()) == sorted(exported.splitlines())


def test_verdicts_need_nothing_but_the_declared_roles(labctl: Labctl, tmp_path: Path) -> None:
    run = synthetic_run(effects={"pinned": 2.0, "handicap": 0.9}, noise=0.01)
    (tmp_path / "samples.csv").write_text("".join(samples_csv(run)))
    words = ("--primary", "events_per_s", "--primary", "iops", "--margin", "5%")
    labctl("run", "import", str(tmp_path / "samples.csv"), "--name", "bare", *words)
    by_tuning = {
        (c.tuning, c.workload): c.verdict
        for c in judge(loaded(tmp_path, "bare")).comparisons
        if c.verdict
    }
    assert by_tuning["pinned", "sysbench-cpu"] is Verdict.IMPROVES


def test_five_trials_are_a_demonstration_and_say_that_they_were_imported(
    labctl: Labctl, experiment: Experiment
) -> None:
    imported = labctl(
        *("run", "import", experiment("sched"), "--name", "sched"),
        *("--baseline", "other", "--primary", "real"),
    )
    assert imported.code == 0, imported.err
    report = " ".join(labctl("report", "sched").out.split())
    assert "Demonstration, no verdict" in report
    assert "Imported from 'sched.csv', not measured by labctl" in report
    assert "unknown accelerator" in report
    assert "declared when the trials were imported" in " ".join(
        labctl("report", "sched", "--full").out.split()
    )
    assert "IPC" not in report


def shuffled(path: str, policy: str, target: Path) -> str:
    """The same values, with the repetitions of one policy numbered the other way round."""
    header, *lines = Path(path).read_text().splitlines()
    rows = [line.split(",") for line in lines]
    last = max(int(row[3]) for row in rows)
    for row in rows:
        if row[0] == policy:
            row[3] = str(last + 1 - int(row[3]))
    target.write_text("\n".join([header, *(",".join(row) for row in rows)]))
    return str(target)


def primary(judgement: Judgement, tuning: str) -> Comparison:
    (found,) = (
        c
        for c in judgement.comparisons
        if (c.tuning, c.workload, c.metric, c.against) == (tuning, "cpu", "real", "other")
    )
    return found


def test_trials_that_nobody_says_were_interleaved_are_compared_unpaired(
    labctl: Labctl, experiment: Experiment, tmp_path: Path
) -> None:
    words = ("--baseline", "other", "--primary", "real", "--name", "sched")
    labctl("run", "import", experiment("sched", trials=12), *words)
    run = loaded(tmp_path, "sched")
    found = primary(judge(run), "fifo")
    values = {
        policy: [
            math.log(reading.value)
            for trial in run.trials
            for reading in trial.readings
            if isinstance(reading, Sample)
            if trial.record.cell["tuning"] == policy and trial.record.cell["workload"] == "cpu"
            if reading.metric == "real"
        ]
        for policy in ("fifo", "other")
    }
    welch = stats.ttest_ind(values["fifo"], values["other"], equal_var=False)
    expected = welch.confidence_interval(found.confidence)
    assert not found.paired
    assert (found.low, found.high) == pytest.approx(
        (math.exp(expected.low), math.exp(expected.high))
    )
    report = " ".join(labctl("report", "sched").out.split())
    assert (
        "Compared unpaired, because the file does not say that the trials were interleaved"
        in report
    )
    shown = json.loads(labctl("report", "sched", "--json").out)
    assert {item["paired"] for item in shown["comparisons"]} == {False}


def test_of_unpaired_trials_neither_page_nor_comparison_speaks_as_if_blocks_held_all_arms(
    labctl: Labctl, experiment: Experiment, tmp_path: Path
) -> None:
    path, page = experiment("one", trials=12), tmp_path / "page.html"
    words = ("--baseline", "other", "--primary", "real")

    def html(name: str) -> str:
        labctl("report", name, "--html", str(page))
        return page.read_text()

    for name, more in (("loose", ()), ("paired", ("--interleaved",))):
        assert labctl("run", "import", path, *words, *more, "--name", name).code == 0
    of_blocks = ("computed per block", "single blocks", "Every block has each arm once")
    assert all(text in html("paired") for text in of_blocks)
    assert not any(text in html("loose") for text in of_blocks)
    assert "computed from means of trials, unpaired" in html("loose")
    compared = " ".join(labctl("compare", "loose", "paired").out.split())
    assert "loose: its effects are unpaired" in compared
    assert "paired: its effects are unpaired" not in compared


def test_how_repetitions_are_numbered_changes_nothing_where_they_were_not_interleaved(
    labctl: Labctl, experiment: Experiment, tmp_path: Path
) -> None:
    one = experiment("one", trials=12)
    other = shuffled(one, "fifo", tmp_path / "other.csv")
    words = ("--baseline", "other", "--primary", "real")
    for path, name, more in (
        (one, "one", ()),
        (other, "other", ()),
        (one, "paired", ("--interleaved",)),
        (other, "shuffled", ("--interleaved",)),
    ):
        assert labctl("run", "import", path, *words, *more, "--name", name).code == 0

    def interval(name: str) -> tuple[float | None, float | None]:
        found = primary(judge(loaded(tmp_path, name)), "fifo")
        return found.low, found.high

    assert interval("one") == pytest.approx(interval("other"))
    assert interval("paired") != pytest.approx(interval("shuffled"))


def test_blocks_that_the_import_says_were_interleaved_are_paired(
    labctl: Labctl, experiment: Experiment, tmp_path: Path
) -> None:
    words = ("--baseline", "other", "--primary", "real", "--name", "sched", "--interleaved")
    assert labctl("run", "import", experiment("sched", trials=12), *words).code == 0
    run = loaded(tmp_path, "sched")
    assert run.plan.interleaved is True
    found = primary(judge(run), "fifo")
    assert found.paired
    assert "Compared unpaired" not in labctl("report", "sched").out
    # What an older labctl imported says nothing of it.
    plan = {key: value for key, value in run.plan.to_json().items() if key != "interleaved"}
    assert not primary(judge(replace(run, plan=plan_of(plan))), "fifo").paired


def test_without_a_control_ten_blocks_give_no_verdict(
    labctl: Labctl, experiment: Experiment, tmp_path: Path
) -> None:
    words = ("--baseline", "other", "--primary", "real", "--name", "sched")
    labctl("run", "import", experiment("sched", trials=12), *words)
    judgement = judge(loaded(tmp_path, "sched"))
    assert {c.verdict for c in judgement.comparisons if c.verdict} == {Verdict.SUSPENDED}
    assert all("the run has none" in check.sentence for check in judgement.control)


def test_two_imported_experiments_are_compared(labctl: Labctl, experiment: Experiment) -> None:
    words = ("--baseline", "other", "--primary", "real", "--name")
    labctl("run", "import", experiment("one", trials=12), *words, "one")
    labctl("run", "import", experiment("two", trials=12, slower=1.5, seed=2), *words, "two")
    found = json.loads(labctl("compare", "one", "two", "--json").out)
    assert found["refusals"] == []
    assert {row["finding"] for row in found["levels"]} == {"differs"}
    assert "differs" not in {row["finding"] for row in found["effects"]}
    assert len(found["levels"]) == len(REAL_S)
    assert any("was imported" in caution for caution in found["cautions"])


def test_five_trials_of_each_side_find_nothing(labctl: Labctl, experiment: Experiment) -> None:
    words = ("--baseline", "other", "--primary", "real", "--name")
    labctl("run", "import", experiment("one"), *words, "one")
    labctl("run", "import", experiment("two", slower=1.5, seed=2), *words, "two")
    found = json.loads(labctl("compare", "one", "two", "--json").out)
    assert {row["finding"] for row in found["levels"]} == {"too few blocks"}


def test_what_was_imported_is_compared_with_a_measurement_only_by_force(
    labctl: Labctl, tmp_path: Path
) -> None:
    write_run(tmp_path / "results" / "measured", synthetic_run())
    (tmp_path / "samples.csv").write_text("".join(samples_csv(synthetic_run(seed=2))))
    words = ("--primary", "events_per_s", "--primary", "iops")
    labctl("run", "import", str(tmp_path / "samples.csv"), "--name", "theirs", *words)
    refused = labctl("compare", "measured", "theirs")
    assert refused.code == 2
    assert "theirs was imported and measured was measured by labctl" in refused.err
    forced = labctl("compare", "measured", "theirs", "--force")
    assert "Not comparable" in forced.out
    found = json.loads(labctl("compare", "measured", "theirs", "--force", "--json").out)
    assert {row["tuning"] for row in found["effects"]} == {"pinned", "pinned+fifo"}
    assert found["facts"] == []


def test_what_was_imported_is_not_gone_on_with(labctl: Labctl, experiment: Experiment) -> None:
    words = ("--baseline", "other", "--primary", "real", "--name", "sched")
    labctl("run", "import", experiment("sched"), *words)
    for asked in (("sweep", "--resume", "sched"), ("run", "reparse", "sched")):
        result = labctl(*asked)
        assert result.code == 2
        assert "was imported" in result.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no baseline is declared"),
        (["--baseline", "othr"], "Did you mean 'other'?"),
        (["--baseline", "other"], "Give --primary cpu=METRIC. It has: real, ctx_switches."),
        (["--baseline", "other", "--primary", "reel"], "Did you mean 'real'?"),
        (["--baseline", "other", "--primary", "cpuu=real"], "Did you mean 'cpu'?"),
        (["--baseline", "other", "--primary", "real", "--margin", "5"], "Write it as '5%'"),
        (["--baseline", "other", "--primary", "real", "--name", "a/b"], "--name: 'a/b'"),
        (["--baseline", "other", "--design", "x"], "Leave them out"),
        (["--design", "x"], "no run named 'x'"),
    ],
)
def test_what_is_not_declared_is_asked_for(
    labctl: Labctl, experiment: Experiment, tmp_path: Path, words: list[str], says: str
) -> None:
    result = labctl("run", "import", experiment("sched"), *words)
    assert result.code == 2
    assert says in result.err
    assert not list(tmp_path.glob("results/*/run.json"))


def test_the_list_of_runs_says_which_was_imported(
    labctl: Labctl, experiment: Experiment, tmp_path: Path
) -> None:
    words = ("--baseline", "other", "--primary", "real", "--name", "sched")
    labctl("run", "import", experiment("sched"), *words)
    write_run(tmp_path / "results" / "measured", synthetic_run(blocks=1, primary_only=True))
    runs = json.loads(labctl("run", "list", "--json").out)["runs"]
    assert {entry["run"]: entry.get("imported_from") for entry in runs} == {
        "measured": None,
        "sched": "sched.csv",
    }
    assert "imported" in labctl("run", "list").out
    assert "sched.csv" in labctl("run", "show", "sched").out


def test_a_run_of_that_name_is_not_overwritten(labctl: Labctl, experiment: Experiment) -> None:
    words = ("--baseline", "other", "--primary", "real", "--name", "sched")
    assert labctl("run", "import", experiment("sched"), *words).code == 0
    again = labctl("run", "import", experiment("sched"), *words)
    assert again.code == 2
    assert "run 'sched' already exists" in again.err
    assert labctl("report", "sched").code == 0


@pytest.fixture
def split_plot(tmp_path: Path) -> Path:
    """Twelve blocks over six boots: fifo is ×1.2, 100 processes ×0.4, and what boots do to the
    kernels is as large as the kernel's own effect."""
    rng = random.Random(4)
    boots: dict[tuple[str, int], float] = {}
    rows = []
    for block in range(1, 13):
        boot, shared = (block + 1) // 2, rng.gauss(0, 0.1)
        for kernel in ("old", "new"):
            of_boot = boots.setdefault((kernel, boot), rng.gauss(0, 0.05))
            for policy, one in (("other", 1.0), ("fifo", 1.2)):
                for number, other in (("9", 1.0), ("100", 0.4)):
                    value = 100 * one * other * math.exp(shared + of_boot + rng.gauss(0, 0.02))
                    here = f"baseline,matrix,{block},{boot},{policy},{number},{kernel}"
                    rows.append(f"{here},ops,{value!r},1/s,higher")
    rng.shuffle(rows)
    path = tmp_path / "split.csv"
    head = "tuning,workload,block,boot,policy,number,kernel,metric,value,unit,better"
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def effects(tmp_path: Path, name: str) -> dict[tuple[str, ...], Contrast]:
    factors = judge(loaded(tmp_path, name)).factors
    assert factors is not None
    return {(*one.factors, *one.levels): one for one in factors.contrasts}


def test_columns_of_levels_become_factors(labctl: Labctl, tmp_path: Path, split_plot: Path) -> None:
    words = ("run", "import", str(split_plot), "--name", "split", "--interleaved")
    factors = ("--factor", "policy=other,fifo", "--factor", "number", "--factor", "kernel=old")
    more = ("--own-boot", "kernel", "--interaction", "policy,number")
    assert labctl(*words, *factors, *more).code == 0
    found = effects(tmp_path, "split")
    assert set(found) == {
        ("policy", "fifo"),
        ("number", "100"),
        ("kernel", "new"),
        ("policy", "number", "fifo", "100"),
    }
    # The same by hand: a value per block, and per boot for the kernel.
    table = [line.split(",") for line in split_plot.read_text().splitlines()[1:]]
    log = {(int(r[2]), r[4], r[5], r[6]): math.log(float(r[8])) for r in table}

    def contrast(at: int, high: str, low: str, block: int) -> float:
        sides = [
            [value for key, value in log.items() if key[0] == block and key[at] == level]
            for level in (high, low)
        ]
        return sum(sides[0]) / 4 - sum(sides[1]) / 4

    by_block = [contrast(1, "fifo", "other", block) for block in range(1, 13)]
    by_boot = [
        (contrast(3, "new", "old", b) + contrast(3, "new", "old", b + 1)) / 2
        for b in range(1, 13, 2)
    ]
    for key, values in ((("policy", "fifo"), by_block), (("kernel", "new"), by_boot)):
        low, high = stats.t.interval(
            1 - 0.05 / 4, len(values) - 1, sum(values) / len(values), stats.sem(values)
        )
        one = found[key]
        assert one.low is not None
        assert one.high is not None
        assert [math.log(one.low), math.log(one.high)] == pytest.approx([low, high])


def test_the_three_axes_can_be_factors_as_well(
    labctl: Labctl, tmp_path: Path, experiment: Experiment
) -> None:
    words = ("run", "import", experiment("axes", 12), "--name", "axes", "--baseline", "other")
    more = ("--factor", "tuning", "--factor", "workload=cpu", "--interaction", "workload,tuning")
    assert labctl(*words, *more, "--interleaved", "--primary", "real").code == 0
    found = effects(tmp_path, "axes")
    io, cpu = REAL_S["fifo", "io"] / REAL_S["other", "io"], REAL_S["fifo", "cpu"] / 0.166
    assert found["tuning", "fifo"].estimate == pytest.approx(math.sqrt(io * cpu), rel=0.03)
    assert found["workload", "tuning", "io", "fifo"].estimate == pytest.approx(io / cpu, rel=0.05)


def test_an_export_with_factors_comes_back_with_them(labctl: Labctl, tmp_path: Path) -> None:
    run = factorial_run()
    write_run(tmp_path / "results" / "whole", run)
    (tmp_path / "whole.csv").write_text("".join(samples_csv(run)))
    words = ("run", "import", str(tmp_path / "whole.csv"), "--name", "back", "--design", "whole")
    assert labctl(*words).code == 0
    again, first = judge(loaded(tmp_path, "back")).factors, judge(run).factors
    assert again is not None
    assert first is not None
    assert [c.estimate for c in again.contrasts] == [c.estimate for c in first.contrasts]


ALL = ("--factor", "number", "--factor", "kernel")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--factor", "polcy"), "column 'polcy': is missing, but named as a factor"),
        ((*ALL, "--factor", "policy=fivo"), "'policy' has no level 'fivo' in the file"),
        (("--factor", "block"), "column 'block': is a reserved column"),
        (
            (*ALL, "--factor", "policy", "--own-boot", "kernl"),
            "--own-boot: no --factor names 'kernl'",
        ),
        ((*ALL, "--factor", "policy", "--interaction", "policy"), "expected two factors"),
        (("--factor", "policy"), "ops of this trial appears twice (also in"),
    ],
)
def test_a_factor_that_is_not_in_the_file_is_refused(
    labctl: Labctl, split_plot: Path, words: tuple[str, ...], said: str
) -> None:
    refused = labctl("run", "import", str(split_plot), *words)
    assert refused.code == 2
    assert said in refused.err
