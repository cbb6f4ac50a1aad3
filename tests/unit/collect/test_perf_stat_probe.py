import json
import os
import sys
from pathlib import Path

import pytest

from labctl.collect.counters.host_cpus import frequency_countable, measured_tsc_hz
from labctl.collect.counters.perf import Countable, pmu_countable
from labctl.collect.counters.perf_stat import user_events, wanted_events
from tests.unit.collect.trials import recorded

NO_PMU = "perf-stat-6.1-no-pmu.jsonl"

_PERF = """#!{python}
import json, sys
if sys.argv[1] == "version":
    print("perf version {version}")
    sys.exit()
room = {room}
names = sys.argv[sys.argv.index("--event") + 1].split(",")
for name in names:
    value, percent = "7.000000", 100.0
    if name.split(":")[0] in {lacking}:
        value = "<not supported>"
    elif room:
        room -= 1
    else:
        value, percent = "<not counted>", 0.0
    if "--json-output" in sys.argv:
        counter = {{"counter-value": value, "event": name, "pcnt-running": percent}}
        print(json.dumps(counter), file=sys.stderr)
    else:
        print(f"{{value}},,{{name}},123,{{percent:.2f}},,", file=sys.stderr)
"""


def countable(kind: str) -> Countable:
    return pmu_countable(user_events(kind), wanted_events(kind))


@pytest.fixture
def perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a program that is found as `perf` goes."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "perf"


def _says(perf: Path, text: str) -> None:
    perf.write_text(text)
    perf.chmod(0o755)


def _pmu(perf: Path, room: int, lacking: tuple[str, ...] = (), version: str = "6.1.90") -> None:
    """A perf whose PMU has so many counters, and not those events."""
    _says(
        perf,
        _PERF.format(python=sys.executable, room=room, lacking=lacking, version=version),
    )


STALLS = ("stalled-cycles-frontend", "stalled-cycles-backend")


def test_a_pmu_with_room_counts_everything_that_it_knows(perf: Path) -> None:
    _pmu(perf, room=20, lacking=STALLS)
    found = countable("guest")
    assert found.problem is None
    assert "LLC-load-misses:uG" in found.events
    assert "branches:uG" in found.events
    assert "cache-misses:uG" not in found.events
    assert found.left_out.keys() == {f"{event}:uG" for event in STALLS}
    assert "not supported" in found.left_out["stalled-cycles-frontend:uG"]


def test_six_counters_hold_misses_without_their_tries(perf: Path) -> None:
    _pmu(perf, room=6, lacking=("LLC-load-misses", "LLC-loads"))
    found = countable("guest")
    assert len(found.events) == 6
    assert found.events[-1] == "cache-misses:uG"
    assert "no counter left" in found.left_out["branch-misses:uG"]


def test_what_does_not_fit_is_left_out_and_what_comes_after_may(perf: Path) -> None:
    _pmu(perf, room=3)
    found = countable("native")
    assert found.events == ("cycles:u", "instructions:u", "LLC-load-misses:u")
    assert "no counter left" in found.left_out["cycles:k"]


def test_user_cycles_and_instructions_are_the_least(perf: Path) -> None:
    _pmu(perf, room=1)
    problem = countable("native").problem
    assert problem is not None
    assert "too few counters" in problem


@pytest.mark.parametrize(
    ("version", "option"),
    [("5.10.0", "-x,"), ("5.19", "-x,"), ("6.0.0", "--json-output"), ("6.1.192", "--json-output")],
)
def test_the_format_is_what_that_perf_can_print(perf: Path, version: str, option: str) -> None:
    _pmu(perf, room=20, version=version)
    found = countable("guest")
    assert found.output == (option,)
    assert "branch-misses:uG" in found.events


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (f"cat >&2 <<'END'\n{recorded(NO_PMU)}END", "no PMU"),
        ("true", "every event"),
        ("echo 'Access to performance monitoring is limited' >&2; exit 255", "Access"),
        ("echo garbage >&2", "garbage"),
    ],
)
def test_why_perf_cannot_count_is_a_sentence(perf: Path, body: str, word: str) -> None:
    _says(perf, f"#!/bin/sh\ntest $1 = version && echo perf version 6.1 && exit\n{body}\n")
    problem = countable("guest").problem
    assert problem is not None
    assert word in problem


