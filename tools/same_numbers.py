"""Compare what two versions of labctl report of the same runs.

`python -m tools.same_numbers FIRST [LAST] [--run FOLDER]... [--reparse]` reports the recorded
example, the runs of older versions, copies of the example that lack or doubt something, and
imported runs of known effects by the code of both commits, and compares their JSON: numbers, codes,
order and missing values must be the same. Sentences may differ, and so may the names of keys where
`RENAMED` lists them. What only the later version says is counted and shown, and is no difference.
With `--reparse` each code first reads the raw files of the recorded runs again.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from labctl.store.run_places import find_run

SEEDS = (11, 23, 47)
EFFECTS = {"baseline": 1.0, "control": 1.0, "handicap": 0.93, "pinned": 1.08, "noisy": 1.0}
"""Factors on the throughput of the imported runs' arms."""
BLOCKS = 12
REPORTED = (("report", "--json"), ("report", "--csv"))

RENAMED: dict[str, str] = {
    "handicap": "known_loss",
}
"""Names of keys, and of a check, in the JSON reports by their old name (docs/upgrading.md)."""
VERSIONS = frozenset({"schema", "labctl"})
"""Keys that differ between two versions by their meaning."""


def differences(first: Any, last: Any, place: str = "") -> Iterator[tuple[str, bool]]:
    """Yield each place where two reports differ, and whether it was only added."""
    if isinstance(first, dict) and isinstance(last, dict):
        old = {RENAMED.get(str(key), str(key)): value for key, value in first.items()}
        for key in sorted((old.keys() | last.keys()) - VERSIONS):
            inner = f"{place}.{key}" if place else key
            if key not in last:
                yield f"{inner} is gone", False
            elif key not in old:
                yield f"{inner} is new", True
            else:
                yield from differences(old[key], last[key], inner)
        shared = [key for key in old if key in last]
        if shared != [key for key in last if key in old]:
            yield f"{place or 'the report'}: its keys have another order", False
    elif isinstance(first, list) and isinstance(last, list):
        if len(first) != len(last):
            more = len(last) > len(first) and all(is_sentence(item) for item in last)
            yield f"{place} has {len(last)} items for {len(first)}", more
        for number, (one, other) in enumerate(zip(first, last, strict=False)):
            yield from differences(one, other, f"{place}[{number}]")
    elif is_sentence(first) and is_sentence(last):
        return
    elif type(first) is not type(last) or (first != last and RENAMED.get(str(first)) != last):
        yield f"{place} is {last!r} for {first!r}", False


def is_sentence(value: Any) -> bool:
    """Tell words from codes and names, which hold no space."""
    return isinstance(value, str) and " " in value


@contextmanager
def checked_out(commit: str, beside: Path) -> Iterator[Path]:
    """Check a commit out into a folder that goes again afterwards."""
    folder = beside / f"labctl-{commit[:12]}"
    subprocess.run(["git", "worktree", "add", "-q", "--detach", folder, commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", folder], check=True)


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


def reparsed(tree: Path, run: Path) -> Path:
    """Return a copy of a run whose samples a tree's labctl has read from the raw files again."""
    copy = Path(shutil.copytree(run, tree.with_name(f"{tree.name}-runs") / run.name))
    done = labctl(tree, "run", "reparse", copy)
    if done.returncode != 0:
        said = done.stderr.strip().rpartition("\n")[2]
        click.echo(f"{run.name}: 'run reparse' ends with {done.returncode}: {said}")
    return copy


def reported(tree: Path, run: Path, command: tuple[str, ...]) -> Any:
    """Return what a tree's labctl reports of a run: JSON as it is, CSV as rows, or its refusal's
    exit status."""
    name, *options = command
    done = labctl(tree, name, run, *options)
    if done.returncode != 0:
        return {"exit status": done.returncode}
    if "--json" in options:
        return json.loads(done.stdout)
    return list(csv.DictReader(done.stdout.splitlines()))


@click.command()
@click.argument("first")
@click.argument("last", default="HEAD")
@click.option("--run", "runs", multiple=True, type=click.Path(path_type=Path, exists=True))
@click.option("--reparse", is_flag=True, help="Read the recorded runs' raw files again, by each.")
def main(first: str, last: str, runs: tuple[Path, ...], reparse: bool) -> None:
    """Compare the reports of FIRST's and LAST's code; exits with 1 where they differ."""
    worst = 0
    with (
        tempfile.TemporaryDirectory() as temporary,
        checked_out(first, Path(temporary)) as old,
        checked_out(last, Path(temporary)) as new,
    ):
        results = Path(temporary) / "results"
        results.mkdir()
        # Both read the same folders: the recorded run of the first commit.
        with find_run(old / "results", "example").unpacked() as recorded:
            example = Path(shutil.copytree(recorded.path, results / "example"))
        versions = sorted(new.glob("tests/unit/fixtures/versions/*/"))
        recorded_runs = [
            example,
            *(shutil.copytree(path, results / path.name) for path in versions if path.is_dir()),
            *(shutil.copytree(path, results / path.name) for path in runs),
        ]
        others = [
            *doubtful(example, results),
            *(imported(old, results, seed) for seed in SEEDS),
            *(imported(old, results, seed, "--interleaved") for seed in SEEDS),
        ]
        trees = (old, new)
        subjects = [(path, (path, path)) for path in others]
        for path in recorded_runs:
            copies = [reparsed(tree, path) for tree in trees] if reparse else [path, path]
            subjects.append((path, (copies[0], copies[1])))
        for path, folders in subjects:
            for command in REPORTED:
                pairs = zip(trees, folders, strict=True)
                one, other = (reported(tree, folder, command) for tree, folder in pairs)
                found = list(differences(one, other))
                wrong = [place for place, added in found if not added]
                worst = worst or int(bool(wrong))
                click.echo(
                    f"{path.name}, {' '.join(command)}: "
                    f"{len(wrong)} differences, {len(found) - len(wrong)} added"
                )
                for place in wrong[:10]:
                    click.echo(f"  {place}")
    sys.exit(worst)


if __name__ == "__main__":
    main()
