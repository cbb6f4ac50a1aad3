"""The readers of what others wrote, one table for `make fuzz` and for the unit tests.

A crash is any other exception than the errors of labctl that the target allows, more than 5 s of
CPU time, or more than 1 GiB of memory.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import socket
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock, patch

import pyarrow as pa

from labctl.analysis.judge import judge
from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.cpus import parse_cpus
from labctl.base.errors import BrokenError, FileError, HostError, LabctlError, UsageError
from labctl.base.json import parse_json
from labctl.base.paths import data_files, shipped_data
from labctl.base.process import Deadline
from labctl.base.quantities import KINDS
from labctl.base.tuning import Strategy
from labctl.collect.counters import perf_stat
from labctl.collect.counters.calibrated import collected_instructions, lackey_instructions
from labctl.collect.exits import bpf_exits
from labctl.collect.exits.perf import read_reports
from labctl.collect.traces import guest_trace
from labctl.domain.agent import GuestAgent
from labctl.domain.foreign.foreign_domain import check_copyable, own_domain
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.domain.save_image import SaveHeader
from labctl.domain.session import RunningGuest
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.host_news import news_of
from labctl.fleet.sweep_hosts import read_state
from labctl.fleet.table import pieces, write_host
from labctl.fleet.table import read as read_table
from labctl.guest.elf import read_elf
from labctl.guest.fetch import checksum_of, good_signers
from labctl.guest.layer import Wheel
from labctl.guest.layers import unpack
from labctl.guest.seed import status_problem
from labctl.host.settings.journal import Journal
from labctl.host.settings.journal_file import encoded
from labctl.host.topology import read_topology
from labctl.report.export.json_report import report_json
from labctl.run.commands.export import run_files
from labctl.run.commands.verify import verify
from labctl.run.trials.parse import believable
from labctl.store.archive import RunArchive, pack
from labctl.store.density_record import DensityFolder
from labctl.store.imported import Declared, declared_plan
from labctl.store.index import NAME as INDEX
from labctl.store.index import AttemptRow, Fingerprint, read_index, write_index
from labctl.store.run_folder import RunFolder
from labctl.store.trial import TrialFolder
from labctl.store.trial_csv import read_trials
from labctl.trace import files
from labctl.trace.perf.perfdata import tracepoints
from labctl.trace.timeline.nested import timeline_of_files
from labctl.trace.timeline.recordings import Traces
from labctl.trace.tracedat import write_tracedat
from labctl.workloads.registry import checkers
from tests.fuzz.altering import as_bytes, as_json, as_parts, as_xml, as_yaml
from tests.fuzz.match_server import matching_quickly
from tests.unit.density_records import record as density_record
from tests.unit.domain.hosts import machine
from tests.unit.domain.own import BY_HAND, copy_of
from tests.unit.elf_files import elf_file
from tests.unit.runner.runners import OUTCOME
from tests.unit.synthetic import WORKLOADS, synthetic_run, write_run
from tests.unit.test_yaml_readers import READERS
from tests.unit.workloads.trials import (
    FIXTURES,
    file_of,
    outputs_of,
    parser_of,
    trial_of_output,
)

UNIT = Path(__file__).parents[1] / "unit"
COLLECT = UNIT / "collect/fixtures"
TRACE = UNIT / "trace/fixtures"

NAMED = (UsageError, HostError, FileError)
"""Errors for a file that a person named: exit codes 2 and 3, not 4."""
RAW = (BrokenError, UsageError)
"""Errors for raw data of a trial, which is then invalid."""

Mutate = Callable[[bytes, random.Random], bytes]
Read = Callable[[bytes, Path], object]
"""Reader of such data; the folder is an empty one for its files."""


@dataclass(frozen=True)
class Target:
    """A reader, whole inputs for it, and how these are altered so that they keep their form."""

    read: Read
    seeds: Callable[[], list[bytes]]
    mutate: Mutate
    allowed: tuple[type[Exception], ...] = RAW


def _parsed(data: bytes) -> Any:
    """Read an input that only carries what a reader gets."""
    try:
        return parse_json(data)
    except ValueError as error:
        raise FileError("not JSON") from error


# Read a file of a person's.


def _yaml(name: str) -> Target:
    where, text, read = READERS[name]

    def act(data: bytes, place: Path) -> object:
        os.environ["LABCTL_LAB"] = str(place)
        path = place / where
        path.parent.mkdir(parents=True, exist_ok=True)
        published = place / "benchmarks/published"
        if not published.exists():
            shutil.copytree(shipped_data() / "benchmarks/published", published)
        path.write_bytes(data)
        try:
            with matching_quickly():
                return read(path)
        finally:
            path.unlink()
            del os.environ["LABCTL_LAB"]

    def seeds() -> list[bytes]:
        kind = str(Path(where).parent)
        others = data_files(kind).values() if kind != "." else ()
        small = [path.read_bytes() for path in others if path.stat().st_size < 6_000]
        return [text.encode(), *small[:20]]

    return Target(act, seeds, as_yaml, NAMED if "stress" not in name and "hog" not in name else RAW)


def _foreign_xml(data: bytes, place: Path) -> object:
    domain = own_domain(data, "domain 'x'")
    check_copyable(domain)
    return copy_of(domain, disks={disk.name: Path("/lab/x") for disk in domain.disks})


def _trials_csv(data: bytes, place: Path) -> object:
    trials = read_trials(data, "trials.csv")
    return declared_plan(trials, Declared(), "x")


def _csv() -> list[bytes]:
    rows = "".join(
        f"{tuning},cpu,quiet,{block},real,{1.5 + block},s,lower\n"
        for tuning in ("baseline", "control", "pinned")
        for block in (1, 2)
    )
    return [f"tuning,workload,condition,block,metric,value,unit,better\n{rows}".encode()]


_INSIDE = re.compile(r"(?:[a-z0-9_]{1,40}/){0,6}[a-z0-9_]{1,200}")


def _sysfs(data: bytes, place: Path) -> object:
    """A copy of another machine's /sys, as JSON: path to text."""
    found = _parsed(data)
    root = place / "sys"
    root.mkdir()
    try:
        for path, text in found.items() if isinstance(found, dict) else ():
            if _INSIDE.fullmatch(path) and isinstance(text, str):
                with suppress(OSError):
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    (root / path).write_text(text, errors="replace")
        topology = read_topology(root)
        for strategy in Strategy:
            with suppress(UsageError, HostError):
                pin_plan(topology, 2, 1, strategy)
        return topology
    finally:
        shutil.rmtree(root)


