"""Some seconds of `make fuzz`: every target reads whole inputs, and reads or refuses altered ones,
as well as each input that crashed it once (tests/fuzz/corpus)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, scratch
from tests.fuzz.trying import Tried, altered_inputs, limits

CORPUS = Path(__file__).parents[1] / "fuzz/corpus"
INPUTS = 10


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
        for data in (*kept(name), *(next(inputs) for _ in range(INPUTS))):
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


def test_every_input_of_the_corpus_is_of_a_target_and_small() -> None:
    folders = {path.name for path in CORPUS.iterdir()}
    assert folders <= {name.replace(" ", "-") for name in TARGETS}
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) < 200 << 10
