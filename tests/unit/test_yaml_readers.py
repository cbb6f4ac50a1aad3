"""Every reader of YAML, on files that were altered at random: it reads them or says what is wrong,
and never breaks."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.analysis.gate.policy import load_policy
from labctl.base.errors import LabctlError
from labctl.base.paths import data_files, shipped_data
from labctl.base.tuning import Kind
from labctl.base.units import Better, Unit
from labctl.cli.workload import facts_of, found_workload
from labctl.collect import neighbour
from labctl.domain.render import render
from labctl.guest.recipe import load_recipe
from labctl.store.samples import Sample
from labctl.store.trial import TrialFolder
from labctl.study.conditions import load_condition
from labctl.study.load_study import load_study
from labctl.study.make_plan import make_plan
from labctl.study.published_file import read_published
from labctl.study.tunings import load_tuning, load_tunings
from labctl.workloads.registry import checkers, workload
from tests.unit.domain import hosts
from tests.unit.workloads.trials import recorded

STRESS_NG_FORK = workload("stress-ng-fork")

Read = Callable[[Path], object]

ALTERED = 150
"""Variants of each file."""

_TOKENS = (
    *("null", "~", "", "yes", "[]", "{}", "[[]]", "- - -", "1", "-1", "0x_", "1e999", ".nan"),
    *("9" * 90, "9" * 4400, "2026-02-30", "2026-11-22", "!!float zz", "!!int x", "!foo bar"),
    *("&a [*a]", "*none", "'", '"', "|", ">-", "<<: 1", "<<: {a: 1}", "? [a]"),
    *("---", "...", "%TAG"),
    *("[" * 1500, "- " * 40, "{a: " * 40, "\0", "\x1b[31m", "\u2028", "\ufeff", "\t", ": :", "#"),
    *("0-99999999999", "../../etc/passwd", "a" * 100_000, "pinned+pinned", "true", "{1: 2}"),
)  # fmt: skip


def altered(text: str, seed: str) -> bytes:
    """The text with one to four changes, as people and programs make them."""
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 4)):
        text = chance.choice(_CHANGES)(text, chance)
    data = bytearray(text.encode())
    if data and chance.random() < 0.1:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def _value_replaced(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    keyed = [number for number, line in enumerate(lines) if ":" in line]
    if keyed:
        number = chance.choice(keyed)
        lines[number] = f"{lines[number].partition(':')[0]}: {chance.choice(_TOKENS)}"
    return "\n".join(lines) + "\n"


def _key_replaced(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    keyed = [number for number, line in enumerate(lines) if ":" in line]
    if keyed:
        number = chance.choice(keyed)
        before, _, after = lines[number].partition(":")
        indent = " " * (len(before) - len(before.lstrip()))
        lines[number] = f"{indent}{chance.choice(_TOKENS)}:{after}"
    return "\n".join(lines) + "\n"


def _lines_moved(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    if lines:
        line = lines.pop(chance.randrange(len(lines)))
        if chance.random() < 0.7:
            lines.insert(chance.randint(0, len(lines)), f"{' ' * chance.randint(0, 4)}{line}")
    return "\n".join(lines) + "\n"


def _cut(text: str, chance: random.Random) -> str:
    return text[: chance.randint(0, len(text))]


def _inserted(text: str, chance: random.Random) -> str:
    at = chance.randint(0, len(text))
    return f"{text[:at]}{chance.choice(_TOKENS)}{text[at:]}"


_CHANGES = (_value_replaced, _value_replaced, _key_replaced, _lines_moved, _cut, _inserted)


def _study(path: Path) -> None:
    study = load_study(str(path), programs=checkers())
    make_plan(study, load_tunings(study.tunings), seed=1, host_digest="", skipped={})


def _tuning(path: Path) -> None:
    tuning = load_tuning(path.stem)
    if tuning.kind is Kind.GUEST:
        render(hosts.request(tuning))


def _recipe(path: Path) -> None:
    assert load_recipe(path.stem).digest


def _published(path: Path) -> None:
    study = load_study("nested-overhead", programs=checkers())
    read_published(
        path, tunings=study.tunings, workloads=study.workloads, conditions=study.conditions
    )


def _workload(path: Path) -> None:
    facts_of(found_workload(str(path)))


def _condition(path: Path) -> None:
    load_condition(str(path), checkers())


def _fork(path: Path) -> None:
    text = path.read_bytes().decode(errors="replace")
    STRESS_NG_FORK.window_rates("", {"stress-ng.yaml": text.encode()})


def _hog(path: Path) -> None:
    text = path.read_bytes().decode(errors="replace")
    folder = TrialFolder(path.parent)
    folder.write_raw_json(neighbour.RAW, {"hogs": [{neighbour.OUTPUT: text}]})
    cpu = Sample(
        metric="host_cpu",
        labels={"thread": "neighbour"},
        value=1.0,
        unit=Unit.CPUS,
        better=Better.LOWER,
        source="x",
    )
    list(neighbour.neighbour_readings(folder, [cpu]))


def _of(kind: str, name: str) -> str:
    return data_files(kind)[name].read_text()


_POLICY = """\
undecided: open
rules:
  - tuning: pinned*
    metric: latency_p95
    against: baseline
    worse_by_at_most: 5 %
  - name: like the first
    metric: exits{reason=HLT}
    like: 20260101-pinning
    within: 10
    undecided: fail
  - facts: all
    like: 20260101-pinning
