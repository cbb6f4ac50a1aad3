"""Some seconds of `make fuzz`: every target reads whole inputs, and reads or refuses altered ones,
as well as each input that crashed it once (tests/fuzz/corpus)."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labctl.workloads.readers.matching import Matches
from tests.fuzz.match_server import matching_quickly
from tests.fuzz.targets import TARGETS, scratch
from tests.fuzz.trying import Tried, altered_inputs, limits

CORPUS = Path(__file__).parents[1] / "fuzz/corpus"
INPUTS = 10
OF_CHEAP = {"journal": 320, "journal-lines": 320, "trials-csv": 320}
"""More inputs for files that labctl must not lose and that people write by hand."""


def kept(name: str) -> list[bytes]:
    """The inputs that crashed a target once."""
    return [path.read_bytes() for path in sorted((CORPUS / name.replace(" ", "-")).glob("*"))]


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_reads_or_refuses_what_it_is_given(name: str) -> None:
    target = TARGETS[name]
    with scratch() as place, limits():
        tried = Tried(name, target, place)
        seeds = target.seeds()
        for data in seeds:
            tried.try_one(data)
        assert tried.accepted, "no whole input is read"
        inputs = altered_inputs(target, random.Random(name), seeds)
        for data in (*kept(name), *(next(inputs) for _ in range(OF_CHEAP.get(name, INPUTS)))):
            tried.try_one(data)
    assert tried.told == {}


def test_a_crash_is_noticed_and_kept(tmp_path: Path) -> None:
    tried = Tried("json", TARGETS["json"], tmp_path / "place")
    tried.place.mkdir()
    whole = tried.target.read
    object.__setattr__(tried.target, "read", lambda data, place: {}[data])
    try:
        assert tried.try_one(b"x") == tried.try_one(b"y")
    finally:
        object.__setattr__(tried.target, "read", whole)
    (kind,) = tried.crashes
    assert kind.startswith("KeyError in ")
    tried.keep(tmp_path / "kept")
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} == {"", ".txt"}


def test_the_server_of_patterns_answers_as_a_new_child_does() -> None:
    whole = [(r"(\d+) ms", "1 ms\n22 ms"), (r"(?P<a>x)|y", "xy"), ("[", "x"), ("x", "\udcff x")]
    with matching_quickly():
        quick = Matches(whole)
    assert quick._found == Matches(whole)._found
    assert [one.groups for one in quick.of(*whole[0])] == [{"value": "1"}, {"value": "22"}]


def test_a_campaign_counts_the_inputs_of_each_target(tmp_path: Path) -> None:
    words = ["--seconds", "0.5", "--target", "elf", "--target", "json", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words],
        cwd=CORPUS.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.startswith("2 targets, inputs altered ")
    counts = [re.fullmatch(r"(elf|json) +([\d,]+) inputs, +[\d,]+ accepted, .*", x) for x in lines]
    assert all(found and int(found[2].replace(",", "")) > 0 for found in counts), lines
    assert len(lines) == 2


def test_every_input_of_the_corpus_is_of_a_target_and_small() -> None:
    folders = {path.name for path in CORPUS.iterdir()}
    assert folders <= {name.replace(" ", "-") for name in TARGETS}
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) < 200 << 10
