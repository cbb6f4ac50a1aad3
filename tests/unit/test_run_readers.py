"""Every command that reads a run folder, and the readers of what labctl keeps, on files that were
altered at random: they read them or say what is wrong, and never break. Readers of one file each
are in tests/fuzz/targets.py."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from labctl.base.errors import LabctlError
from labctl.base.paths import StatePaths
from labctl.cli.main import main
from labctl.host.lock import host_locked
from labctl.run.commands.export import export
from labctl.run.commands.verify import verify
from labctl.run.planning.plan import Begun, extended_plan, plan_of
from labctl.run.trials.parse import reparse
from labctl.store import collecting_costs, exit_prices, restores
from labctl.store.run_folder import RunFolder
from tests.unit.altered import altered_bytes, altered_json
from tests.unit.example import EXAMPLE
from tests.unit.synthetic import WORKLOADS, synthetic_run, write_run

SEEDS = range(16)
"""More of them by hand: `LABCTL_SEEDS=1000-3000 pytest …`."""
MOST_S = 5.0

POLICY = """\
rules:
  - name: slower
    metric: primary
    against: baseline
    limit: 5%
"""

_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("report", "RUN"),
    ("report", "RUN", "--json"),
    ("report", "RUN", "--csv"),
    ("report", "RUN", "--openmetrics"),
    ("report", "RUN", "--prometheus"),
    ("report", "RUN", "--html", "FOLDER/page.html"),
    ("report", "RUN", "--parquet", "FOLDER/x.parquet"),
    ("compare", "RUN", "WHOLE"),
    ("compare", "WHOLE", "RUN", "--json"),
    ("compare", "WHOLE", "RUN", "--html", "FOLDER/compare.html"),
    ("advise", "RUN"),
    ("advise", "RUN", "--json"),
    ("advise", "RUN", "--out", "FOLDER/advice", "--card", "FOLDER/card.md"),
    ("gate", "RUN", "--policy", "FOLDER/policy.yaml", "--junit", "FOLDER/junit.xml"),
    ("gate", "RUN", "--policy", "FOLDER/policy.yaml", "--json"),
    ("history", "--metric", "events_per_s", "--results", "FOLDER/results"),
    ("history", "--metric", "events_per_s", "--results", "FOLDER/results", "--json"),
    ("timeline", "RUN"),
    ("timeline", "RUN", "1", "--json"),
    ("run", "list", "--results", "FOLDER/results"),
    ("run", "show", "RUN"),
    ("run", "show", "RUN", "--json"),
    ("run", "verify", "RUN"),
)


def seeds() -> list[int]:
    first, _, last = os.environ.get("LABCTL_SEEDS", "").partition("-")
    return list(range(int(first), int(last))) if last else list(SEEDS)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs as they should be: one that is made up, and some trials of a real one."""
    folder = tmp_path_factory.mktemp("whole")
    shape = {"blocks": 10, "tunings": ("native", "baseline", "control", "handicap", "pinned")}
    workload = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}
    write_run(folder / "made", synthetic_run(workloads=workload, effects={"pinned": 1.4}, **shape))
    shutil.copytree(EXAMPLE, folder / "real", ignore=shutil.ignore_patterns("0*", "*.html"))
    with_exits(folder / "made")
    for number in range(1, 161, 12):
        shutil.copytree(EXAMPLE / f"trials/{number:04d}", folder / f"real/trials/{number:04d}")
    return {name: folder / name for name in ("made", "real")}


def with_exits(run: Path) -> None:
    """Every metric that a price list is held against, and the list."""
    record = json.loads((run / "run.json").read_text())
    prices = {"at": "2026-11-22", "prices": [asdict(PRICE), asdict(PRICE)]}
    (run / "run.json").write_text(json.dumps({**record, "exit_prices": prices}))
    exits = {"metric": "exits", "unit": "1/s", "better": "neither", "source": "trace/exits.json"}
    for path in sorted(run.glob("trials/*/samples.json")):
        data = json.loads(path.read_text())
        for labels in ({"reason": "CPUID"}, {"reason": "IO"}, {}):
            data["samples"].append({**exits, "value": 1000.0, "labels": labels})
        path.write_text(json.dumps(data))


def alter_run(run: Path, chance: random.Random) -> list[str]:
    """Alter one to three of the run's JSON files; their names."""
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    top = ["run.json", "plan.json"]
    names = []
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(top if chance.random() < 0.6 else files)
        path = run / name
        if name.endswith(".json") and chance.random() < 0.85:
            with suppress(ValueError):  # it was altered to no JSON before
                value = altered_json(json.loads(path.read_bytes()), chance, chance.randint(1, 5))
                path.write_text(json.dumps(value), errors="surrogatepass")
        else:
            path.write_bytes(altered_bytes(path.read_bytes(), chance))
        names.append(name)
    return names


