"""Hold what a run says of a tuning against the grammar of each setting before a command, a file or
a script is made of it: run folders come from anywhere, and root carries out what is advised."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from labctl.base.errors import UsageError
from labctl.base.knob_values import (
    DISK,
    ELEVATOR,
    KERNEL_WORD,
    KNOB_VALUES,
    SYSFS_PATH,
    SYSFS_VALUE,
    Values,
    named,
)
from labctl.rollout.domain_edits import added_words, changed_devices, domain_changes
from labctl.rollout.host_settings import BOOT
from labctl.store.records.run_record import RecordedTuning

_SHOWN = 60
"""Characters of a value that an error shows."""

_CONDITION = r"(\[@[a-z]{1,20}='[A-Za-z0-9,-]{1,50}'\])?"
_STEPS = rf"(/@?[A-Za-z0-9-]{{1,40}}{_CONDITION}){{0,6}}"
_DOMAIN = named(
    rf"(clock/timer|cpu|cputune|devices/memballoon|features/kvm|iothreads|memoryBacking|numatune)"
    rf"{_CONDITION}{_STEPS}",
    "a part of a domain that tunings change",
)
"""Nothing that names a file or a program (`emulator`, `loader`, a device's source) is among it."""

_DEVICE = named(
    rf"@model|(driver|model|target){_CONDITION}{_STEPS}", "a part of a device that tunings change"
)
_XML_VALUE = named(r"[A-Za-z0-9_.,:+ -]{0,200}", "letters, digits, blanks and _.,:+-")


def check_settings(run: str, tuning: str, settings: RecordedTuning) -> None:
    """Raise UsageError naming the first setting of host or guest with an invalid value."""
    _refuse_first(run, tuning, _wrong_settings(settings))


def check_domains(run: str, tuning: str, before: str, after: str) -> None:
    """Raise UsageError naming the first difference of two domains that no tuning makes."""
    _refuse_first(run, tuning, _wrong_changes(before, after))


def _refuse_first(run: str, tuning: str, wrong: Iterator[tuple[str, Any, Values]]) -> None:
    for key, value, takes in wrong:
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
        raise UsageError(
            f"run {run} says that tuning '{tuning}' sets {key} to {shown}, which takes "
            f"{takes.text}: nothing is made of that",
            hint="The run's folder was changed or damaged. Take it from where it was made, or "
            "measure the tuning here.",
        )


def _wrong_settings(settings: RecordedTuning) -> Iterator[tuple[str, Any, Values]]:
    def wrong(key: str, values: Iterable[Any], takes: Values) -> Iterator[tuple[str, Any, Values]]:
        return ((key, value, takes) for value in values if not takes.accepts(str(value)))

    host, guest = settings.host, settings.guest
    for name, value in host.items():
        if value is not None and name in BOOT:
            yield from wrong(f"'host.{name}'", [f"{name}={value}"], KERNEL_WORD)
        elif value is not None and name in KNOB_VALUES:
            yield from wrong(f"'host.{name}'", [value], KNOB_VALUES[name])
    line = "'requires.command_line'"
    yield from wrong(line, settings.requires.command_line, KERNEL_WORD)
    for name, value, takes in (
        ("tuned", guest.tuned, KNOB_VALUES["tuned"]),
        ("elevator", guest.elevator, ELEVATOR),
    ):
        if value:
            yield from wrong(f"'guest.{name}'", [value], takes)
    for path, value in guest.sysfs.items():
        yield from wrong("a path of 'guest.sysfs'", [path], SYSFS_PATH)
        yield from wrong(f"'guest.sysfs' {path}", [value], SYSFS_VALUE)


def _wrong_changes(before: str, after: str) -> Iterator[tuple[str, Any, Values]]:
    for change in domain_changes(before, after):
        if not _DOMAIN.accepts(change.path):
            yield "a part of the domain", change.path, _DOMAIN
        if not _XML_VALUE.accepts(change.after or ""):
            yield change.path, change.after, _XML_VALUE
    for device in changed_devices(before, after):
        if device.target and not DISK.accepts(device.target):
            yield f"a target of {device.tag}", device.target, DISK
        for change in device.changes:
            if device.tag != "controller" and not _DEVICE.accepts(change.path):
                yield f"a part of a {device.tag}", change.path, _DEVICE
            if not _XML_VALUE.accepts(change.after or ""):
                yield f"{device.tag}/{change.path}", change.after, _XML_VALUE
        for element in device.after.iter("target"):
            for name in ("dev", "bus"):
                if not re.fullmatch(r"[a-z0-9]{0,16}", element.get(name) or ""):
                    yield f"a {device.tag}'s target", element.get(name), DISK
    for word in added_words(before, after):
        if not KERNEL_WORD.accepts(word):
            yield "the guest's kernel command line", word, KERNEL_WORD
