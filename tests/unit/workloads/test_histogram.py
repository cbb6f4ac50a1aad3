import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.workloads.histogram import Bin, Histogram, histogram, latency_readings
from tests.unit.workloads.trials import reasons, values


def _of(counts: dict[float, int], beyond: int = 0) -> Histogram:
    bins = (Bin(middle, 0.1, count) for middle, count in counts.items())
    return histogram(bins, source="x", beyond=beyond)


def test_a_percentile_is_the_middle_of_the_bin_that_holds_its_rank() -> None:
    latencies = _of({3.0: 5, 1.0: 90, 2.0: 5})
    assert [latencies.quantile(q).middle_s for q in (0.5, 0.9, 0.91, 0.951)] == [1, 1, 2, 3]  # type: ignore[union-attr]


def test_rounding_does_not_move_a_rank() -> None:
    found = _of({1.0: 7, 2.0: 93}).quantile(0.07)  # 0.07 * 100 is 7.000000000000001
    assert found is not None
    assert found.middle_s == 1.0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200), st.floats(0.01, 0.999))
def test_a_percentile_has_no_more_than_its_share_of_samples_below(
    samples: list[int], q: float
) -> None:
    latencies = histogram((Bin(float(s), 1.0, 1) for s in samples), source="x")
    found = latencies.quantile(q)
    assert found is not None
    assert sum(s < found.middle_s for s in samples) < q * len(samples) + 1e-6
    assert sum(s <= found.middle_s for s in samples) >= q * len(samples) - 1e-6


@pytest.mark.parametrize(("count", "available"), [(399, False), (400, True)])
def test_a_p95_takes_twenty_samples_beyond_it(count: int, available: bool) -> None:
    readings = list(latency_readings(_of({1.0: count}), 1.0))
    assert ("latency_p95" in values(readings)) is available
    assert ("latency_p95" in reasons(readings)) is not available


def test_the_reason_names_how_many_samples_a_percentile_takes() -> None:
    readings = list(latency_readings(_of({1.0: 500}), 1.0))
    assert "500 samples, but" in reasons(readings)["latency_p99"]
    assert "2000" in reasons(readings)["latency_p99"]
    assert "20000" in reasons(readings)["latency_p999"]


def test_a_percentile_beyond_the_last_bin_is_unavailable_and_not_the_last_bin() -> None:
    readings = list(latency_readings(_of({1.0: 900}, beyond=100), 7.0))
    assert values(readings)["latency_p50"] == 1.0
    assert "100 samples lie beyond" in reasons(readings)["latency_p95"]
    assert values(readings)["latency_max"] == 7.0


def test_the_width_of_the_bin_stands_beside_each_percentile() -> None:
    readings = list(latency_readings(_of({2.0: 400}), 2.0))
    assert values(readings)["bin_width{of=latency_p95}"] == pytest.approx(0.05)
    assert "bin_width{of=latency_p99}" not in values(readings)
