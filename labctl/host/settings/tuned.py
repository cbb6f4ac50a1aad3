"""Apply profiles of tuned(8) with tuned itself, and undo them from labctl's journal.

Every file that a profile may set is written down first, so that it can be put back without tuned.
What can't be put back is left out of the profile: it is applied through one of ours, which includes
it and switches those sections off.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from labctl.base import process
from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError
from labctl.base.knob_values import KNOB_VALUES, Values
from labctl.base.paths import data_folders
from labctl.base.templates import lab_template_environment
from labctl.host.settings.journal import Changes, KnobChange
from labctl.host.settings.knob import Impossible, Knob, KnobPlace
from labctl.host.settings.tunables import FileValue, cpu_mask
from labctl.host.settings.tuned_profile import (
    HELD,
    Profile,
    Refused,
    Undoable,
    effect,
    profile_names,
    read_profile,
)
from labctl.host.settings.tuned_state import ActiveProfile, ProfileFolder, chosen, daemon_runs

APPLIED = "labctl-applied"
"""The profile of ours that stands for the one that is asked for."""

TUNED = "tuned"
"""The knob's name."""

USUAL = ("virtual-host", "realtime-virtual-host", "cpu-partitioning", "latency-performance")
"""Profiles of tuned's own that labctl's tunings name, be it installed or not."""

_PID_FILE = "run/tuned/tuned.pid"
_ONE_SHOT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Say how a profile is applied: `changes`, then `act`, which returns what tuned could not set.
    `left_out`: what of it labctl can't undo."""

    changes: Sequence[KnobChange]
    act: Callable[[], Sequence[str]] | None
    left_out: Sequence[Refused]


def knob() -> Knob:
    """Return tuned's profiles as a knob of the host."""
    return Knob(
        name=TUNED,
        what="the profile of tuned(8) that the host is set up with",
        takes=Values(
            KNOB_VALUES[TUNED].text, lambda value: value in USUAL or value in known_profiles()
        ),
        changes=lambda value, place: _how(value, place).changes,
        turned=_turned,
        now=_now,
    )


def kernel_words(name: str, place: KnobPlace) -> list[str]:
    """Return what profile `name` adds to the kernel's command line; raises HostError for one that
    can't be read."""
    return [word for part in application(name, place).left_out for word in part.planned.split()]


def sysctl(name: str, key: str) -> str | None:
    """Return what profile `name` sets a sysctl to; None where it leaves it, or isn't on this
    host."""
    try:
        units = read_profile(name, own=_own(name, KnobPlace())).units
    except HostError:
        return None
    values = [u.options[key] for u in units if u.type == "sysctl" and key in u.options]
    return values[-1] if values else None


def _turned(value: str, place: KnobPlace, changes: Changes) -> list[str]:
    how = _how(value, place)
    act, said = how.act, list[str]()
    refused = changes.make(how.changes, act and (lambda: said.extend(act())))
    return [*refused, *said, *(part.sentence(value) for part in how.left_out)]


def _how(value: str, place: KnobPlace) -> Application:
    if shutil.which("tuned") is None or shutil.which("tuned-adm") is None:
        raise Impossible("it needs tuned, which is not installed ('apt-get install tuned')")
    try:
        return application(value, place)
    except HostError as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise Impossible(f"{error.message}{hint}") from error


def _now(place: KnobPlace) -> str | None:
    if not daemon_runs(place.root / _PID_FILE):
        return None
    return place.text("etc/tuned/active_profile") or "none"


def own_profiles() -> list[str]:
    """Return the names of the profiles in templates/tuned."""
    folders = [folder / "tuned" for folder in data_folders("templates")]
    return sorted(
        {path.parent.name for folder in folders for path in folder.glob("*/tuned.conf.j2")}
    )


def known_profiles(root: Path = Path("/")) -> list[str]:
    """Return every profile that can be named: tuned's and ours."""
    return sorted({*profile_names(root), *own_profiles()} - {APPLIED})


def application(name: str, place: KnobPlace) -> Application:
    """Return how profile `name` is applied here; raises HostError for one that can't be read."""
    own = _own(name, place)
    profile = read_profile(name, place.root, own)
    left_out = [found for found in map(effect, profile.units) if isinstance(found, Refused)]
    texts = {**own, APPLIED: _standing_in(profile, left_out, place)}
    planned = [replace(found, planned=_words(found.planned, place)) for found in left_out]
    if not daemon_runs(place.root / _PID_FILE):
        held = [
            Refused(unit=unit.name, option=key, why="it holds only while tuned's daemon lives")
            for unit in profile.units
            for key in HELD.get(unit.type, ())
            if key in unit.options
        ]
        act = partial(_apply_once, texts)
        return Application(
            changes=_snapshots([profile], place), act=act, left_out=[*planned, *held]
        )
    active = ActiveProfile(str(place.root / "etc/tuned"), str(place.root / _PID_FILE))
    # Newer versions (2.25 in Debian 13) look for profiles there alone.
    newer = place.root / "etc/tuned/profiles"
    folder = newer if newer.is_dir() else place.root / "etc/tuned"
    # The daemon puts back what its present profile has set before it applies another.
    present = [read_profile(other, place.root) for other in active.profiles()]
    return Application(
        changes=[
            *_snapshots([profile, *present], place),
            *(
                KnobChange(tunable=ProfileFolder(str(folder / name)), value=text)
                for name, text in texts.items()
            ),
            KnobChange(tunable=active, value=chosen(APPLIED)),
        ],
        act=None,
        left_out=planned,
    )


def _own(name: str, place: KnobPlace) -> dict[str, str]:
    """Return the text of a profile of ours by its name; {} for any other."""
    return {name: _rendered(name, place)} if name in own_profiles() else {}


