from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from labctl.base.quantities import (
    BIT_RATE,
    DELAY,
    PERCENT,
    SIZE,
    TIME,
    Kind,
    near_unit,
    quantity,
    scale_of,
)
from labctl.base.units import Unit
from labctl.base.yaml import FileModel


class Some(FileModel):
    wait_s: Annotated[float, Field(ge=0.1, le=60), TIME] = 1
    memory_mib: Annotated[int, Field(ge=256), SIZE] | None = None


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        (TIME, "10", 10),
        (TIME, "1e1", 10),
        (TIME, "10s", 10),
        (TIME, " 3 ms ", 0.003),
        (TIME, "300ms", 0.3),
        (TIME, "2.5 us", 2.5e-6),
        (TIME, "7ns", 7e-9),
        (TIME, "10m", 600),
        (TIME, "2 min", 120),
        (TIME, "1H", 3600),
        (SIZE, "512", 512),
        (SIZE, "2G", 2048),
        (SIZE, "2g", 2048),
        (SIZE, "512 MiB", 512),
        (SIZE, "1 TiB", 2**20),
        (SIZE, "1048576k", 1024),
        (SIZE, "1048576 bytes", 1),
        (PERCENT, "5", 5),
        (PERCENT, "5 %", 5),
        (PERCENT, "0.5%", 0.5),
        (BIT_RATE, "1 Gbit/s", 1000),
        (BIT_RATE, "500kbit/s", 0.5),
        (DELAY, "20 ms", 20),
        (DELAY, "0.1s", 100),
    ],
)
def test_a_number_with_a_unit_is_one_in_the_unit_of_a_bare_number(
    kind: Kind, text: str, number: float
) -> None:
    assert kind.read(text) == number


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (TIME, "soon", "a bare number: seconds"),
        (TIME, "2G", "expected a time such as 10s, 3 ms or 10m"),
        (TIME, "nan", "got 'nan'"),
        (TIME, "1e9999", "expected a time"),
        (TIME, "1 s s", "expected a time"),
        (TIME, "9" * 200, "expected a time"),
        (SIZE, "10s", r"a bare number: MiB"),
        (PERCENT, "5 s", "expected a percentage such as 5 %"),
    ],
)
def test_another_text_is_refused_with_the_unit_that_is_meant(
    kind: Kind, text: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        kind.read(text)


def test_a_size_that_is_no_whole_number_of_mib_says_what_it_is() -> None:
    assert SIZE.whole("1.5G") == 1536
    with pytest.raises(ValueError, match=r"expected whole MiB, got '2GB' \(1907.35\)"):
        SIZE.whole("2GB")


def test_a_key_of_a_file_holds_the_same_number_with_and_without_a_unit() -> None:
    plain = Some.model_validate({"wait_s": 0.5, "memory_mib": 2048})
    assert Some.model_validate({"wait_s": "500 ms", "memory_mib": "2G"}) == plain
    assert isinstance(plain.memory_mib, int)


@pytest.mark.parametrize("given", [{"wait_s": "5"}, {"wait_s": "2h"}, {"memory_mib": "1 MiB"}])
def test_a_key_keeps_its_limits_and_takes_no_number_in_quotes(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Some.model_validate(given)


@pytest.mark.parametrize(
    ("word", "near"),
    [("mb/s", "MB/s"), ("MS", "ms"), ("Mb/s", "Mbit/s"), ("MB/s", None), ("Mops/s", None)],
)
def test_a_unit_that_differs_in_case_from_one_of_labctl_s_is_told(
    word: str, near: str | None
) -> None:
    assert near_unit(word) == near


def test_words_of_the_field_are_labctl_s_units() -> None:
    assert scale_of("ops/s") == scale_of("1/s")
    assert scale_of("msecs") == scale_of("ms")
    assert scale_of("Mops/s").unit is Unit("Mops/s")
    assert quantity("55ms")[1] == scale_of("ms")