def _sysfs_copies() -> list[bytes]:
    made = []
    for name in ("core-i7-6700", "core-i7-12700", "adjacent-2s"):
        with scratch() as place:
            machine(name, place)
            files = {
                str(path.relative_to(place)): path.read_text()
                for path in sorted(place.rglob("*"))
                if path.is_file()
            }
            made.append(json.dumps(files).encode())
    return made


def _words(data: bytes, place: Path) -> object:
    """CPU lists, times, sizes, shares: words of files and of the command line."""
    text = data.decode(errors="replace")
    for read in (parse_cpus, *(kind.read for kind in KINDS), *(kind.whole for kind in KINDS)):
        with suppress(ValueError):
            read(text)
    return None


# Read a run, and what labctl keeps.


def _run_of(place: Path) -> Path:
    run = place / "run"
    if not run.exists():
        shape = {"blocks": 2, "tunings": ("native", "baseline", "control", "pinned")}
        workload = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}
        write_run(run, synthetic_run(workloads=workload, **shape))
    return run


def _seed_run(name: str) -> Callable[[], list[bytes]]:
    def seeds() -> list[bytes]:
        with scratch() as place:
            return [(_run_of(place) / name).read_bytes()]

    return seeds


def _file_of_run(name: str) -> Target:
    def act(data: bytes, place: Path) -> object:
        path = _run_of(place) / name
        whole = path.read_bytes()
        path.write_bytes(data)
        try:
            folder = RunFolder(path.parents[name.count("/")])
            verify(folder)
            run = folder.load_planned()
            return report_json(run, judge(run))
        finally:
            path.write_bytes(whole)

    return Target(act, _seed_run(name), as_json, NAMED)


def _archive(data: bytes, place: Path) -> object:
    path = place / "run.tar.xz"
    path.write_bytes(data)
    unpacked = place / "unpacked"
    unpacked.mkdir()
    try:
        RunArchive(path).unpack(unpacked)
        return RunFolder.in_archive(path).load()
    finally:
        shutil.rmtree(unpacked)


