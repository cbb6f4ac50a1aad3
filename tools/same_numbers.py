"""Compare what two versions of labctl print about the same runs.

`python -m tools.same_numbers FIRST [LAST] [--run FOLDER]... [--part PART]... [--reparse]` runs the
labctl of both, each a commit or a folder, on the recorded examples, runs of older versions, damaged
copies, imported runs of known effects, a density run and a fleet. Numbers, codes, order, missing
values, exit statuses, domain XML, plans and the options of each command must be the same. Prose may
differ: only the keys in `PROSE` hold prose. `RENAMED` lists renamed keys. With `--reparse` each
labctl first reads the raw files of the recorded runs again.
"""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

SEEDS = (11, 23, 47)
EFFECTS = {"baseline": 1.0, "control": 1.0, "handicap": 0.93, "pinned": 1.08, "noisy": 1.0}
"""Factors on the throughput of the imported runs' arms."""
BLOCKS = 12
AT_ONCE = 2
"""Commands that run at the same time."""

RENAMED: dict[str, str] = {
    "handicap": "known_loss",
}
"""Names of keys, and of a check, in the JSON reports by their old name (docs/upgrading.md)."""
VERSIONS = frozenset({"schema", "labctl"})
"""Keys that differ between two versions by their meaning."""
PROSE = frozenset(
    (
        "sentence",
        "unmarked",
        "side_costs.interval",
        "text",
        "lead",
        "because",
        "sure",
        "others",
        "worse",
        "price",
        "answer",
        "headline",
        "accelerator_reason",
        "description",
        "title",
        "ending",
        "warnings",
        "problems",
        "cautions",
        "refusals",
        "left_out",
        "takes",
        "risks",
        "notes",
        "costs",
        "found",
        "remedy",
        "fallback",
        "why",
        "note",
        "in_force",
        "message",
        "hint",
        "words",
        "unavailable",
        "measured",
        "decision.status",
        "unavailable.reason",
        "reasons.reason",
        "states.reason",
        "collectors.reason",
    )
)
"""Keys of prose, some with the key above them. `reason` alone is a code of a comparison."""
PROSE_BELOW = frozenset({"notes", "skipped", "skipped_workloads", "skipped_conditions"})
"""Keys of objects that hold prose by name."""
POLICIES = {
    "strict": "fail",
    "lenient": "pass",
    "open": "open",
}
"""Policies for `labctl gate`, and how each treats an undecided rule."""


class Kind(StrEnum):
    """Name the kinds of findings; only the first fails the comparison."""

    DIFFERENT = "different"
    ADDED = "added"
    WORDS = "words"


@dataclass(frozen=True, slots=True)
class Found:
    """Describe a difference. `place`: keys and indices; `text`: what differs there."""

    kind: Kind
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place or 'the report'} {self.text}"


def differences(first: Any, last: Any, place: str = "") -> Iterator[Found]:
    """Yield each place where two reports differ."""
    if isinstance(first, dict) and isinstance(last, dict):
        old: dict[str, Any] = {
            key if key in last else RENAMED.get(str(key), str(key)): first[key] for key in first
        }
        for key in sorted((old.keys() | last.keys()) - VERSIONS):
            inner = f"{place}.{key}" if place else key
            if key not in last:
                yield Found(Kind.DIFFERENT, inner, "is gone")
            elif key not in old:
                yield Found(Kind.ADDED, inner, "is new")
            else:
                yield from differences(old[key], last[key], inner)
        shared = [key for key in old if key in last]
        if shared != [key for key in last if key in old]:
            yield Found(Kind.DIFFERENT, place, "has its keys in another order")
    elif isinstance(first, list) and isinstance(last, list):
        if len(first) != len(last):
            yield Found(Kind.DIFFERENT, place, f"has {len(last)} items for {len(first)}")
        for number, (one, other) in enumerate(zip(first, last, strict=False)):
            yield from differences(one, other, f"{place}[{number}]")
    elif isinstance(first, frozenset) and isinstance(last, frozenset):
        yield from (Found(Kind.DIFFERENT, place, f"lacks {item!r}") for item in first - last)
        yield from (Found(Kind.DIFFERENT, place, f"has a new {item!r}") for item in last - first)
    elif type(first) is not type(last) or (first != last and RENAMED.get(str(first)) != last):
        words = isinstance(first, str) and isinstance(last, str) and is_prose(place)
        kind = Kind.WORDS if words else Kind.DIFFERENT
        yield Found(kind, place, f"is {last!r} for {first!r}")


