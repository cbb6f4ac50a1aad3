"""Chunks of records, in which words look like records that are none, found in two ways."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from labctl.base.errors import BrokenError
from labctl.trace.perf.chain import Chunk, _Finder
from labctl.trace.perf.head import Head

SAMPLE, SWITCH, COMM, COMPRESSED, UNHEARD_OF = 9, 15, 3, 81, 200
KNOWN_IDS, UNKNOWN_ID = (5, 6, 9), 7
CHUNKS = 4000


def finder(*, switches: bool) -> _Finder:
    """Return one for samples of at least three and four words, and switches of three."""
    head = SimpleNamespace(
        where="perf.data",
        ids=(np.array(KNOWN_IDS, np.uint64), np.array([0, 1, 0], np.int16)),
        id_word=1,
        tid_word=1,
        time_word=1,
        cpu_word=2,
        trailer={1: 1},
        attrs=[SimpleNamespace(raw_word=2), SimpleNamespace(raw_word=3)],
        has_switches=switches,
    )
    return _Finder(cast(Head, head))


def header(kind: int, words: float) -> int:
    return kind | int(8 * words) << 48


def record(chance: random.Random) -> list[int]:
    """Return a record's words, some of which look like headers."""
    kind = chance.choices((SAMPLE, SWITCH, COMM, 0), (50, 25, 22, 3))[0]
    if kind == SAMPLE:
        size = chance.choice((4, 5, 6))
        id_ = UNKNOWN_ID if chance.random() < 0.02 else chance.choice(KNOWN_IDS)
        words = [header(SAMPLE, size), id_, *[0] * (size - 2)]
    elif kind == SWITCH:
        words = [header(SWITCH, 3), 0, 0]
    elif kind == COMM:
        size = chance.choice((1, 2, 3, 6))
        words = [header(COMM, size), *[0] * (size - 1)]
    else:
        kind = chance.choice((0, COMPRESSED, UNHEARD_OF, SAMPLE, SWITCH))
        words = [header(kind, chance.choice((2, 1.5, 0, 1))), 0]
    for place in range(2 if kind == SAMPLE else 1, len(words)):
        if chance.random() < 0.12:
            alike = chance.choice((SAMPLE, SAMPLE, SWITCH, COMM, COMPRESSED))
            words[place] = header(alike, chance.choice((1, 2, 3, 4, 5, 3.5)))
        elif chance.random() < 0.05:
            words[place] = chance.choice((*KNOWN_IDS, SWITCH))
    return words


@pytest.mark.parametrize("seed", [1, 2])
def test_a_chunk_of_nearly_only_usual_records_is_found_as_any_other(seed: int) -> None:
    chance = random.Random(seed)
    taken = 0
    for _ in range(CHUNKS):
        records = [record(chance) for _ in range(chance.randint(1, 12))]
        stream = [word for one in records for word in one]
        cut = chance.randint(0, 6) if chance.random() < 0.6 else 0
        words = np.array(stream[: max(1, len(stream) - cut)], np.uint64)
        kinds = words.astype(np.uint32)
        own = finder(switches=chance.random() < 0.8)
        found = own._nearly_all_usual(words, kinds, 0)
        if found is None:
            continue
        taken += 1
        try:
            expected = own._any(words, kinds, 0)
        except BrokenError as error:
            pytest.fail(f"{stream} is broken: {error.message}")
        assert told(*found) == told(*expected), stream
    assert taken > CHUNKS / 2


def told(chunk: Chunk, used: int) -> tuple[object, ...]:
    columns = (chunk.samples, chunk.ends, chunk.events, chunk.switches)
    return used, [(one.dtype, one.tolist()) for one in columns], [*chunk.others]