def in_time(what: str, act: Callable[[], object]) -> None:
    started = time.process_time()
    with suppress(LabctlError):
        act()
    assert time.process_time() - started < MOST_S, what


@pytest.fixture
def said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., None]:
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))

    def call(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["labctl", *words])
        started = time.process_time()
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        assert "a fault in labctl" not in printed.err, (words, printed.err[-2000:])
        assert "Traceback" not in printed.err, words
        assert caught.value.code in (None, 0, 1, 2, 3, 4)
        assert not any(char in printed.out + printed.err for char in "\x1b\0"), words
        assert time.process_time() - started < MOST_S, words

    return call


@pytest.mark.parametrize("seed", seeds())
def test_commands_that_read_a_run(
    whole: dict[str, Path], tmp_path: Path, said: Callable[..., None], seed: int
) -> None:
    chance = random.Random(seed)
    source = chance.choice(list(whole.values()))
    run = tmp_path / "results/run"
    shutil.copytree(source, run)
    (tmp_path / "policy.yaml").write_text(POLICY)
    alter_run(run, chance)
    for words in chance.sample(_COMMANDS, 4):
        put = {"RUN": str(run), "WHOLE": str(source)}
        said(*(put.get(word, word.replace("FOLDER", str(tmp_path))) for word in words))


@pytest.mark.parametrize("seed", seeds())
def test_what_goes_on_with_a_run_parses_checks_or_copies_it(
    whole: dict[str, Path], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(f"run {seed}")
    run = tmp_path / "run"
    shutil.copytree(chance.choice(list(whole.values())), run)
    names = alter_run(run, chance)
    folder = RunFolder(run)
    for what, act in (
        ("plan", lambda: folder.records(plan_of(Begun.read(folder)).record())),
        ("extend", lambda: extended_plan(Begun.read(folder), 2)),
        ("verify", lambda: verify(folder)),
        (
            "export",
            lambda: export(folder, tmp_path / "x", StatePaths(tmp_path), redacting=True),
        ),
        ("reparse", lambda: reparse(folder)),
    ):
        in_time(f"{what} of {names}", act)


PRICE = exit_prices.Price(
    kind="cpuid",
    what="CPUID",
    reason="CPUID",
    to_qemu=False,
    ns=900.0,
    low_ns=800.0,
    high_ns=1000.0,
    exits_per_op=1.0,
)


@pytest.mark.parametrize("seed", seeds())
def test_what_labctl_keeps_of_earlier_runs(
    whole: dict[str, Path], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(f"state {seed}")
    made = RunFolder(whole["real"]).load()
    here = made.plan.to_json()["conditions"][0]
    asked = [
        restores.Checked("pinned", name, here, True) for name in made.plan.to_json()["workloads"]
    ]
    cost = collecting_costs.CollectingCost(
        level="trace",
        side="guest",
        workload="sysbench-cpu",
        estimate=0.01,
        low=None,
        high=0.1,
        labctl_cpu=None,
        pairs=3,
        seconds=2.0,
        measured_at="2026-11-22",
    )
    restores.remember(tmp_path / "restores", "r", made.run, made.plan, asked)
    collecting_costs.remember(tmp_path / "costs", made.run, [cost])
    exit_prices.write_prices(tmp_path / "prices", made.run.host, [PRICE], "2026-11-22")
    assert restores.shown(tmp_path / "restores", made.run, made.plan)
    assert exit_prices.known_prices(tmp_path / "prices", made.run.host)
    kept = {name: (tmp_path / name).read_text() for name in ("restores", "costs", "prices")}
    for _ in range(10):
        files = {}
        for name, value in kept.items():
            files[name] = tmp_path / f"{name}.json"
            changed = altered_json(json.loads(value), chance, chance.randint(1, 3))
            files[name].write_text(json.dumps(changed), errors="surrogatepass")
        in_time("restores", lambda: restores.shown(files["restores"], made.run, made.plan))  # noqa: B023
        in_time("costs", lambda: collecting_costs.known(files["costs"], made.run))  # noqa: B023
        in_time("prices", lambda: exit_prices.known_prices(files["prices"], made.run.host))  # noqa: B023


@pytest.mark.parametrize("seed", seeds())
def test_the_lock_of_the_host(tmp_path: Path, seed: int) -> None:
    chance = random.Random(f"lock {seed}")
    path = tmp_path / "lock/host.lock"
    said = {"pid": 1, "since": "2026-11-22T00:00:00+00:00", "what": "x", "run_folder": "/x"}
    (tmp_path / "lock").mkdir(mode=0o700)
    path.write_bytes(altered_bytes(json.dumps(said).encode(), chance))

    def take() -> None:
        with host_locked(path, what="labctl sweep", run_folder=tmp_path):
            pass

    in_time("lock", take)
