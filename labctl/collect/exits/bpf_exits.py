"""Count VM exits in the kernel with a BPF program, through bpftrace.

Nothing is written per exit: counts and times are added up in per-CPU maps, which are read once at
the end. A signal from labctl opens the counted window, and another closes it, so that attaching and
detaching (some hundred milliseconds) are outside.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import BrokenError, LabctlError
from labctl.base.json import parse_json
from labctl.base.kernel import with_tracefs
from labctl.base.process import Deadline, dies_with_labctl, run, running

RAW = "trace/exits.bpftrace.jsonl"

MARK = signal.SIGWINCH
"""Signal that opens the window, and closes it. A process ignores it unless it asked for it; the
tracepoint sees it all the same."""
REMIND = signal.SIGUSR1
"""Signal that interrupts bpftrace's wait for events. Its handler is installed once the probes are
attached; versions before 0.22 print their maps then."""

ATTACHED = '"@attached"'
"""First event that bpftrace prints. It waits for events only once every probe is attached."""

# $1: QEMU, $2: labctl. A VM exit's time ends with the next entry on the same vCPU thread. An exit
# followed by another without an entry between them is counted, and has no time.
#
# Each use of a map is a look-up of some 50 ns that delays the guest, so @left is one map of three
# values and not three maps, and events of other processes are dropped before any look-up. The clock
# is read last at an exit and first at an entry, so that @ns contains little of the program.
_SCRIPT = """
BEGIN { @attached = 1; print(@attached); }
tracepoint:signal:signal_generate /pid == $2 && args->sig == MARK/ {
  if (@opened == 0) { @opened = nsecs; @on = 1; } else { @on = 0; @closed = nsecs; }
}
tracepoint:kvm:kvm_exit /pid == $1 && @on == 1/ {
  @exits[tid, args->isa, args->exit_reason] = count();
  @left[tid] = (nsecs, args->isa, args->exit_reason);
}
tracepoint:kvm:kvm_entry /pid == $1 && @on == 1/ {
  $now = nsecs;
  $left = @left[tid];
  if ($left.0 != 0) {
    @ns[tid, $left.1, $left.2] = sum($now - $left.0);
    @left[tid] = ((uint64)0, $left.1, $left.2);
  }
}
tracepoint:kvm:kvm_userspace_exit /pid == $1 && @on == 1/ {
  @userspace[tid, args->reason, args->errno] = count();
}
""".replace("MARK", str(int(MARK)))

_PROBE = """
tracepoint:kvm:kvm_exit { @left[tid] = (nsecs, args->isa, args->exit_reason); }
BEGIN { exit(); }
"""
"""Most demanding program: only x86's kvm_exit has an instruction set, and not every bpftrace
supports tuples."""
_PROBE_S = 30.0

KEYS_MAX = 4096
"""Capacity of a bpftrace map unless BPFTRACE_MAP_KEYS_MAX changes it. bpftrace silently drops
further keys; with -k it prints a line for each dropped exit, within the window."""
_REASONS = 128
"""Limit on reasons: more than KVM has names for, on SVM (110) or VMX (65), and more than returns to
QEMU have."""

_UPDATE = "map_update_elem"
"""Kernel helper that adds a key to a map."""

_HOSTS_PIDS = 0xEFFFFFFC
"""PID_NS_INIT_INO, the inode of the host's own PID namespace (include/linux/proc_ns.h)."""

# bpftrace prints this if it may not lock all memory, and continues.
_SAID_ANYWAY = "RLIMIT_MEMLOCK"
_WORDS = 300

_ATTACH_S = 60.0
"""bpftrace compiles its program each time: about half a second on an idle CPU."""
_END_S = 30.0
_REMIND_S = 0.5
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Hold the counts of a window of `seconds`. Keys: thread, instruction set and code of an exit;
    thread, reason and errno of a return to QEMU. `ns`: from exits to the next entries."""

    seconds: float
    exits: Mapping[tuple[int, int, int], int]
    ns: Mapping[tuple[int, int, int], int]
    userspace: Mapping[tuple[int, int, int], int]
    refused: bool = False
    """True if bpftrace reports a full map; old versions report it only with -k."""

    def fills(self, keys_max: int) -> bool:
        """Return whether maps of so many keys were full, and may have dropped some."""
        return self.refused or max(map(len, (self.exits, self.ns, self.userspace))) >= keys_max


def keys_max(vcpus: int) -> int:
    """Return the map size for a guest of so many vCPUs, and one that is plugged in."""
    return max(KEYS_MAX, (vcpus + 1) * _REASONS)


def environment(keys: int) -> dict[str, str]:
    """Return the environment of `command`."""
    return {"LC_ALL": "C", "BPFTRACE_MAP_KEYS_MAX": str(keys)}


def command(qemu: int, labctl: int, cpus: CpuSet) -> tuple[str, ...]:
    """Return the command of bpftrace, which runs until SIGINT; RAW is its standard output. `qemu`,
    `labctl`: process ids of the host's own PID namespace. `cpus`: those of bpftrace itself, which
    wakes up ten times a second."""
    return (
        *dies_with_labctl(),
        *("taskset", "--cpu-list", format_cpus(cpus)),
        *with_tracefs(("bpftrace", "-f", "json", "-e", _SCRIPT, str(qemu), str(labctl))),
    )


def why_unavailable() -> str | None:
    """Return a sentence on why BPF cannot count VM exits here, or None. Probed with a program that
    ends at once."""
    if shutil.which("bpftrace") is None:
        return "BPF can't be used: bpftrace is not installed (Debian's package bpftrace has it)."
    if Path("/proc/self/ns/pid").stat().st_ino != _HOSTS_PIDS:
        return "BPF can't be used: labctl runs in a container, where it has other process ids."
    argv = with_tracefs(("bpftrace", "-e", _PROBE))
    try:
        done = run(argv, deadline=Deadline.after(_PROBE_S, "probing bpftrace"), check=False)
    except LabctlError as error:
        return f"BPF can't be used: {error.message}."
    if done.returncode != 0:
        return f"BPF can't be used: {what_it_said(done.stderr)}"
    return None


def what_it_said(stderr: str) -> str:
    """Return bpftrace's reason for ending, as one sentence."""
    lines = [line.strip() for line in stderr.splitlines()]
    told = [line for line in lines if line and _SAID_ANYWAY not in line]
    return f"{' / '.join(told)[:_WORDS].rstrip('.') or 'bpftrace said nothing'}."


