import re
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.trials import recorded, trial, values

RANDOM_ACCESS = workload("random-access")

NATIVE = "sysbench-1.0.20-random-access.txt"
GUEST = "sysbench-1.0.20-random-access-tcg-guest.txt"


def _setting(vcpus: int = 1, **parameters: object) -> Setting:
    checked = RANDOM_ACCESS.check_parameters(parameters)
    return Setting(parameters=checked, vcpus=vcpus, duration_s=2)


@pytest.mark.parametrize("name", [NATIVE, GUEST])
def test_the_rate_is_events_over_sysbench_s_own_time(tmp_path: Path, name: str) -> None:
    text = recorded(name)
    found = values(list(RANDOM_ACCESS.parse(trial(tmp_path, stdout_txt=text))))
    events = int(re.findall(r"total number of events:\s+(\d+)", text)[0])
    seconds = float(re.findall(r"total time:\s+([\d.]+)s", text)[0])
    assert found["operations"] == events
    assert found["events_per_s"] == pytest.approx(events / seconds)


@pytest.mark.parametrize("text", ["", recorded(NATIVE)[:700], "\0\1"])
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BrokenError, match=r"stdout\.txt.*expected"):
        list(RANDOM_ACCESS.parse(trial(tmp_path, stdout_txt=text)))


@pytest.mark.parametrize(("vcpus", "expected"), [(1, 512), (2, 256), (3, 128), (4, 128), (600, 1)])
def test_threads_share_the_set_in_powers_of_two(vcpus: int, expected: int) -> None:
    assert f"--set_mib={expected}" in RANDOM_ACCESS.command(_setting(vcpus)).argv


def test_a_set_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a power of two from 1 to 4096"):
        _setting(set_mib=600)


@pytest.mark.parametrize("mib", [1, 16])
def test_its_order_visits_every_word_of_the_set_once(mib: int) -> None:
    """The script's own numbers: an odd increment and a multiplier of 1 modulo 4 give a full period
    modulo a power of two (Hull and Dobell 1962), and nearly every step goes to another page."""
    script = RANDOM_ACCESS.command(_setting()).argv[3]
    multiplier, increment = map(int, re.findall(r"i \* (\d+) \+ (\d+) \+ set\[i\]", script)[0])
    assert increment % 2 == 1
    assert multiplier % 4 == 1
    words = mib * 2**20 // 4
    at, pages, seen = 0, 0, set()
    for _ in range(5000):
        after = (at * multiplier + increment) % words
        pages += after // 1024 != at // 1024
        seen.add(after)
        at = after
    assert len(seen) == 5000
    assert pages > 4900
    # Exact in LuaJIT's numbers for the largest set.
    assert 2**30 * multiplier + increment + 2**31 < 2**51
