from __future__ import annotations

import math
import random

import pytest

from labctl.analysis.times import exit_cost, median_interval, price
from labctl.store.exit_prices import Price

TSC_HZ = 2e9


def priced(**changes: object) -> Price:
    given = {
        "to_qemu": False,
        "cycles": [3000.0 + n for n in range(30)],
        "alone": [2.0 + n / 100 for n in range(30)],
        "exits_per_op": 1.0,
        "tsc_hz": TSC_HZ,
    }
    return price("cpuid", "cpuid", "CPUID", **{**given, **changes})  # type: ignore[arg-type]


def of(reason: str, ns: float, *, kind: str = "k", to_qemu: bool = False) -> Price:
    return Price(
        kind=kind,
        what="",
        reason=reason,
        to_qemu=to_qemu,
        ns=ns,
        low_ns=0.9 * ns,
        high_ns=1.1 * ns,
        exits_per_op=1.0,
    )


def test_a_price_is_what_the_instruction_takes_beyond_the_loop_in_nanoseconds() -> None:
    found = priced()
    assert found.ns == pytest.approx((3014.5 - 2.145) / 2)
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.low_ns < found.ns < found.high_ns


def test_an_instruction_that_makes_two_exits_costs_half_for_each() -> None:
    one, two = priced().ns, priced(exits_per_op=2.0).ns
    assert one is not None
    assert two == pytest.approx(one / 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exits_per_op": 0.01}, "no VM exit"),
        ({"tsc_hz": None}, "time-stamp counter"),
        ({"cycles": [2.1] * 30}, "no longer than the loop alone"),
        ({"problem": "QEMU ended.", "cycles": (), "alone": ()}, "QEMU ended."),
    ],
)
def test_what_has_no_price_says_why_and_is_not_free(changes: dict[str, object], said: str) -> None:
    found = priced(**changes)
    assert found.ns is None
    assert said in found.problem


def test_an_interval_of_the_median_holds_it_as_often_as_it_says() -> None:
    rng = random.Random(5)
    held = 0
    for _ in range(2000):
        _, low, high = median_interval([rng.expovariate(1.0) for _ in range(30)])
        held += low <= math.log(2) <= high
    assert 0.97 <= held / 2000 <= 0.995


def test_an_interval_of_few_values_is_their_whole_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)


def test_exits_at_their_prices_add_up_and_idle_time_is_left_out() -> None:
    cost = exit_cost(
        {"CPUID": 1000.0, "HLT": 5000.0, "VMCALL": 500.0},
        {},
        [of("CPUID", 1000.0), of("VMCALL", 2000.0), of("HLT", 1e9)],
    )
    assert cost is not None
    assert cost.typical == pytest.approx(0.002)
    assert cost.low == pytest.approx(0.0018)
    assert cost.high == pytest.approx(0.0022)
    assert cost.priced == 1.0


def test_what_goes_on_to_qemu_costs_what_that_costs() -> None:
    prices = [of("IO", 1000.0), of("IO", 10_000.0, kind="io-qemu", to_qemu=True)]
    cost = exit_cost({"IO": 100.0}, {"IO": 40.0}, prices)
    assert cost is not None
    assert cost.typical == pytest.approx((60 * 1000 + 40 * 10_000) / 1e9)


def test_a_reason_with_two_prices_costs_something_between_them() -> None:
    cost = exit_cost({"msr": 100.0}, {}, [of("msr", 1000.0), of("msr", 3000.0)])
    assert cost is not None
    assert (cost.low, cost.typical, cost.high) == pytest.approx((9e-5, 2e-4, 3.3e-4))


def test_reasons_without_a_price_are_named_and_counted_out() -> None:
    exits = {"CPUID": 100.0, "EXTERNAL_INTERRUPT": 250.0, "PAUSE": 50.0}
    cost = exit_cost(exits, {}, [of("CPUID", 1000.0)])
    assert cost is not None
    assert cost.unpriced == ("EXTERNAL_INTERRUPT", "PAUSE")
    assert cost.priced == pytest.approx(0.25)
    assert exit_cost({"PAUSE": 5.0}, {}, [of("CPUID", 1000.0)]) is None
    assert exit_cost({}, {}, [of("CPUID", 1000.0)]) is None
