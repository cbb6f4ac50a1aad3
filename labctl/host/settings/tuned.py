"""Apply profiles of tuned(8) with tuned itself, and undo them from labctl's journal.

Every file that a profile may set is recorded first, so that it can be restored without tuned.
Settings that cannot be restored are left out: the profile is applied through one of ours, which
includes it and disables those sections.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from labctl.base import process
from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.errors import BrokenError, HostError
from labctl.base.paths import data_folders
from labctl.base.process import Deadline
from labctl.base.templates import lab_template_environment
from labctl.base.tuning import KNOB_VALUES, Values
from labctl.host.settings.journal import Changes, KnobChange
from labctl.host.settings.knob import Impossible, Knob, KnobPlace
from labctl.host.settings.tunables import FileValue, cpu_mask
from labctl.host.settings.tuned_state import ActiveProfile, ProfileFolder, chosen, daemon_runs

# Read a profile of tuned(8) as far as needed to know what it may change: tuned.conf(5).


FOLDERS = ("etc/tuned/profiles", "etc/tuned", "usr/lib/tuned/profiles", "usr/lib/tuned")
"""Folders of profiles, below the root; the first with the profile wins (tuned.conf(5), and the
folders `profiles` since tuned 2.23)."""

_DEPTH = 10
"""Deepest nesting of included profiles; a deeper one is a cycle."""

_CONDITIONS = frozenset(("devices", "devices_udev_regex", "cpuinfo_regex", "uname_regex"))
_UNIT_KEYS = _CONDITIONS | {"type", "enabled", "replace", "drop", "priority"}
"""Keys of a section that set nothing (tuned.profiles.unit)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Hold a section with the options that any of the profile's files sets: perhaps more than tuned
    will apply, never less. `conditional`: it is for some machines or devices only."""

    name: str
    type: str
    options: Mapping[str, str]
    conditional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Hold a profile: `units` without disabled ones; `uses_isolated`: it needs the isolated
    CPUs."""

    name: str
    units: Sequence[Unit]
    uses_isolated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Undoable:
    """List files (patterns below the root) that a profile sets, and those that the kernel changes
    along with them."""

    files: Sequence[str]
    follow: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Name a section, or an `option` of it, that labctl leaves out because it cannot undo its
    effect. `planned`: its addition to the kernel's command line."""

    unit: str
    option: str = ""
    why: str
    planned: str = ""

    def sentence(self, profile: str) -> str:
        what = f"'{self.option}' in [{self.unit}]" if self.option else f"[{self.unit}]"
        words = f": {self.planned}" if self.planned else ""
        return f"{what} of '{profile}' is left out: {self.why}{words}"


def profile_names(root: Path = Path("/")) -> list[str]:
    return sorted(
        {path.parent.name for folder in FOLDERS for path in (root / folder).glob("*/tuned.conf")}
    )


def read_profile(
    name: str, root: Path = Path("/"), own: Mapping[str, str] | None = None
) -> Profile:
    """Return the profile `name` with all that it includes. `own`: texts of profiles of ours by
    name.

    Raises HostError if it is missing, cannot be read, or is selected by an expression that only
    tuned can evaluate.
    """
    sections: dict[str, dict[str, str]] = {}
    for text in _texts(name, root, own or {}, _DEPTH):
        for section, options in _sections(name, text).items():
            if options.get("replace", "").lower() in ("true", "1"):
                sections.pop(section, None)
            sections.setdefault(section, {}).update(options)
    units = [
        Unit(
            name=section,
            type=options.get("type", section),
            options={key: value for key, value in options.items() if key not in _UNIT_KEYS},
            conditional=not _CONDITIONS.isdisjoint(options),
        )
        for section, options in sections.items()
        if section not in ("main", "variables")
        and options.get("enabled", "true").lower() in ("true", "1")
    ]
    return Profile(
        name=name, units=units, uses_isolated="isolated_cores" in sections.get("variables", {})
    )


def effect(unit: Unit) -> Undoable | Refused:
    """Return the effects of a section, or why they cannot be undone."""
    computed = [key for key in unit.options if "${" in key]
    if computed:
        return Refused(unit=unit.name, why=f"which files it sets only tuned knows ({computed[0]})")
    if unit.type == "sysctl":
        return Undoable(files=[f"proc/sys/{key.replace('.', '/')}" for key in unit.options])
    if unit.type == "sysfs":
        outside = [key for key in unit.options if not key.startswith("/sys/")]
        return Undoable(files=[key.lstrip("/") for key in unit.options if key not in outside])
    known = _FILES.get(unit.type)
    if known is None:
        return Refused(
            unit=unit.name,
            why=_WHY.get(unit.type, "labctl can't put back what it does"),
            planned=_command_line(unit),
        )
    options, follow = known
    unknown = [key for key in unit.options if options(key) is None]
    if unknown:
        return Refused(unit=unit.name, why=_WHY.get(unit.type, f"'{unknown[0]}' can't be undone"))
    return Undoable(
        files=[file for key in unit.options for file in options(key) or ()],
        follow=follow,
    )


