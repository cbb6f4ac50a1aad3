"""Set the host up as a tuning requests: check its knobs, set them, and restore them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

from labctl.base import plugins
from labctl.base.cpus import CpuSet
from labctl.base.errors import HostError, UsageError, nearest
from labctl.base.kernel import Held
from labctl.base.tuning import HOUSEKEEPING
from labctl.host.settings.journal import Changes, Journal
from labctl.host.settings.knob import Impossible, Knob, KnobPlace
from labctl.host.settings.knob_table import TABLE


@cache
def _knobs() -> Mapping[str, Knob]:
    """Return labctl's knobs and those of plug-ins, in the order in which they are set."""
    own = {knob.name: knob for knob in TABLE}
    return {**own, **plugins.rows(plugins.Group.SETTINGS, Knob, own)}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobState:
    """Describe a knob's present state. `now` None: this host does not have it. `problem`: why it
    cannot be set."""

    name: str
    what: str
    values: str
    now: str | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """Result of setting knobs. `refused`: sentences on values that the kernel did not accept.
    `held`: settings in force while labctl holds them, which no journal lists."""

    refused: list[str]
    held: list[Held]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """Name a setting that a knob would change, its present value and its new one."""

    name: str
    now: str
    then: str


def check_knobs(host: Mapping[str, str]) -> None:
    """Raise UsageError for an unknown knob, or a value that it does not accept."""
    known = _knobs()
    for name, value in host.items():
        if name not in known:
            raise UsageError(f"'host.{name}' is not a knob of the host", hint=nearest(name, known))
        if not known[name].values.accepts(value):
            raise UsageError(
                f"'host.{name}' is '{value}'", hint=f"It takes {known[name].values.text}."
            )


def problems(host: Mapping[str, str], place: KnobPlace | None = None) -> list[str]:
    """Return why this host does not support these values, as clauses; [] if it does. Only reads."""
    place = place or KnobPlace()
    found = []
    for knob, value in _in_order(host):
        try:
            knob.changes(value, place)
        except Impossible as reason:
            found.append(f"'{knob.name}' can't be '{value}': {reason}")
    return found


def held_by(host: Mapping[str, str]) -> list[str]:
    """Return those of the knobs that end with the process that set them."""
    return [knob.name for knob, _ in _in_order(host) if knob.held is not None]


def states(place: KnobPlace | None = None) -> list[KnobState]:
    """Return the present state of every knob. Only reads."""
    return [_state(knob, place or KnobPlace()) for knob in _knobs().values()]


def turn(host: Mapping[str, str], place: KnobPlace, changes: Changes) -> list[str]:
    """Set the knobs to these values; return a sentence for each value that the kernel refused.

    Raises HostError for one that cannot be set. What was set is undone with `changes`.
    """
    refused = []
    for knob, value in _in_order(host):
        try:
            # Each after those before it, because its files may come and go with them.
            if knob.turned is not None:
                refused += knob.turned(value, place, changes)
            else:
                refused += changes.make(knob.changes(value, place))
        except Impossible as reason:
            raise HostError(f"'{knob.name}' can't be '{value}': {reason}") from reason
    return refused


def foreseen(host: Mapping[str, str], place: KnobPlace) -> list[Foreseen]:
    """Return what `turn` would change, as far as it is known beforehand; settings that already have
    the value are left out. Only reads. Raises HostError as `turn`."""
    found = []
    for knob, value in _in_order(host):
        try:
            if knob.turned is not None:
                found.append(Foreseen(name=knob.name, now=knob.now(place) or "-", then=value))
                continue
            for change in knob.changes(value, place):
                if change.value is not None:
                    now = change.tunable.read()
                    found.append(Foreseen(name=change.tunable.name, now=now, then=change.value))
        except Impossible as reason:
            raise HostError(f"'{knob.name}' can't be '{value}': {reason}") from reason
        except OSError as error:
            raise HostError(f"'{knob.name}' can't be read: {error.strerror}") from error
    return [one for one in found if one.now != one.then]


@contextmanager
def host_changed(
    host: Mapping[str, str], journal: Journal, housekeeping: CpuSet, isolated: CpuSet
) -> Iterator[Turned]:
    """Set the knobs to these values inside the block, and restore them after it, in reverse order.

    `isolated`: the CPUs of the guest's vCPUs, `housekeeping`: the host's own. Raises HostError if a
    knob cannot be set (then none is), BrokenError if one cannot be restored.
    """
    place = KnobPlace(housekeeping=housekeeping, isolated=isolated)
    with journal.changing() as changes, ExitStack() as stack:
        refused = turn(host, place, changes)
        held = [
            stack.enter_context(knob.held(value, place))
            for knob, value in _in_order(host)
            if knob.held is not None
        ]
        yield Turned(refused=refused, held=held)


def _in_order(host: Mapping[str, str]) -> list[tuple[Knob, str]]:
    check_knobs(host)
    return [(knob, host[knob.name]) for knob in _knobs().values() if knob.name in host]


def _state(knob: Knob, place: KnobPlace) -> KnobState:
    now = knob.now(place)
    tried = HOUSEKEEPING if knob.values.accepts(HOUSEKEEPING) else now
    problem = None
    try:
        # Check that it could be set with a value that changes nothing.
        is_one = tried is not None and knob.values.accepts(tried)
        knob.changes(tried if tried and is_one else knob.values.example, place)
    except Impossible as reason:
        problem = str(reason)
    return KnobState(
        name=knob.name, what=knob.what, values=knob.values.text, now=now, problem=problem
    )
