"""Activate a tuned profile inside a guest, and let tuned verify it.

tuned runs there without D-Bus, which a trimmed image doesn't have, and is asked through its own
unix socket (JSON-RPC; tuned 2.20 has it). It goes on running, as it does wherever it is used: some
of what a profile asks for, such as a latency of the CPUs, holds only as long as tuned lives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.json import parse_json
from labctl.base.process import Deadline, last_words
from labctl.base.tuning import GuestSide
from labctl.host.settings.tunables import selected

_LOG = "/var/log/tuned/tuned.log"
_STARTED = "/run/tuned/started"
_PRINTED = "/run/tuned/printed"
_ISOLATED = "/sys/devices/system/cpu/isolated"
_START_S = 240
"""A Python program that starts others, in a guest that may be emulated beside hogs."""

# Without dynamic tuning a profile is the same in each trial. Real-time profiles have to be told
# which CPUs the kernel has isolated: their own guess is all but one of each socket, and a guest's
# vCPUs are sockets of their own. What is written here is thrown away with the guest.
_START = f"""
command -v tuned > /dev/null || {{ echo "tuned is not installed" >&2; exit 1; }}
systemctl --quiet is-active tuned && systemctl stop tuned
printf '%s\\n' 'dynamic_tuning = 0' 'enable_dbus = 0' 'enable_unix_socket = 1' \
    > /etc/tuned/tuned-main.conf