HELD: Mapping[str, Sequence[str]] = {"cpu": ["force_latency"]}
"""Options by their section's type that hold only while tuned lives (it keeps /dev/cpu_dma_latency
open): a daemon's are applied, and end with its profile."""

_CPU = "sys/devices/system/cpu"
_THP = "sys/kernel/mm/transparent_hugepage"

_CPU_FILES: Mapping[str, Sequence[str]] = {
    "governor": [f"{_CPU}/cpu[0-9]*/cpufreq/scaling_governor"],
    "energy_perf_bias": [f"{_CPU}/cpu[0-9]*/power/energy_perf_bias"],
    "energy_performance_preference": [f"{_CPU}/cpu[0-9]*/cpufreq/energy_performance_preference"],
    "min_perf_pct": [f"{_CPU}/intel_pstate/min_perf_pct"],
    "max_perf_pct": [f"{_CPU}/intel_pstate/max_perf_pct"],
    "no_turbo": [f"{_CPU}/intel_pstate/no_turbo"],
    "boost": [f"{_CPU}/cpufreq/boost"],
    "sampling_down_factor": [f"{_CPU}/cpufreq/*/sampling_down_factor"],
    "pm_qos_resume_latency_us": [f"{_CPU}/cpu[0-9]*/power/pm_qos_resume_latency_us"],
    # HELD, which finds it: nothing stays.
    "force_latency": [],
    "load_threshold": [],
    "latency_low": [],
    "latency_high": [],
}
_VM_FILES: Mapping[str, Sequence[str]] = {
    "transparent_hugepages": [f"{_THP}/enabled"],
    "transparent_hugepage": [f"{_THP}/enabled"],
    "transparent_hugepage.defrag": [f"{_THP}/defrag"],
}
_DISK_FILES: Mapping[str, Sequence[str]] = {
    "elevator": ["sys/block/*/queue/scheduler"],
    "readahead": ["sys/block/*/queue/read_ahead_kb"],
    "readahead_multiply": ["sys/block/*/queue/read_ahead_kb"],
    "scheduler_quantum": ["sys/block/*/queue/iosched/quantum"],
    "dynamic": [],
}


def _scheduler_files(key: str) -> Sequence[str] | None:
    """tuned.plugins.plugin_scheduler._get_sched_knob_path(): procfs before Linux 5.13, debugfs."""
    if key.startswith("sched_"):
        name = key.removeprefix("sched_")
        return [f"proc/sys/kernel/{key}", f"sys/kernel/debug/sched/{name}"]
    if key.startswith("numa_balancing_"):
        name = key.removeprefix("numa_balancing_")
        return [f"proc/sys/kernel/{key}", f"sys/kernel/debug/sched/numa_balancing/{name}"]
    return None


_FILES: Mapping[str, tuple[Callable[[str], Sequence[str] | None], Sequence[str]]] = {
    "cpu": (_CPU_FILES.get, [f"{_CPU}/cpu[0-9]*/cpufreq/energy_performance_preference"]),
    "vm": (_VM_FILES.get, ["proc/sys/vm/min_free_kbytes"]),
    # A newly selected scheduler starts with its own queue depth.
    "disk": (_DISK_FILES.get, ["sys/block/*/queue/nr_requests"]),
    "scheduler": (_scheduler_files, []),
}
"""Type of section to the files that an option sets, and those that change along."""

_WHY = {
    "bootloader": "it changes the kernel's command line, which needs a reboot",
    "script": "it runs a script",
    "scheduler": "it moves tasks that already run, which may have ended by the time they are put "
    "back",
    "systemd": "it changes systemd's configuration, which needs a reboot",
    "irqbalance": "it changes irqbalance's configuration and restarts it",
    "service": "it starts and stops services",
    "modules": "it loads kernel modules anew",
    "net": "it changes network cards by ethtool",
    "rtentsk": "it works only while tuned's daemon lives",
}


def _command_line(unit: Unit) -> str:
    """Return the words that [bootloader] adds, as far as they can be determined."""
    if unit.type != "bootloader":
        return ""
    values = [value for key, value in unit.options.items() if key.startswith("cmdline")]
    return " ".join(value.lstrip("+ ") for value in values)