def is_prose(place: str) -> bool:
    """Return whether the strings at a place are prose; everywhere else they are codes and names."""
    keys = re.sub(r"\[\d+\]", "", place).split(".")
    return (
        keys[-1] in PROSE or ".".join(keys[-2:]) in PROSE or not PROSE_BELOW.isdisjoint(keys[-3:-1])
    )


def tree_of(version: str, folder: Path) -> Path:
    """Return a folder as it is, or a commit's files, written into `folder`."""
    if Path(version).is_dir():
        return Path(version).resolve()
    archive = subprocess.run(
        ["git", "archive", "--format=tar", f"{version}^{{commit}}"],
        stdout=subprocess.PIPE,
        check=False,
    )
    if archive.returncode != 0:
        raise click.ClickException(f"'{version}' is neither a folder nor a commit")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder


def labctl(tree: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a tree's labctl; it reads no lab folder and asks this machine for nothing."""
    code = "from labctl.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tree,
        env={"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        text=True,
        capture_output=True,
        check=False,
    )


def imported(tree: Path, results: Path, seed: int, *options: str) -> Path:
    """Import a run of known effects, made from `seed`: some trials are invalid, one metric is
    unavailable now and then."""
    chance = random.Random(seed)
    file = results / f"synthetic-{seed}-{len(options)}.csv"
    columns = ["tuning", "workload", "condition", "block", "boot", "metric", "value", "unit"]
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow([*columns, "better", "unavailable"])
        for workload in ("alpha", "beta"):
            for block in range(1, BLOCKS + 1):
                level = chance.gauss(1, 0.05)
                for tuning, factor in EFFECTS.items():
                    spread = 0.2 if tuning == "noisy" else 0.01
                    rate = 1000 * factor * level * chance.gauss(1, spread)
                    trial = (tuning, workload, "quiet", block, 1 + block // 4)
                    rows.writerow([*trial, "rate", rate, "1/s", "higher", ""])
                    lost = "not counted" if chance.random() < 0.1 else ""
                    ipc = "" if lost else chance.gauss(1.2, 0.05)
                    rows.writerow([*trial, "ipc", ipc, "instructions/cycle", "higher", lost])
    name = file.stem
    arguments = ("--primary", "rate", "--margin", "3%", "--name", name, "--results", results)
    done = labctl(tree, "run", "import", file, *arguments, *options)
    if done.returncode != 0:
        raise click.ClickException(f"{file} was not imported: {done.stderr}")
    return results / name


def unpacked(archive: Path, results: Path) -> Path:
    """Unpack a run's archive into `results`, under the archive's name."""
    folder = results / archive.name.removesuffix(".tar.xz")
    with tempfile.TemporaryDirectory(dir=results) as temporary:
        subprocess.run(["tar", "-xJf", archive, "-C", temporary], check=True)
        (top,) = Path(temporary).iterdir()
        return Path(shutil.move(top, folder))


def doubtful(example: Path, results: Path) -> Iterator[Path]:
    """Yield copies of a run that aren't whole, each in another way."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(example, results / name))

    fewer = copy("fewer-trials")
    for trial in sorted((fewer / "trials").iterdir())[7::9]:
        shutil.rmtree(trial)
    yield fewer
    damaged = copy("damaged-samples")
    for trial in sorted((damaged / "trials").iterdir())[3::17]:
        (trial / "samples.json").write_text('{"schema": 1, "samples": [{"metric": 5}]')
    yield damaged
    odd = copy("odd-record")
    record = json.loads((odd / "run.json").read_text())
    (odd / "run.json").write_text(
        json.dumps({**record, "seed": "many", "warnings": [1, "Two words."]})
    )
    yield odd


def density_run(results: Path) -> Path:
    """Write a density run of two tunings, whose limit breaks above 3 to 6 guests."""
    folder = results / "density"
    (folder / "guests").mkdir(parents=True)
    steps, counts = [], []
    for block in range(1, 11):
        for tuning, most in (("baseline", 3 + block % 2), ("pinned", 5 + block % 2)):
            for count in range(1, most + 2):
                guests = [
                    {
                        "number": number,
                        "cpus": f"CPU {number % 2}",
                        "folder": f"b{block:02d}-{tuning}-n{count:02d}-g{number:02d}",
                        "value": 0.005 + 0.002 * (count - 1) + 0.0001 * number,
                    }
                    for number in range(1, count + 1)
                ]
                step = {"block": block, "tuning": tuning, "count": count, "guests": guests}
                steps.append({**step, "held": count <= most, "common_s": 9.9, "other_cpus": 0.0})
            counts.append({"block": block, "tuning": tuning, "number": most})
    record = {
        "schema": 1,
        "labctl": "0.1",
        "command": "labctl density frame-loop",
        "workload": "frame-loop",
        "parameters": {"hz": 60},
        "definition": {},
        "duration_s": 10.0,
        "limit": {"metric": "frame_p95", "bound": "<", "value": 0.016, "unit": "s"},
        "tunings": ["baseline", "pinned"],
        "blocks": 10,
        "search": "up",
        "most": 20,
        "most_by": "the host's memory",
        "seed": 1,
        "vcpus": 1,
        "memory_mib": 1024,
        "started_at": "2026-11-24T10:00:00+00:00",
        "status": "done",
        "accelerator": "kvm",
        "host": {"cpu_model": "A CPU", "kernel_release": "6.1"},
        "steps": steps,
        "counts": counts,
    }
    (folder / "density.json").write_text(json.dumps(record))
    return folder


def fleet(tree: Path, folder: Path, runs: Sequence[Path]) -> Path:
    """Write a fleet's folder, as a fleet sweep leaves it, whose hosts have measured `runs`."""
    names = [f"h{number}" for number in range(1, len(runs) + 1)]
    plan = json.loads((runs[0] / "plan.json").read_text())
    record = {
        "schema": 1,
        "study": "pinning",
        "study_digest": plan.get("study_digest") or "0" * 64,
        "seed": 1,
        "labctl": "0.1.0",
        "started": "2026-01-01T00:00:00+00:00",
        "command": ["labctl", "fleet", "sweep", "pinning"],
        "inventory": ["/hosts.yml"],
        "serial": "1,100%",
        "batches": [names[:1], names[1:]],
    }
    folder.mkdir()
    (folder / "fleet.json").write_text(json.dumps(record))
    for name, run in zip(names, runs, strict=True):
        host = folder / "hosts" / name
        host.mkdir(parents=True)
        state = {"schema": 1, "status": "done", "reason": "", "batch": 1, "run": run.name}
        (host / "state.json").write_text(json.dumps({**state, "digest": f"digest-{name}"}))
        done = labctl(tree, "run", "export", run, "--out", host / "run.tar.xz")
        if done.returncode != 0:
            raise click.ClickException(f"{run.name} was not exported: {done.stderr}")
    return folder


def policies(folder: Path) -> list[Path]:
    """Write the policies for `labctl gate`: each has rules that runs keep and rules that they
    violate or leave undecided."""
    written = []
    for name, undecided in POLICIES.items():
        rules = [
            {"metric": "*", "against": "baseline", "worse_by_at_most": "400 %"},
            {"tuning": "pinned", "grade": "candidate"},
        ]
        if name != "lenient":
            rules += [
                {"metric": "*", "against": "baseline", "worse_by_at_most": "5 %"},
                {
                    "tuning": "baseline",
                    "metric": "events_per_s",
                    "against": "twin",
                    "within": "9 %",
                },
            ]
        named = [{"name": f"rule {number}", **rule} for number, rule in enumerate(rules, 1)]
        path = folder / f"{name}.yaml"
        path.write_text(json.dumps({"undecided": undecided, "rules": named}))
        written.append(path)
    return written


def reparsed(tree: Path, run: Path, copies: Path) -> Path:
    """Return a copy of a run whose samples a tree's labctl has read from the raw files again."""
    copy = Path(shutil.copytree(run, copies / run.name))
    done = labctl(tree, "run", "reparse", copy)
    if done.returncode != 0:
        said = done.stderr.strip().rpartition("\n")[2]
        click.echo(f"{run.name}: 'run reparse' ends with {done.returncode}: {said}")
    return copy


def read_help(text: str) -> dict[str, Any]:
    """Return the usage, options and subcommands of a help text, and all its words."""
    section = ""
    options: set[str] = set()
    commands: set[str] = set()
    for line in text.splitlines():
        if line and not line.startswith(" "):
            section = line
        elif section.endswith(":") and (entry := re.match(r"  (\S.*?)(?:\s{2,}|$)", line)):
            (options if entry[1].startswith("-") else commands).add(entry[1])
    usage = " ".join(text.partition("\n\n")[0].split())
    words = " ".join(text.split())
    return {
        "usage": usage,
        "options": frozenset(options),
        "commands": frozenset(commands),
        "words": words,
    }


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def reported(tree: Path, arguments: Sequence[str | Path], read: Callable[[str], Any]) -> Any:
    """Return the exit status of a tree's labctl and what it prints. Paths that differ between two
    trees are replaced."""
    done = labctl(tree, *arguments)
    paths = {str(path): path.name for path in arguments if isinstance(path, Path)}

    def plain(text: str) -> str:
        for path, name in {**paths, str(tree): "TREE"}.items():
            text = text.replace(path, name)
        return text

    text = plain(done.stdout)
    try:
        output = read(text)
    except ValueError:
        output = text.splitlines()
    message = plain(done.stderr) if done.returncode else ""
    return {"exit status": done.returncode, "output": output, "message": message}


@dataclass(frozen=True, slots=True)
class Check:
    """Describe a command that both run. `last`: the arguments of the last version, if others."""

    part: str
    name: str
    arguments: tuple[str | Path, ...]
    read: Callable[[str], Any] = json.loads
    last: tuple[str | Path, ...] | None = None

    def found(self, trees: tuple[Path, Path]) -> list[Found]:
        first = reported(trees[0], self.arguments, self.read)
        return list(differences(first, reported(trees[1], self.last or self.arguments, self.read)))


def names_in(trees: tuple[Path, Path], *arguments: str) -> list[str]:
    """Return the names that a `list --json` of either tree has."""
    names: dict[str, None] = {}
    for tree in trees:
        printed = json.loads(labctl(tree, *arguments, "--json").stdout)
        entries = printed if isinstance(printed, list) else printed["studies"]
        names |= dict.fromkeys(entry["name"] for entry in entries)
    return list(names)


def commands_in(trees: tuple[Path, Path]) -> list[tuple[str, ...]]:
    """Return every command and subcommand that either tree's help names."""
    found: dict[tuple[str, ...], None] = {}
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        command = waiting.pop(0)
        found[command] = None
        for tree in trees:
            for name in sorted(read_help(labctl(tree, *command, "--help").stdout)["commands"]):
                inner = (*command, name)
                if inner not in found and inner not in waiting:
                    waiting.append(inner)
    return list(found)


def checks_of_version(trees: tuple[Path, Path], parts: Sequence[str]) -> Iterator[Check]:
    """Yield the commands that read no run."""
    if "tuning" in parts:
        for name in names_in(trees, "tuning", "list"):
            for accel in ("tcg", "kvm"):
                arguments = ("tuning", "render", name, "--vcpus", "2", "--accel", accel)
                yield Check("tuning", f"{name} {accel}", arguments, str.splitlines)
    if "sweep" in parts:
        for name in names_in(trees, "study", "list"):
            for quick in ((), ("--quick",)):
                arguments = ("sweep", name, "--plan-only", "--json", "--seed", "1", *quick)
                yield Check("sweep", " ".join((name, *quick)), (*arguments, "--accel", "tcg"))
    if "help" in parts:
        for command in commands_in(trees):
            name = " ".join(command) or "labctl"
            yield Check("help", name, (*command, "--help"), read_help)


def checks_of_runs(
    runs: Sequence[tuple[Path, Path]], results: Path, rules: Sequence[Path]
) -> Iterator[Check]:
    """Yield the commands that read runs; each run has a folder for both."""
    arguments: tuple[str | Path, ...]
    for first, last in runs:
        for options, read in ((("--json",), json.loads), (("--csv",), read_csv)):
            name = f"{first.name} {options[0]}"
            yield Check(
                "report", name, ("report", first, *options), read, ("report", last, *options)
            )
        yield Check("advise", first.name, ("advise", first, "--json"))
        for rule in rules:
            gate = ("gate", first, "--policy", rule, "--json")
            yield Check("gate", f"{first.name} {rule.stem}", gate)
        for trial in ("", "1", "2", "3", "4"):
            if "traced" in first.name:
                arguments = ("timeline", first, *([trial] if trial else []), "--json")
                yield Check("timeline", f"{first.name} {trial}".strip(), arguments)
    for (first, _), (last, _) in pairwise(runs):
        for force in ((), ("--force",)):
            name = " ".join((first.name, last.name, *force))
            yield Check("compare", name, ("compare", first, last, "--json", *force))
    for metric in ("rate", "ipc", "events_per_s", "latency_p95", "host_cpu{thread=vcpu}"):
        history = ("history", "--metric", metric, "--json", "--results", results)
        yield Check("history", metric, history)


PARTS = (
    *("report", "compare", "gate", "history", "advise", "timeline", "density", "fleet"),
    *("tuning", "sweep", "help"),
)


def show(part: str, names: Sequence[str], found: Sequence[list[Found]], *, words: bool) -> None:
    """Print a part's findings, those that are alike once with their number."""
    kinds = Counter(item.kind for items in found for item in items)
    counted = ", ".join(f"{kinds[kind]} {kind}" for kind in Kind)
    click.echo(f"{part}: {len(names)} commands: {counted}")
    for kind in Kind if words else (Kind.DIFFERENT, Kind.ADDED):
        where: dict[str, list[str]] = {}
        for name, items in zip(names, found, strict=True):
            for item in items:
                if item.kind is kind:
                    where.setdefault(re.sub(r"\[\d+\]", "[]", str(item)), []).append(name)
        for text, places in where.items():
            click.echo(f"  {kind}: {text} ({len(places)}×, first in {places[0]})")


@click.command()
@click.argument("first")
@click.argument("last", default="HEAD")
@click.option("--run", "runs", multiple=True, type=click.Path(path_type=Path, exists=True))
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="Compare this only.")
@click.option("--words", is_flag=True, help="Show changed prose, too.")
@click.option("--reparse", is_flag=True, help="Read the recorded runs' raw files again, by each.")
def main(
    first: str,
    last: str,
    runs: tuple[Path, ...],
    parts: tuple[str, ...],
    words: bool,
    reparse: bool,
) -> None:
    """Compare what FIRST and LAST print, each a commit or a folder; exits with 1 if they differ."""
    parts = parts or PARTS
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        trees = (tree_of(first, place / "first"), tree_of(last, place / "last"))
        checks = list(checks_of_version(trees, parts))
        if not {"tuning", "sweep", "help"}.issuperset(parts):
            checks += prepared(trees, place, runs, reparse)
        worst = 0
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for part in parts:
                of_part = [check for check in checks if check.part == part]
                found = list(pool.map(lambda check: check.found(trees), of_part))
                show(part, [check.name for check in of_part], found, words=words)
                if any(item.kind is Kind.DIFFERENT for items in found for item in items):
                    worst = 1
    sys.exit(worst)


def prepared(
    trees: tuple[Path, Path], place: Path, more: Sequence[Path], reparse: bool
) -> Iterator[Check]:
    """Make the runs, density run and fleet that both read, and yield the commands that read them.
    The recorded runs are those of the first version."""
    old = trees[0]
    results = place / "results"
    results.mkdir()
    versions = trees[1] / "tests/unit/fixtures/versions"
    archives = [*(old / "results").glob("*.tar.xz"), *versions.glob("*.tar.xz")]
    recorded = [unpacked(path, results) for path in sorted(archives)]
    folders = sorted(path for path in versions.glob("*") if path.is_dir())
    copied = [Path(shutil.copytree(path, results / path.name)) for path in (*folders, *more)]
    subjects = [(path, path) for path in (*recorded, *copied)]
    if reparse:
        copies = (place / "reparsed-first", place / "reparsed-last")
        subjects = [
            (reparsed(old, path, copies[0]), reparsed(trees[1], path, copies[1]))
            for path, _ in subjects
        ]
    made = [imported(old, results, seed) for seed in SEEDS]
    made += [imported(old, results, seed, "--interleaved") for seed in SEEDS]
    others = [*made, *doubtful(results / "example", results)]
    subjects += [(path, path) for path in others]
    yield from checks_of_runs(subjects, results, policies(place))
    density = density_run(place)
    yield Check("density", density.name, ("density", "--show", density, "--json"))
    # A report keeps tables in the fleet's folder, so that each version has its own.
    one = fleet(old, place / "fleet", [results / "example"] * 3)
    other = Path(shutil.copytree(one, place / "other" / one.name))
    for command in ("report", "advise"):
        arguments = ("fleet", command, one, "--json")
        yield Check("fleet", command, arguments, last=("fleet", command, other, "--json"))


if __name__ == "__main__":
    main()