isolated=$(cat {_ISOLATED})
[ -z "$isolated" ] || for file in /etc/tuned/*-variables.conf; do
    printf 'isolated_cores=%s\\n' "$isolated" >> "$file"
done
mkdir -p /run/tuned
# The runner ends what a command leaves in its session, so this one waits until tuned has its own.
rm -f {_STARTED}
setsid --fork sh -c '
    touch {_STARTED}
    exec tuned --profile "$1" --log={_LOG} > {_PRINTED} 2>&1 < /dev/null
' sh "$1"
until [ -e {_STARTED} ]; do sleep 0.1; done
"""

_ASK = f"""
import json, socket, time

def ask(method):
    asked = socket.socket(socket.AF_UNIX)
    asked.settimeout({_START_S})
    asked.connect("/run/tuned/tuned.sock")
    asked.sendall(json.dumps({{"jsonrpc": "2.0", "method": method, "id": 1}}).encode())
    asked.shutdown(socket.SHUT_WR)
    answer = b""
    while data := asked.recv(65536):
        answer += data
    return json.loads(answer).get("result")

def text(path):
    try:
        return open(path).read()
    except OSError:
        return ""

end = time.monotonic() + {_START_S}
profile, verified = None, False
while time.monotonic() < end:
    try:
        # It listens before its profile is applied, and verifies nothing until then.
        if "applied" in text("{_LOG}"):
            profile = ask("active_profile")
            verified = ask("verify_profile_ignore_missing")
            break
    except OSError:
        pass
    time.sleep(0.2)
print(json.dumps({{
    "profile": profile,
    "verified": verified,
    "isolated_cores": text("{_ISOLATED}").strip(),
    "log": text("{_LOG}"),
    "printed": text("{_PRINTED}"),
}}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedState:
    """Hold what tuned says in a guest. `problems`: why the profile isn't in force, one sentence
    each; its log is among the evidence."""

    problems: tuple[str, ...]
    evidence: dict[str, object]


def activate(channel: Channel, profile: str) -> TunedState:
    """Activate a profile in a guest that answers, and have tuned verify it.

    Raises BrokenError when the guest has no tuned.
    """
    _run(channel, "sh", "-c", _START, "sh", profile)
    printed = _run(channel, "python3", "-c", _ASK)
    try:
        found = parse_json(printed)
        active, verified, log = found["profile"], found["verified"], str(found["log"])
        isolated, words = str(found["isolated_cores"]), str(found["printed"])
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenError(f"tuned in the guest answered with {printed[:200]!r}") from error
    problems = []
    failed = _said(log, "verify: failed: ")
    kept = set(re.findall(r"affinity of (IRQ \d+) to .*Operation not permitted", log))
    left = [
        line
        for line in failed
        if not (_is_other_spelling(line, isolated) or _is_kept_by_kernel(line, kept))
    ]
    if active != profile:
        instead = "has no profile" if active is None else f"has the profile '{active}'"
        said = [*_said(log, "ERROR"), *words.strip().splitlines()]
        why = "".join(f": {line}" for line in said[-1:])
        problems.append(f"tuned in the guest {instead}, expected '{profile}'{why}")
    elif verified is not True and (left or not failed):
        named = "; ".join(left) or "no details given"
        problems.append(f"tuned in the guest cannot verify its profile '{profile}': {named}")
    return TunedState(problems=tuple(problems), evidence={**found, "log": log.splitlines()})


def _said(log: str, mark: str) -> list[str]:
    """Return what stands after `mark` in the log's lines."""
    return [line.partition(mark)[2].strip() for line in log.splitlines() if mark in line]


def _is_other_spelling(failed: str, isolated: str) -> bool:
    """Return whether tuned misses only that a word of the kernel's command line names the last CPU
    by its number rather than by N (kernel-parameters.rst, "cpu lists")."""
    words = re.fullmatch(r"cmdline arg '(.*)', expected '(.*)'", failed)
    return words is not None and re.sub(r"\d+-N\b", isolated, words[1]) == words[2]


def _is_kept_by_kernel(failed: str, kept: set[str]) -> bool:
    """Return whether tuned misses only the affinity of an interrupt that the kernel manages itself
    (isolcpus=managed_irq). Linux 6.12 answers EPERM to that, and tuned 2.25 expects EIO."""
    irq = re.match(r"'SMP affinity of (IRQ \d+)'", failed)
    return irq is not None and irq[1] in kept


def _run(channel: Channel, *argv: str) -> str:
    result = channel.run(Command(argv=argv), seconds=_START_S + 30)
    if result.returncode != 0:
        raise BrokenError(
            f"cannot use tuned in the guest: {last_words(result.stderr)}",
            hint="Add tuned to 'packages' in the image's recipe.",
        )
    return result.stdout.decode(errors="replace")


# Make a tuning's settings inside the guest through the channel, and read them back.


RAW = "guest-side.json"

_COMMAND_LINE = "/proc/cmdline"

_TOOK_EFFECT = {
    "isolcpus": "/sys/devices/system/cpu/isolated",
    "nohz_full": "/sys/devices/system/cpu/nohz_full",
}
"""Words that a kernel takes without a word when their CPUs don't exist, and the file that then
stays empty (kernel-parameters.txt; sysfs-devices-system-cpu)."""

_SECONDS = 60.0
"""Timeout of one setting, in a guest that may be emulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Record one file of the guest's kernel: its content before, the written value, its content
    after.
    """

    path: str
    asked: str
    before: str | None
    now: str | None

    @property
    def problem(self) -> str | None:
        if self.now == self.asked:
            return None
        found = "is not there" if self.now is None else f"reads '{self.now}'"
        return f"in the guest {self.path} {found}, expected '{self.asked}'"

    def to_json(self) -> dict[str, str | None]:
        return {"asked": self.asked, "before": self.before, "now": self.now}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestState:
    """Hold what was set up in a guest. `problems`: what is not as it was asked, one sentence each.
    `evidence`: file name to what was read back, stored with every trial."""

    problems: tuple[str, ...] = ()
    evidence: Mapping[str, object] = field(default_factory=dict)


def set_up(channel: Channel, asked: GuestSide, data_paths: Sequence[str]) -> GuestState:
    """Set up a guest that answers, as `asked`, and read all of it back.

    `data_paths`: the block devices in the guest whose elevator is meant. Raises BrokenError when
    the guest doesn't answer or can't do it at all.
    """
    if asked == GuestSide():
        return GuestState()
    problems: list[str] = []
    found: dict[str, object] = {}
    if asked.command_line:
        command_line = found["command_line"] = _text(channel, _COMMAND_LINE)
        problems += _command_line_problems(channel, asked.command_line, command_line)
    # First: a profile sets what the other keys may mean to set differently.
    if asked.tuned is not None:
        state = activate(channel, asked.tuned)
        found["tuned"] = state.evidence
        problems += state.problems
    wanted = dict(asked.sysfs)
    if asked.elevator is not None:
        for path in data_paths:
            wanted[f"/sys/block/{_disk(channel, path)}/queue/scheduler"] = asked.elevator
    settings = [_set(channel, path, value) for path, value in wanted.items()]
    found["settings"] = {setting.path: setting.to_json() for setting in settings}
    problems += [setting.problem for setting in settings if setting.problem]
    return GuestState(problems=tuple(problems), evidence={RAW: found})


def _set(channel: Channel, path: str, value: str) -> Setting:
    before = _read(channel, path)
    if before is not None and before != value:
        # Not the channel's `write`, which changes a file's mode. What the kernel refuses shows in
        # what is read back.
        argv = ("sh", "-c", 'printf %s "$2" > "$1"', "sh", path, value)
        channel.run(Command(argv=argv), seconds=_SECONDS)
    return Setting(path=path, asked=value, before=before, now=_read(channel, path))


def _disk(channel: Channel, data_path: str) -> str:
    """Return the kernel's name of the block device behind a link of udev's."""
    found = _output(channel, "readlink", "-f", data_path)
    name = found.rpartition("/")[2]
    if not name or not found.startswith("/dev/"):
        raise BrokenError(f"the guest has no block device {data_path}")
    return name


def _command_line_problems(channel: Channel, words: tuple[str, ...], line: str) -> Iterator[str]:
    booted_with = line.split()
    for word in words:
        if word not in booted_with:
            yield f"the guest's kernel was booted without '{word}'"
            continue
        effect = _TOOK_EFFECT.get(word.partition("=")[0])
        # sysfs prints "(null)" for no CPU in nohz_full.
        if effect is not None and _text(channel, effect) in ("", "(null)"):
            yield f"the guest's kernel ignores '{word}': {effect} names no CPU"


def _output(channel: Channel, *argv: str) -> str:
    """Return what a program of the guest prints; raises BrokenError with what it says when it
    fails."""
    result = channel.run(Command(argv=argv), seconds=_SECONDS)
    if result.returncode != 0:
        raise BrokenError(f"'{argv[0]}' fails in the guest: {last_words(result.stderr)}")
    return result.stdout.decode(errors="replace").strip()


def _read(channel: Channel, path: str) -> str | None:
    """Return a file's value as the kernel shows it, the chosen word of several; None if there is
    none."""
    text = channel.read([path], Deadline.after(30, f"reading {path} in the guest"))[path]
    return None if text is None else selected(text)


def _text(channel: Channel, path: str) -> str:
    """Return a file's whole text; "" if there is none."""
    text = channel.read([path], Deadline.after(30, f"reading {path} in the guest"))[path]
    return (text or "").strip()
