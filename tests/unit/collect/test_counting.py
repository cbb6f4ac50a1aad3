"""perf stat on the trial's CPUs, with a perf that prints what a host with APERF and MPERF would."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from labctl.collect.counters import host_cpus, perf
from labctl.collect.counters.perf import Countable
from labctl.store.trial import TrialFolder
from tests.unit.collect.targets import target
from tests.unit.collect.test_host_cpus import printed
from tests.unit.collect.trials import TCG, altered, reasons, same, values

_PERF = """#!{python}
import signal, sys
signal.signal(signal.SIGINT, lambda *_: (sys.stderr.write({text!r}), sys.exit(0)))
open({argv!r}, "w").write(" ".join(sys.argv[1:]))
signal.pause()
"""


def test_registers_are_read_around_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "perf").write_text(
        _PERF.format(python=sys.executable, text=printed(), argv=str(tmp_path / "argv"))
    )
    (tmp_path / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    can = Countable(events=host_cpus.EVENTS, output=("--json-output",))
    monkeypatch.setattr(host_cpus, "_countable", lambda: can)
    monkeypatch.setattr(perf, "_ATTACH_S", 1.0)
    folder = _trial(tmp_path)
    with host_cpus.CPU_FREQUENCY.attached(target(folder, trial_cpus=frozenset({1, 2, 5}))):
        pass
    assert (tmp_path / "argv").read_text() == (
        "stat --json-output --event msr/aperf/,msr/mperf/,msr/tsc/,cpu-clock --cpu 1-2,5"
    )
    found = values(list(host_cpus.parse(folder)))
    assert found["cpu_frequency"] == pytest.approx(3.0e9, rel=1e-5)


def test_where_there_are_none_the_reason_is_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_cpus, "_countable", lambda: Countable(problem="no MPERF."))
    folder = _trial(tmp_path)
    with host_cpus.CPU_FREQUENCY.attached(target(folder)):
        pass
    assert reasons(list(host_cpus.parse(folder)))["cpu_frequency"] == "no MPERF."


def _trial(tmp_path: Path) -> TrialFolder:
    folder = TrialFolder(tmp_path / "trial")
    folder.write_raw_json("host.json", altered(TCG, same))
    return folder