def _rendered(name: str, place: KnobPlace) -> str:
    # Loaded here: `labctl host` must not take as long to start as a report.
    from jinja2.exceptions import TemplateError

    template = f"{name}/tuned.conf.j2"
    try:
        found = lab_template_environment("tuned", escapes=False).get_template(template)
        return found.render(not_isolated_mask=cpu_mask(_not_isolated(place)))
    except TemplateError as error:
        raise BrokenError(f"templates/tuned/{template}: {error}") from error


def _snapshots(profiles: Iterable[Profile], place: KnobPlace) -> list[KnobChange]:
    """Return every file that the profiles may set, to be seen afterwards; what follows others
    first."""
    effects = [
        found
        for profile in profiles
        for found in map(effect, profile.units)
        if isinstance(found, Undoable)
    ]
    changes: dict[Path, KnobChange] = {}
    for patterns, follows in (
        ([pattern for found in effects for pattern in found.follow], True),
        ([pattern for found in effects for pattern in found.files], False),
    ):
        for pattern in patterns:
            for path in place.files(pattern):
                tunable = FileValue(str(path))
                if _readable(tunable):
                    changes.setdefault(path, KnobChange(tunable=tunable, follows=follows))
    return list(changes.values())


def _readable(tunable: FileValue) -> bool:
    """Keep the files that tuned can read: it skips values of several lines and offline CPUs."""
    try:
        return "\n" not in tunable.read()
    except (OSError, UnicodeDecodeError):
        return False


def _standing_in(profile: Profile, left_out: Sequence[Refused], place: KnobPlace) -> str:
    """Return the profile that includes the one asked for, without what can't be undone."""
    lines = ["[main]", f"summary={profile.name}, as labctl applies it", f"include={profile.name}"]
    if profile.uses_isolated:
        lines += ["[variables]", f"isolated_cores={format_cpus(place.isolated)}"]
    for refused in left_out:
        lines += [f"[{refused.unit}]", "enabled=false"]
    return "\n".join(lines) + "\n"


def _words(planned: str, place: KnobPlace) -> str:
    """Return words for the kernel's command line, as tuned's own variables make them."""
    isolated, others = format_cpus(place.isolated), _not_isolated(place)
    variables = {
        "isolated_cores": isolated,
        "non_isolated_cores": format_cpus(others),
        "not_isolated_cpumask": cpu_mask(others),
        # isolate_managed_irq is Y, and no_balance_cores empty, unless somebody changed that.
        "managed_irq": "managed_irq,domain,",
        "cmd_isolcpus": "",
    }
    for name, value in variables.items():
        planned = planned.replace(f"${{{name}}}", value)
    return " ".join(word for word in planned.split() if "${" not in word)


def _not_isolated(place: KnobPlace) -> CpuSet:
    present = place.text("sys/devices/system/cpu/present")
    return (parse_cpus(present) if present else place.housekeeping) - place.isolated


def _apply_once(texts: Mapping[str, str]) -> list[str]:
    """Apply the profile APPLIED without tuned's daemon and without D-Bus (`daemon = 0` in
    tuned-main.conf: "just applies tuning"). Returns what tuned could not set, in its words.

    In a mount namespace of its own, so that tuned's files on the host stay as they are and nothing
    is left behind. It dies with us: what it set is undone then, and it must not go on setting.
    """
    done = process.run(
        [*process.dies_with_labctl(), "unshare", "--mount", "sh", "-c", _script(texts)],
        deadline=Deadline.after(_ONE_SHOT_S, "tuned"),
        check=False,
    )
    errors = [
        f"tuned: {line.partition('ERROR')[2].strip()}"
        for line in done.stderr.splitlines()
        if "ERROR" in line
    ]
    # It exits with 0 whether or not it could load the profile.
    if done.returncode != 0 or f"static tuning from profile '{APPLIED}' applied" not in done.stderr:
        said = errors or done.stderr.strip().splitlines()[-1:] or ["it does not say why"]
        raise HostError(
            f"tuned could not apply the profile: {said[0]}",
            hint="'tuned-adm profile_info PROFILE' shows what is in it.",
        )
    return errors


def _script(texts: Mapping[str, str]) -> str:
    """Run in a shell: tuned's folder as a copy with our profiles, then tuned itself.

    Sysctl files of the host are not to be applied anew, and what a profile makes in /tmp is gone
    afterwards.
    """
    lines = [
        "set -e",
        # Had we died before the signal was asked for, nobody would send it.
        f'[ "$PPID" = {os.getpid()} ]',
        "mount -t tmpfs tmpfs /tmp",
        "cp -a /etc/tuned /tmp/etc-tuned",
        "if [ -d /run/tuned ]; then mount -t tmpfs tmpfs /run/tuned; fi",
        "cd /tmp/etc-tuned",
        "sed -i -e '/^ *daemon *=/d' -e '/^ *reapply_sysctl *=/d' tuned-main.conf",
        "printf 'daemon = 0\\nreapply_sysctl = 0\\n' >> tuned-main.conf",
        "mkdir -p profiles",
    ]
    for name, text in texts.items():
        # Where tuned looks for profiles depends on its version.
        for folder in (name, f"profiles/{name}"):
            lines += [
                f"mkdir -p {shlex.quote(folder)}",
                f"printf %s {shlex.quote(text)} > {shlex.quote(folder)}/tuned.conf",
            ]
    lines += [
        "mount --bind /tmp/etc-tuned /etc/tuned",
        f"exec tuned --no-dbus --no-socket --pid=/etc/tuned/pid --profile={APPLIED}",
    ]
    return "\n".join(lines)
