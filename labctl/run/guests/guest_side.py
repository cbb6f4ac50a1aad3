"""Make a tuning's settings inside the guest through the channel, and read them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError
from labctl.base.last_words import last_words
from labctl.base.tuning import GuestSide
from labctl.host.settings.tunables import selected
from labctl.run.guests import guest_tuned

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
        return f"in the guest {self.path} {found}, asked was '{self.asked}'"

    def to_json(self) -> dict[str, str | None]:
        return {"asked": self.asked, "before": self.before, "now": self.now}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestState:
    """Hold what was set up in a guest. `problems`: what is not as it was asked, one sentence each.
    `evidence`: file name to what was read back, stored with every trial."""

    problems: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)


def set_up(channel: Channel, asked: GuestSide, data_paths: Sequence[str]) -> GuestState:
    """Set up a guest that answers, as `asked`, and read all of it back.

    `data_paths`: the block devices in the guest whose elevator is meant. Raises BrokenError when
    the guest doesn't answer or can't do it at all.
    """
    if asked == GuestSide():
        return GuestState()
    problems: list[str] = []
    found: dict[str, Any] = {}
    if asked.command_line:
        found["command_line"] = _text(channel, _COMMAND_LINE)
        problems += _command_line_problems(channel, asked.command_line, found["command_line"])
    # First: a profile sets what the other keys may mean to set differently.
    if asked.tuned is not None:
        state = guest_tuned.activate(channel, asked.tuned)
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