def _whole_archive() -> list[bytes]:
    with scratch() as place:
        made = io.BytesIO()
        pack(run_files(_run_of(place)), made, "run")
        return [made.getvalue()]


MADE_OF = Fingerprint(digest="x", sample_bytes=0, newest_ns=0, taken_ns=0)


def _index(data: bytes, place: Path) -> object:
    (place / INDEX).write_bytes(data)
    rows = read_index(place, MADE_OF)
    if rows is None:
        raise FileError("not an index")
    return rows


def _whole_index() -> list[bytes]:
    with scratch() as place:
        run = RunFolder(_run_of(place))
        rows = [
            AttemptRow(one.path.name, one.read_record(), one.read_readings())
            for one in run.trial_folders()
        ]
        write_index(run.path, MADE_OF, rows)
        return [(run.path / INDEX).read_bytes()]


ENTRY = {
    "id": "1-1",
    "name": "vm.swappiness",
    "kind": "file-value",
    "arguments": {"path": "/proc/sys/vm/swappiness"},
    "old": "60",
    "new": "10",
    "pid": 1,
    "pid_start": 1,
    "boot_id": "x",
    "time": "2026-11-22T00:00:00+00:00",
}


def _journal(data: bytes, place: Path) -> object:
    path = place / "journal.jsonl"
    path.write_bytes(data)
    try:
        journal = Journal(path)
        return journal.pending(), journal.standing()
    finally:
        path.unlink()


def _records() -> list[dict[str, Any]]:
    return [
        {"op": "change", **ENTRY},
        {"op": "changed", "id": "1-1", "new": "10"},
        {"op": "kept", "ids": ["1-1"], "asked": "vm.swappiness=10"},
        {"op": "change", **ENTRY, "id": "1-2"},
        {"op": "restored", "id": "1-2"},
    ]


def _signed_journal(data: bytes, place: Path) -> object:
    """The same lines with right lengths and checksums."""
    lines = [_parsed(line) for line in data.split(b"\n") if line]
    return _journal(encoded(line for line in lines if isinstance(line, dict)), place)


def _density(data: bytes, place: Path) -> object:
    (place / "density.json").write_bytes(data)
    return DensityFolder(place).read()


def _seed_density() -> list[bytes]:
    made = density_record({"baseline": [3, "3+"], "pinned": [4, None]})
    return [json.dumps({"schema": 1, **made.to_json()}).encode()]


# Read what hosts of a fleet send.


def _state(data: bytes, place: Path) -> object:
    (place / "state.json").write_bytes(data)
    return read_state(place / "state.json")


def _fleet(data: bytes, place: Path) -> object:
    (place / "fleet.json").write_bytes(data)
    folder = FleetFolder.open(place)
    return [folder.state(host) for host in folder.hosts()]


def _news(data: bytes, place: Path) -> object:
    event = _parsed(data)
    return news_of(event) if isinstance(event, dict) else None


NEWS = {
    "event": "runner_on_ok",
    "uuid": "x",
    "event_data": {
        "host": "h1",
        "task": "labctl.lab.labctl_sweep : Wait",
        "role": "labctl_sweep",
        "task_action": "ansible.builtin.set_fact",
        "res": {
            "stdout": '{"schema": 1, "run": "r", "status": "running", "done": 1} alive\r\n',
            "ansible_facts": {"labctl_sweep_news": {"what": "done", "reason": "x", "run": "r"}},
        },
    },
}
FLEET = {
    "schema": 1,
    "study": "pinning",
    "study_digest": "x",
    "seed": 1,
    "labctl": "0.1",
    "started": "2026-11-22T00:00:00+00:00",
    "command": ["labctl", "fleet", "sweep"],
    "inventory": ["hosts.ini"],
    "serial": "1",
    "batches": [["h1"]],
}
STATE = {"schema": 1, "status": "done", "reason": "", "run": "r", "digest": "a", "batch": 1}


def _table(data: bytes, place: Path) -> object:
    path = place / "effects/day=2026-11-24/host-h1.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    (piece,) = pieces(place, "effects")
    return [batch.num_rows for batch in read_table({"h1": piece}, ["a"])]