def _texts(name: str, root: Path, own: Mapping[str, str], depth: int) -> Iterator[str]:
    """Yield the texts of a profile's files, included ones first."""
    text = own.get(name) if name in own else _file_text(name, root)
    if text is None:
        if name.startswith("-"):  # "if it exists"
            return
        names = profile_names(root)
        raise HostError(
            f"tuned has no profile '{name}'",
            hint=f"It has: {', '.join(names)}." if names else "Install it ('apt install tuned').",
        )
    if depth == 0:
        raise HostError(f"tuned's profile '{name}' includes itself")
    include = _sections(name, text).get("main", {}).get("include", "")
    if "$" in include:
        raise HostError(
            f"tuned's profile '{name}' includes '{include}', which only tuned can evaluate",
            hint="Name the profile that is meant.",
        )
    for parent in re.split(r"\s*[,;]\s*", include):
        if parent:
            yield from _texts(parent, root, own, depth - 1)
    yield text


def _file_text(name: str, root: Path) -> str | None:
    for folder in FOLDERS:
        path = root / folder / Path(name.removeprefix("-")).name / "tuned.conf"
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise HostError(f"cannot read {path}: {error}") from error
    return None


def _sections(name: str, text: str) -> dict[str, dict[str, str]]:
    """Read sections as tuned.profiles.loader does."""
    parser = configparser.RawConfigParser(
        delimiters=("=",), inline_comment_prefixes=("#",), strict=False
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise HostError(f"tuned's profile '{name}' can't be read: {error}") from error
    return {section: dict(parser[section]) for section in parser.sections()}


APPLIED = "labctl-applied"
"""Name of our profile that stands in for the requested one."""

TUNED = "tuned"
"""The knob's name."""

USUAL = ("virtual-host", "realtime-virtual-host", "cpu-partitioning", "latency-performance")
"""tuned's own profiles that labctl's tunings name, whether installed or not."""

_PID_FILE = "run/tuned/tuned.pid"
_ONE_SHOT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Describe how a profile is applied: `changes`, then `act`, which returns what tuned could not
    set. `left_out`: the parts that labctl cannot undo."""

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
    """Return the words that profile `name` adds to the kernel's command line; raises HostError for
    one that cannot be read."""
    return [word for part in application(name, place).left_out for word in part.planned.split()]


def sysctl(name: str, key: str) -> str | None:
    """Return the value that profile `name` gives a sysctl; None if it sets none, or is not on this
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
    """Return every profile that can be requested: tuned's and ours."""
    return sorted({*profile_names(root), *own_profiles()} - {APPLIED})


def application(name: str, place: KnobPlace) -> Application:
    """Return how profile `name` is applied here; raises HostError for one that cannot be read."""
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
    # Newer versions (2.25 in Debian 13) search for profiles only there.
    newer = place.root / "etc/tuned/profiles"
    folder = newer if newer.is_dir() else place.root / "etc/tuned"
    # The daemon restores its present profile's settings before it applies another.
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
    # Loaded here, so that `labctl host` starts faster than a report.
    from jinja2.exceptions import TemplateError

    template = f"{name}/tuned.conf.j2"
    try:
        found = lab_template_environment("tuned", escapes=False).get_template(template)
        return found.render(not_isolated_mask=cpu_mask(_not_isolated(place)))
    except TemplateError as error:
        raise BrokenError(f"templates/tuned/{template}: {error}") from error


def _snapshots(profiles: Iterable[Profile], place: KnobPlace) -> list[KnobChange]:
    """Return every file that the profiles may set, to be read afterwards; files that follow others
    come first."""
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
    """Return the profile that includes the requested one, without the parts that cannot be
    undone."""
    lines = ["[main]", f"summary={profile.name}, as labctl applies it", f"include={profile.name}"]
    if profile.uses_isolated:
        lines += ["[variables]", f"isolated_cores={format_cpus(place.isolated)}"]
    for refused in left_out:
        lines += [f"[{refused.unit}]", "enabled=false"]
    return "\n".join(lines) + "\n"


def _words(planned: str, place: KnobPlace) -> str:
    """Return the words for the kernel's command line that tuned's own variables make."""
    isolated, others = format_cpus(place.isolated), _not_isolated(place)
    variables = {
        "isolated_cores": isolated,
        "non_isolated_cores": format_cpus(others),
        "not_isolated_cpumask": cpu_mask(others),
        # isolate_managed_irq is Y, and no_balance_cores empty, unless changed by the user.
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
    tuned-main.conf: "just applies tuning"). Returns what tuned could not set, in tuned's words.

    It runs in a mount namespace of its own, so that tuned's files on the host stay unchanged and
    nothing is left behind. It dies with labctl: its settings are undone then, and it must not go
    on.
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
    """Return the shell script: tuned's folder as a copy with our profiles, then tuned itself.

    Sysctl files of the host must not be applied again, and a profile's files in /tmp are
    discarded.
    """
    lines = [
        "set -e",
        # If labctl had died before the signal was requested, it would never come.
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
        # The folder in which tuned looks for profiles depends on its version.
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