def read_counts(text: str, where: str) -> Counted:
    """Parse bpftrace's output; the last print of each map counts.

    Raises BrokenError naming the file and the line if it is something else, or if the window was
    not both opened and closed.
    """
    maps: dict[str, Any] = {}
    refused = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = parse_json(line)
            if entry["type"] == "map":
                maps.update(entry["data"])
            elif entry["type"] == "helper_error" and _UPDATE in str(entry.get("helper")):
                refused = True
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenError(
                f"{where}, line {number}: expected bpftrace's JSON, found {line[:120]!r}"
            ) from error
    try:
        opened, closed = int(maps["@opened"]), int(maps["@closed"])
        counted = Counted(
            seconds=(closed - opened) / 1e9,
            exits=_by_key(maps.get("@exits", {})),
            ns=_by_key(maps.get("@ns", {})),
            userspace=_by_key(maps.get("@userspace", {})),
            refused=refused,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BrokenError(
            f"{where}: expected maps of numbers by thread and reason, with the window's begin and "
            f"end in '@opened' and '@closed', found something else ({error!r})"
        ) from error
    if closed <= opened:
        raise BrokenError(f"{where}: the window ends before it begins")
    return counted


def _by_key(data: Mapping[str, Any]) -> dict[tuple[int, int, int], int]:
    found = {}
    for key, value in data.items():
        thread, first, second = (int(part) for part in key.split(","))
        if type(value) is not int or value < 0:
            raise ValueError(f"{value!r} of {key}")
        found[thread, first, second] = value
    return found


@dataclass(frozen=True, slots=True)
class AttachedBpftrace:
    """Hold the counts of an attached bpftrace, from the first mark to the second."""

    process: subprocess.Popen[bytes]

    def mark(self) -> None:
        """Raise BrokenError if bpftrace has ended."""
        if self.process.poll() is not None:
            raise BrokenError(f"bpftrace ended by itself with status {self.process.returncode}")
        self.process.send_signal(MARK)


@contextmanager
def bpf_counting(
    qemu: int, output: Path, *, cpus: CpuSet, keys_max: int = KEYS_MAX
) -> Iterator[AttachedBpftrace]:
    """Attach bpftrace, running on `cpus`, to the process `qemu`; its counts are in `output` after
    the block. `keys_max`: of each of its maps. Raises BrokenError or DeadlineError if it does not
    start or end."""
    output.parent.mkdir(parents=True, exist_ok=True)
    errors = output.with_suffix(".stderr")
    with (
        open(output, "wb") as stdout,
        open(errors, "wb") as stderr,
        running(
            command(qemu, os.getpid(), cpus),
            stdout=stdout,
            stderr=stderr,
            env=environment(keys_max),
        ) as process,
    ):
        deadline = Deadline.after(_ATTACH_S, "attaching bpftrace to KVM's tracepoints")
        _wait_for(ATTACHED, process, output, errors, deadline)
        yield AttachedBpftrace(process)
        _end(process)
        if process.returncode != 0:
            raise _failed(process, errors)
    errors.unlink()


def _wait_for(
    word: str, process: subprocess.Popen[bytes], output: Path, errors: Path, deadline: Deadline
) -> None:
    while word not in output.read_text(errors="replace"):
        if process.poll() is not None:
            raise _failed(process, errors)
        deadline.remaining()
        time.sleep(_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End bpftrace. It checks whether to end only when a signal has interrupted its wait for
    events. A SIGINT between two waits, for example while it gets no CPU, is not noticed until
    another signal comes (seen with 0.17); a second SIGINT might kill it before it has printed."""
    process.send_signal(signal.SIGINT)
    deadline = Deadline.after(_END_S, "bpftrace's end")
    while True:
        try:
            process.wait(min(_REMIND_S, deadline.remaining()))
            return
        except subprocess.TimeoutExpired:
            process.send_signal(REMIND)


def _failed(process: subprocess.Popen[bytes], errors: Path) -> BrokenError:
    said = what_it_said(errors.read_text(errors="replace"))
    return BrokenError(f"bpftrace ended with status {process.returncode}: {said}")