def _whole_table() -> list[bytes]:
    with scratch() as place:
        write_host(place, "effects", "2026-11-24", "h1", "x", pa.table({"a": [1.5, 2.5] * 20}))
        (path,) = place.rglob("*.parquet")
        return [path.read_bytes()]


# Read what a guest, QEMU or a tool answers.


def _runner(data: bytes, place: Path) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data[: 1 << 16])
        theirs.shutdown(socket.SHUT_WR)
        channel = Channel(ours, "the guest")
        channel._next_id = 0  # the first request has the id 1
        soon = Deadline.after(5, "an answer")
        asked = data[:1]
        if asked == b" ":
            return channel.read(["/proc/stat"], soon)
        if asked == b"\t":
            return channel.hashes(["/bin/true"], soon)
        return channel.run(Command(argv=("true",)), seconds=1)


RUNNER = [
    {"id": 1, "event": "ready", "pid": 7},
    {"id": 1, "event": "exited"},
    {"id": 1, **OUTCOME},
]
TEXTS = {"id": 1, "event": "result", "texts": {"/proc/stat": "cpu"}}
HASHES = {
    "id": 1,
    "event": "result",
    "programs": {"/bin/true": {"files": {"/bin/true": "a" * 64}, "is_script": False}},
}


def _lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def _agent(data: bytes, place: Path) -> object:
    answers = _parsed(data)
    left = iter(answers if isinstance(answers, list) else [answers])

    def ask(command: str, **arguments: Any) -> Any:
        try:
            return next(left)
        except StopIteration:
            raise BrokenError("the agent is gone") from None

    return GuestAgent(ask).start_runner(b"x", ["sysbench"])


def _qmp(data: bytes, place: Path) -> object:
    """QEMU's answers to a monitor command, and to one for the guest's agent."""
    text = data.decode(errors="replace")
    guest = RunningGuest.__new__(RunningGuest)
    guest._domain = guest._calls = MagicMock()
    with (
        patch("libvirt_qemu.qemuMonitorCommand", lambda *_: text),
        patch("libvirt_qemu.qemuAgentCommand", lambda *_: text),
    ):
        for ask in (guest.vcpu_threads, guest.iothread_threads):
            with suppress(BrokenError):
                ask()
        return guest.agent("guest-info")


def _qmp_answers() -> list[bytes]:
    cpus = [{"cpu-index": 0, "thread-id": 71}, {"cpu-index": 1, "thread-id": 72}]
    iothreads = [{"id": "iothread1", "thread-id": 73}]
    answers = ({"return": cpus}, {"return": iothreads}, {"error": {"desc": "no"}})
    return [json.dumps(answer).encode() for answer in answers]


def _agent_answers() -> list[bytes]:
    commands = ["exec", "exec-status", "file-open", "file-write", "file-close"]
    done = [{"pid": 7}, {"exited": True, "exitcode": 0, "out-data": "", "err-data": "eA=="}]
    known = {"supported_commands": [{"name": f"guest-{c}", "enabled": True} for c in commands]}
    whole = [known, *done, *done, 1000, {"count": 1}, {}, *done]
    lacks = [known, {"pid": 7}, {"exited": True, "exitcode": 0, "out-data": "c3lzYmVuY2gK"}]
    return [json.dumps(one).encode() for one in (whole, [*lacks, {"id": "debian"}])]


def _cloud_init(data: bytes, place: Path) -> object:
    result, _, log = data.decode(errors="replace").partition("\0")
    return status_problem(result, log)


def _cloud_init_results() -> list[bytes]:
    found = [path.read_bytes() for path in sorted((UNIT / "guest").glob("cloud-init-*.json"))]
    (log,) = (UNIT / "guest").glob("cloud-init-*.log")
    return [one + b"\0" + log.read_bytes()[-500:] for one in found]


def _perf_data(data: bytes, place: Path) -> object:
    folder = TrialFolder(place / "trial")
    side = {"pid": 7, "duration_s": 0.5, "after": {"monotonic_ns": 10**9}}
    thread = {"tid": 7, "pid": 7, "role": "vcpu", "index": 0, "name": "CPU 0/TCG"}
    for file in (files.HOST, files.GUEST):
        folder.write_raw(file, data)
    folder.write_raw_json(files.RUNNER, side)
    folder.write_raw_json(files.THREADS, [thread])
    traces = Traces(folder)
    with suppress(BrokenError):
        tracepoints(folder.path / files.HOST)
    with believable("x"):
        list(guest_trace.parse(traces, kind="guest"))
        return timeline_of_files(traces, "cyclictest")