"""
READERS: dict[str, tuple[str, str, Read]] = {
    "study": ("benchmarks/mine.yaml", _of("benchmarks", "pinning"), _study),
    "study-that-repeats": ("benchmarks/mine.yaml", _of("benchmarks", "nested-overhead"), _study),
    "tuning": ("domains/mine.yaml", _of("domains", "pinned+fifo+iothreads"), _tuning),
    "tuning-of-the-guest": ("domains/mine.yaml", _of("domains", "guest-tick"), _tuning),
    "baseline": ("domains/baseline.yaml", _of("domains", "baseline"), _tuning),
    "recipe": ("guest-images/mine.yaml", _of("guest-images", "debian-13"), _recipe),
    "cloud-recipe": ("guest-images/mine.yaml", _of("guest-images", "fedora-43-cloud"), _recipe),
    "published": (
        "published.yaml",
        (shipped_data() / "benchmarks/published/nested-overhead.yaml").read_text(),
        _published,
    ),
    "workload": (
        "benchmarks/workloads/mine.yaml",
        _of("benchmarks/workloads", "pgbench"),
        _workload,
    ),
    "condition": (
        "benchmarks/conditions/mine.yaml",
        _of("benchmarks/conditions", "noisy-guests"),
        _condition,
    ),
    "policy": ("policy.yaml", _POLICY, load_policy),
    "stress-ng": (
        "stress-ng.yaml",
        recorded("stress-ng-0.15.06-fork-tcg-guest.yaml"),
        _fork,
    ),
    "hog": (
        "hog.yaml",
        json.loads(recorded("stress-ng-0.15.06-hog.json"))["hog.yaml"],
        _hog,
    ),
}


@pytest.fixture(params=READERS)
def reader(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path, str, Read]:
    """The name of a reader, the file that it reads in a lab folder, what belongs into it, and the
    reader."""
    where, text, read = READERS[request.param]
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    (tmp_path / where).parent.mkdir(exist_ok=True, parents=True)
    beside = "benchmarks/published"
    shutil.copytree(shipped_data() / beside, tmp_path / beside)
    return request.param, tmp_path / where, text, read


def test_an_altered_file_is_read_or_refused_by_labctls_own_error(
    reader: tuple[str, Path, str, Read],
) -> None:
    name, path, text, read = reader
    refused = 0
    for number in range(ALTERED):
        path.write_bytes(altered(text, f"{name}/{number}"))
        try:
            read(path)
        except LabctlError:
            refused += 1
        except Exception as error:
            error.add_note(f"variant {number}")
            raise
    assert refused > ALTERED // 4


def test_a_file_as_it_is_is_read(reader: tuple[str, Path, str, Read]) -> None:
    _, path, text, read = reader
    path.write_text(text)
    read(path)
