import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, DeadlineError
from labctl.collect.exits import bpf_exits, exits, perf
from labctl.store.trial import TrialFolder
from labctl.trace import files
from tests.unit.collect.targets import CPUS, target

COUNTS = """
trap : USR1
trap 'cat "$0.counted"; exit 0' INT
"""
WAITS = "while :; do sleep 0.01; done\n"
ATTACHES = 'cat "$0.started" "$0.attached"\n' + WAITS


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs in front of the host's, where namespaces and mounts cost no root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in (
        ("setpriv", 'shift 2; exec "$@"'),
        ("unshare", 'shift 3; exec "$@"'),
        ("mount", ""),
    ):
        _program(folder, name, body)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    # Wherever the tests run, that is the host.
    monkeypatch.setattr(bpf_exits, "_HOSTS_PIDS", os.stat("/proc/self/ns/pid").st_ino)
    return folder


def _program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def _bpftrace(folder: Path, body: str) -> None:
    """One that says what the real one does, when it is asked to."""
    _program(folder, "bpftrace", body)
    for what, said in (
        ("started", '{"type": "attached_probes", "data": {"probes": 5}}'),
        ("attached", '{"type": "map", "data": {"@attached": 1}}'),
        ("counted", '{"type": "map", "data": {"@opened": 5, "@closed": 1000000005}}'),
    ):
        (folder / f"bpftrace.{what}").write_text(f"{said}\n")


def _end_within(window: bpf_exits.AttachedBpftrace) -> None:
    window.mark()
    window.process.wait(5)
    window.mark()


def test_what_bpftrace_counted_is_stored_once_it_has_ended(programs: Path, tmp_path: Path) -> None:
    _bpftrace(programs, COUNTS + ATTACHES)
    output = tmp_path / "trial" / "counted.jsonl"
    with bpf_exits.bpf_counting(1, output, cpus=CPUS) as window:
        assert "@attached" in output.read_text()
        window.mark()
        window.mark()
    assert bpf_exits.read_counts(output.read_text(), "").seconds == 1
    assert [path.name for path in output.parent.iterdir()] == ["counted.jsonl"]


def test_a_bpftrace_that_ends_within_the_window_is_an_error(programs: Path, tmp_path: Path) -> None:
    _bpftrace(programs, COUNTS + 'trap "exit 7" WINCH\n' + ATTACHES)
    with (
        pytest.raises(BrokenError, match="status 7"),
        bpf_exits.bpf_counting(1, tmp_path / "out.jsonl", cpus=CPUS) as window,
    ):
        _end_within(window)


def test_a_bpftrace_that_cannot_attach_is_an_error_in_its_own_words(
    programs: Path, tmp_path: Path
) -> None:
    _bpftrace(
        programs,
        'echo "ERROR: Unknown error -1: couldn\'t set RLIMIT_MEMLOCK for bpftrace." >&2\n'
        'cat "$0.started"; echo "ERROR: Error loading program: kvm_exit" >&2; exit 1',
    )
    with (
        pytest.raises(BrokenError, match=r"status 1: ERROR: Error loading program: kvm_exit\.$"),
        bpf_exits.bpf_counting(1, tmp_path / "out.jsonl", cpus=CPUS),
    ):
        pass


def test_a_bpftrace_that_never_attaches_is_given_up(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpf_exits, "_ATTACH_S", 0.3)
    _bpftrace(programs, 'cat "$0.started"\n' + WAITS)
    with (
        pytest.raises(DeadlineError, match="attaching bpftrace"),
        bpf_exits.bpf_counting(1, tmp_path / "out.jsonl", cpus=CPUS),
    ):
        pass


def test_a_bpftrace_that_does_not_end_is_an_error(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpf_exits, "_END_S", 0.3)
    _bpftrace(programs, COUNTS + 'trap "" INT\n' + ATTACHES)
    with (
        pytest.raises(DeadlineError, match="end was not done within"),
        bpf_exits.bpf_counting(1, tmp_path / "out.jsonl", cpus=CPUS),
    ):
        pass


def test_a_bpftrace_that_missed_the_signal_to_end_is_reminded(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpf_exits, "_REMIND_S", 0.05)
    # As the real one is between two waits for events: it notes SIGINT, and looks after the next.
    _bpftrace(
        programs,
        "trap 'told=1' INT\n"
        """trap '[ -z "$told" ] || { cat "$0.counted"; exit 0; }' USR1\n""" + ATTACHES,
    )
    output = tmp_path / "out.jsonl"
    with bpf_exits.bpf_counting(1, output, cpus=CPUS) as window:
        window.mark()
        window.mark()
    assert bpf_exits.read_counts(output.read_text(), "").seconds == 1


def test_a_host_where_bpf_is_locked_down_is_told_in_bpftraces_words(programs: Path) -> None:
    _bpftrace(programs, "echo 'ERROR: Kernel lockdown is enabled' >&2; exit 1")
    said = bpf_exits.why_unavailable()
    assert said == "BPF can't be used: ERROR: Kernel lockdown is enabled."


def test_a_host_without_bpftrace_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "bpftrace is not installed" in str(bpf_exits.why_unavailable())


def test_a_bpftrace_that_runs_is_one_that_can_count(programs: Path) -> None:
    _bpftrace(programs, "exit 0")
    assert bpf_exits.why_unavailable() is None


def test_a_container_with_process_ids_of_its_own_is_told_so(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _bpftrace(programs, "exit 0")
    monkeypatch.setattr(bpf_exits, "_HOSTS_PIDS", 1)
    assert "in a container" in str(bpf_exits.why_unavailable())


_PERF = """
import os, signal, sys
words = dict(word.split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
if sys.argv[1] == "kvm":
    print("the table of", os.path.basename(sys.argv[3]))
else:
    asked, answering = map(int, words["--control"].removeprefix("fd:").split(","))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    for line in os.fdopen(asked):
        with open(words["--output"], "a") as output:
            output.write(line)
        os.write(answering, b"ack\\n")
    signal.pause()
"""


def test_perf_is_on_around_kvms_readings_and_those_around_the_window(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(programs, "perf", f"exec {sys.executable} -c '{_PERF}' \"$@\"")
    monkeypatch.setattr(exits, "why_no_bpf", lambda: "BPF can't be used: a test.")
    folder = TrialFolder(tmp_path / "trial")
    recorded = folder.path / perf.RAW
    read: list[tuple[int, str]] = []

    def counters() -> dict[str, Any]:
        read.append((time.monotonic_ns(), recorded.read_text()))
        return {}

    asked = target(folder, accelerator="kvm", vcpu_tids=(77, 78), counters=counters)
    with exits.exit_counting(asked):
        within_ns = time.monotonic_ns()
    told = folder.read_json(files.EXITS)
    (before_ns, before), (after_ns, after) = read
    opened_ns, closed_ns = (told["window"][edge] for edge in ("opened_ns", "closed_ns"))
    assert before_ns <= opened_ns <= within_ns <= closed_ns <= after_ns
    assert before == after == "disable\nenable\n"
    assert recorded.read_text() == "disable\nenable\ndisable\n"
    assert told["vcpus"] == {"77": 0, "78": 1}
    assert told["total"]["seconds"] >= (closed_ns - opened_ns) / 1e9
    assert folder.read_text(perf.REPORT) == "the table of perf.data.guest\n"