def _trace_dat(data: bytes, place: Path) -> object:
    source, target = place / "perf.data", place / "trace.dat"
    source.write_bytes(data)
    target.unlink(missing_ok=True)
    return write_tracedat(source, target)


def _recordings(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [(TRACE / name).read_bytes() for name in names]


def _fixtures(pattern: str) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for path in sorted(COLLECT.glob(pattern))]


def _text(read: Callable[[str], object]) -> Read:
    return lambda data, place: read(data.decode(errors="replace"))


def _perf_stat(data: bytes, place: Path) -> object:
    folder = TrialFolder(place)
    folder.write_raw(perf_stat.RAW, data)
    with believable("x"):
        return list(perf_stat.parse(folder, kind="guest"))


def _recorded(name: str, step: int = 1) -> bytes:
    """Return each `step`th line of what a program wrote, and the last."""
    *lines, last = (FIXTURES / name).read_bytes().splitlines(keepends=True)
    return b"".join([*lines[::step], last])


_JAVA = "tick-server/java-21.0.8"
_SEVERAL: Mapping[str, Mapping[str, bytes]] = {
    "pgbench": {
        "stdout.txt": _recorded("pgbench/pgbench-15.20-native.txt"),
        "files/transactions.1": _recorded("pgbench/pgbench-15.20-transactions.txt", 5),
    },
    "redis-get": {
        "stdout.txt": _recorded("redis-get/redis-benchmark-7.0.15-native.txt"),
        "stderr.txt": b"\x1erun\n" * 3,
    },
    "tick-server": {
        "stdout.txt": _recorded(f"{_JAVA}-native.txt"),
        "files/ticks.csv": _recorded(f"{_JAVA}-native-ticks.csv", 5),
        "files/marks.csv": _recorded(f"{_JAVA}-native-marks.csv"),
        "files/flight.csv": _recorded(f"{_JAVA}-native-flight.csv"),
        "files/jvm.log": _recorded(f"{_JAVA}-native-jvm.log", 50),
    },
}
"""Programs that are read from several files: an input has all of them, with a NUL between."""


def _output(program: str) -> Target:
    several = _SEVERAL.get(program)
    recorded = outputs_of(program)

    @cache
    def declared() -> tuple[list[str], Callable[[TrialFolder], Iterator[object]]]:
        return list(several or [file_of(program, recorded[0])]), parser_of(program)

    def act(data: bytes, place: Path) -> object:
        folder = trial_of_output(place / "trial")
        names, parse = declared()
        parts = data.split(b"\0", len(names) - 1)
        for name, part in zip_longest(names, parts, fillvalue=b""):
            folder.write_raw(str(name), part)
        with matching_quickly(), believable("x"):
            return list(parse(folder))

    is_json = all(path.suffix in (".json", ".jsonl") for path in recorded)
    return Target(
        act,
        lambda: (
            [b"\0".join(several.values())] if several else [path.read_bytes() for path in recorded]
        ),
        as_json if is_json else as_bytes,
    )


# Read what is downloaded.


def _wheel(data: bytes, place: Path) -> object:
    archive, tree = place / "x.whl", place / "tree"
    archive.write_bytes(data)
    tree.mkdir()
    try:
        return unpack(Wheel(name="x", requirement="x==1", sha256="0" * 64), archive, tree, "opt/x")
    finally:
        shutil.rmtree(tree)


def _whole_wheel() -> list[bytes]:
    made = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", method) as opened:
            opened.writestr("x/__init__.py", "a = 1\n" * 20)
            opened.writestr("x-1.dist-info/METADATA", "Name: x\n")
        made.append(target.getvalue())
    return made


def _signed(data: bytes, place: Path) -> object:
    text = data.decode(errors="replace")
    list(good_signers(text))
    return checksum_of("a.qcow2", text)


CHECKSUMS = (
    f"{'a' * 128}  a.qcow2\n{'b' * 64} *b.qcow2\n".encode(),
    f"SHA256 (a.qcow2) = {'c' * 64}\n".encode(),
    b"[GNUPG:] NEWSIG\n[GNUPG:] GOODSIG 1 x\n[GNUPG:] VALIDSIG 1 2026-11-22 1 0 4 0 22 8 00 F\n",
)


