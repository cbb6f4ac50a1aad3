"""Fleets whose truth is known: are hosts alike left alone, and slow ones found?

With fewer fleets than `make calibrate ARGS='--only fleets'`, whose table is in docs/calibration.md.
Limits are such that what keeps its promise fails under fewer than one seed in a thousand.
"""

from __future__ import annotations

import pytest

from tools.calibrate.fleet_tests import rejecting
from tools.calibrate.fleets import KINDS, MEAN_LEAST, NAMED_LIMIT, NEW_LEAST, simulated
from tools.calibrate.rates import SURE

SEED = 20
FLEETS = 250
PROMISED = [kind.name for kind in KINDS.values() if kind.is_promised]


@pytest.mark.parametrize("name", PROMISED)
@pytest.mark.parametrize(("hosts", "boots"), [(5, 3), (10, 5), (30, 3)])
def test_hosts_alike_are_seldom_named_and_intervals_hold(name: str, hosts: int, boots: int) -> None:
    found = simulated(name, hosts, boots, FLEETS, SEED)
    assert found.named.lower_limit(SURE) <= NAMED_LIMIT
    assert found.mean.limit(SURE) >= MEAN_LEAST
    assert found.new.limit(SURE) >= NEW_LEAST
    if not KINDS[name].tau:
        assert found.differ.lower_limit(SURE) <= NAMED_LIMIT


@pytest.mark.parametrize(("hosts", "least"), [(4, 0.9), (5, 0.97), (10, 0.99)])
@pytest.mark.parametrize("name", ["alike", "3 % apart"])
def test_a_host_at_half_speed_is_named(name: str, hosts: int, least: float) -> None:
    found = simulated(name, hosts, 5, FLEETS, SEED)
    assert found.slow.limit(SURE) >= least


def test_hosts_that_differ_by_as_much_as_matters_are_called_different() -> None:
    found = simulated("3 % apart", 30, 10, FLEETS, SEED)
    assert found.differ.share > 0.9


def test_of_the_tests_of_hosts_alike_only_f_star_holds_with_many_hosts() -> None:
    found = rejecting("a boot each block", 100, FLEETS, SEED)
    assert found["F*"].lower_limit(SURE) <= NAMED_LIMIT
    assert found["Welch"].share > found["F*"].share
    assert found["Q (chi²)"].share > 0.3


def test_no_test_holds_with_one_boot_per_host() -> None:
    found = rejecting("one boot, of 2 %", 10, FLEETS, SEED)
    assert all(rate.lower_limit(SURE) > NAMED_LIMIT for rate in found.values())
