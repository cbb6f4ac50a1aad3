"""A limit as people write it, held against the metrics that a workload has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.base.errors import UsageError
from labctl.base.units import Unit
from labctl.run.planning.density import limit_of
from labctl.store.density_record import Bound
from labctl.workloads.registry import workload

FRAMES = workload("frame-loop")


@pytest.mark.parametrize(
    ("text", "bound", "value"),
    [
        ("frame_p95 < 16 ms", Bound.BELOW, 0.016),
        ("frame_p95<=16ms", Bound.AT_MOST, 0.016),
        ("  frame_p95  <  16000 us ", Bound.BELOW, 0.016),
        ("frame_p95 < 1.6e-2s", Bound.BELOW, 0.016),
    ],
)
def test_a_limit_is_read(text: str, bound: Bound, value: float) -> None:
    found = limit_of(text, FRAMES)
    assert (found.metric, found.bound, found.unit) == ("frame_p95", bound, Unit.SECONDS)
    assert found.value == pytest.approx(value)
    assert str(found) == f"frame_p95 {bound} 16.0 ms"


def test_a_share_may_be_a_number_or_percent() -> None:
    assert limit_of("late < 5%", FRAMES).value == pytest.approx(0.05)
    assert limit_of("late < 0.05", FRAMES).value == pytest.approx(0.05)


def test_a_rate_has_a_least() -> None:
    found = limit_of("events_per_s >= 500 1/s", workload("sysbench-cpu"))
    assert (found.bound, found.value) == (Bound.AT_LEAST, 500)
    assert found.worst([700, 400, 900]) == 400
    assert not found.holds(499)
    assert found.holds(500)


def test_the_worst_of_an_upper_limit_is_the_largest() -> None:
    found = limit_of("frame_p95 < 16 ms", FRAMES)
    assert found.worst([0.001, 0.017]) == 0.017
    assert not found.holds(0.016)
    assert limit_of("frame_p95 <= 16 ms", FRAMES).holds(0.016)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("frame_p95", "expected a limit"),
        ("frame_p95 = 16 ms", "expected a limit"),
        ("frame_p95 < 16 ms < 20 ms", "expected a limit"),
        ("16 ms > frame_p95", "expected a limit"),
        ("", "expected a limit"),
        ("frame_p95 < ", "expected a limit"),
        ("frame_p95 < fast", "expected a number with a unit, such as '55ms', got"),
        ("frame_p95 < 16 parsecs", "is not a value of 'frame_p95'"),
        ("frame_p95 < 16", "has no unit"),
        ("frame_p95 < 16 MB/s", "is not a value of 'frame_p95'"),
        ("frame_p95 > 16 ms", "is better lower"),
    ],
)
def test_what_is_none_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        limit_of(text, FRAMES)


def test_another_metric_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="has no metric 'latency_p95'") as caught:
        limit_of("latency_p95 < 16 ms", FRAMES)
    assert caught.value.hint is not None
    assert "Did you mean 'frame_p95'?" in caught.value.hint
    assert "wake_up_p95" in caught.value.hint


@given(st.text(max_size=60))
def test_no_text_does_worse_than_being_refused(text: str) -> None:
    try:
        assert limit_of(text, FRAMES).metric
    except UsageError:
        pass