def _elf(data: bytes, place: Path) -> object:
    return read_elf(data)


TARGETS: Mapping[str, Target] = {
    **{name: _yaml(name) for name in READERS},
    "words": Target(
        _words, lambda: [b"0-3,7", b"10ms", b"2 GiB", b"5%", b"20 Mbit/s"], as_bytes, NAMED
    ),
    "sysfs": Target(_sysfs, _sysfs_copies, as_json, NAMED),
    "trials-csv": Target(_trials_csv, _csv, as_bytes, NAMED),
    "foreign-xml": Target(_foreign_xml, lambda: [BY_HAND.encode()], as_xml, NAMED),
    "json": Target(
        lambda data, place: parse_json(data),
        lambda: [b'{"a": [1, 2.5, null]}'],
        as_json,
        (ValueError,),
    ),
    "run.json": _file_of_run("run.json"),
    "plan.json": _file_of_run("plan.json"),
    "trial.json": _file_of_run("trials/0002/trial.json"),
    "samples.json": _file_of_run("trials/0002/samples.json"),
    "archive": Target(_archive, _whole_archive, as_parts, NAMED),
    "journal": Target(_journal, lambda: [encoded(_records()), _lines(*_records())], as_json),
    "journal-lines": Target(_signed_journal, lambda: [_lines(*_records())], as_json),
    "index": Target(_index, _whole_index, as_bytes, NAMED),
    "fleet-table": Target(_table, _whole_table, as_bytes, NAMED),
    "density.json": Target(_density, _seed_density, as_json, NAMED),
    "fleet.json": Target(_fleet, lambda: [json.dumps(FLEET).encode()], as_json, NAMED),
    "host-state": Target(_state, lambda: [json.dumps(STATE).encode()], as_json, NAMED),
    "host-news": Target(_news, lambda: [json.dumps(NEWS).encode()], as_json),
    "runner": Target(
        _runner,
        lambda: [_lines(*RUNNER), b" " + _lines(TEXTS), b"\t" + _lines(HASHES)],
        as_json,
    ),
    "agent": Target(_agent, _agent_answers, as_json, (BrokenError, HostError)),
    "qmp": Target(_qmp, _qmp_answers, as_json),
    "cloud-init": Target(_cloud_init, _cloud_init_results, as_bytes),
    "perf.data": Target(
        _perf_data,
        _recordings("cpu-clock-perf-6.1.data", "one-event-perf-6.1.data", "kvm-perf-6.1.data"),
        as_bytes,
    ),
    "trace.dat": Target(
        _trace_dat, _recordings("one-event-perf-6.1.data", "kvm-perf-6.1.data"), as_bytes
    ),
    "perf-kvm-stat": Target(
        _text(lambda text: read_reports(text, "x")), _fixtures("perf-kvm-stat-*"), as_bytes
    ),
    "perf-stat": Target(_perf_stat, _fixtures("perf-stat-*"), as_json),
    "bpftrace": Target(
        _text(lambda text: bpf_exits.read_counts(text, "x")), _fixtures("exits-bpf*"), as_json
    ),
    "callgrind": Target(_text(collected_instructions), _fixtures("callgrind-*"), as_bytes),
    "lackey": Target(_text(lackey_instructions), _fixtures("lackey-*"), as_bytes),
    "save-header": Target(
        lambda data, place: SaveHeader.parse(data.ljust(73_068, b"\0"), "x"),
        lambda: [(UNIT / "domain/fixtures/libvirt-9.0.0-save-header.bin").read_bytes()],
        as_bytes,
    ),
    "wheel": Target(_wheel, _whole_wheel, as_bytes),
    "checksums": Target(_signed, lambda: list(CHECKSUMS), as_bytes),
    "elf": Target(
        _elf,
        lambda: [Path("/bin/true").read_bytes()[:8192], elf_file()],
        as_bytes,
        (ValueError, LabctlError),
    ),
    **{f"output of {program}": _output(program) for program in checkers()},
}


@contextmanager
def scratch() -> Iterator[Path]:
    """Make an empty folder in memory, if there is such a place."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(
        prefix="labctl-fuzz-", dir=memory if os.access(memory, os.W_OK) else None
    ) as made:
        yield Path(made)