def test_a_host_without_perf_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = countable("native").problem
    assert problem is not None
    assert "not installed" in problem


def test_a_perf_that_refuses_an_event_counts_the_others(perf: Path) -> None:
    line = json.dumps({"counter-value": "7", "event": "EVENT", "pcnt-running": 100.0})
    _says(
        perf,
        "#!/bin/sh\ntest $1 = version && echo perf version 6.1 && exit\n"
        'case "$4" in *:k*) echo "event syntax error" >&2; exit 129;; esac\n'
        f"for event in $(echo $4 | tr , ' '); do echo '{line}' | sed s/EVENT/$event/; done >&2\n",
    )
    found = countable("native")
    assert found.problem is None
    assert "branches:u" in found.events
    assert "syntax error" in found.left_out["cycles:k"]


def test_on_this_host_the_answer_is_events_or_a_reason() -> None:
    found = countable("native")
    assert bool(found.events) is (found.problem is None)


def test_registers_that_the_kernel_offers_are_tried(perf: Path, tmp_path: Path) -> None:
    assert "virtual machines" in (frequency_countable(tmp_path).problem or "")
    (tmp_path / "aperf").write_text("event=0x01\n")
    _pmu(perf, room=20)
    assert frequency_countable(tmp_path).problem is None
    _pmu(perf, room=20, lacking=("msr/mperf/",))
    assert "<not supported> for msr/mperf/" in (frequency_countable(tmp_path).problem or "")
    _says(perf, "#!/bin/sh\ntest $1 = version && echo perf version 6.1 && exit\nexit 255\n")
    assert "perf can't count here" in (frequency_countable(tmp_path).problem or "")


def test_a_counter_whose_rate_nobody_vouches_for_is_read_against_the_clock(
    perf: Path, tmp_path: Path
) -> None:
    assert measured_tsc_hz(3, tmp_path) is None
    (tmp_path / "tsc").touch()
    _says(
        perf,
        "#!/bin/sh\n[ $1 = version ] && exec echo perf version 5.10.1\n"
        "printf '1250000000,,msr/tsc/,5,100.00,,\\n500.0,msec,cpu-clock,5,100.00,,\\n' >&2\n",
    )
    assert measured_tsc_hz(3, tmp_path) == 2.5e9
    _pmu(perf, room=20, lacking=("msr/tsc/",))
    assert measured_tsc_hz(3, tmp_path) is None
    _says(perf, "#!/bin/sh\n[ $1 = version ] && exec echo perf version 6.1\nexit 1\n")
    assert measured_tsc_hz(3, tmp_path) is None


_PERF_OF_A_CPU = """#!{python}
import os, sys
if sys.argv[1] == "version":
    print("perf version 5.10.1")
    sys.exit()
cpu, program = sys.argv.index("--cpu") + 1, sys.argv.index("taskset")
assert sys.argv[program:program + 3] == ["taskset", "--cpu-list", sys.argv[cpu]]
before = os.times()
assert os.spawnvp(os.P_WAIT, "taskset", sys.argv[program:]) == 0
after = os.times()
assert after.children_user + after.children_system > before.children_user + before.children_system
print(f"{{5000 + int(sys.argv[cpu])}},,msr/tsc/,5,100.00,,", file=sys.stderr)
print("1000.0,msec,cpu-clock,5,100.00,,", file=sys.stderr)
"""


def test_it_is_read_on_a_cpu_on_which_something_runs_meanwhile(perf: Path, tmp_path: Path) -> None:
    (tmp_path / "tsc").touch()
    _says(perf, _PERF_OF_A_CPU.format(python=sys.executable))
    for cpu in os.sched_getaffinity(0):
        assert measured_tsc_hz(cpu, tmp_path) == 5000 + cpu
