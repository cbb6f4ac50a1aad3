"""Read a profile of tuned(8) as far as needed to know what it may change: tuned.conf(5)."""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import HostError

FOLDERS = ("etc/tuned/profiles", "etc/tuned", "usr/lib/tuned/profiles", "usr/lib/tuned")
"""Folders of profiles, below the root; the first that has one wins (tuned.conf(5), and the folders
`profiles` since tuned 2.23)."""

_DEPTH = 10
"""Deepest nesting of included profiles; deeper is a circle."""

_CONDITIONS = frozenset(("devices", "devices_udev_regex", "cpuinfo_regex", "uname_regex"))
_UNIT_KEYS = _CONDITIONS | {"type", "enabled", "replace", "drop", "priority"}
"""Keys of a section that set nothing (tuned.profiles.unit)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Hold a section with the options that any of the profile's files has for it: perhaps more than
    tuned will apply, never less. `conditional`: it is for some machines or devices only."""

    name: str
    type: str
    options: Mapping[str, str]
    conditional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Hold a profile: `units` without those that are switched off; `uses_isolated`: it needs the
    isolated CPUs.
    """

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
    """Name a section, or an `option` of it, that labctl leaves out because it can't undo its
    effect. `planned`: what it adds to the kernel's command line."""

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

    Raises HostError for one that isn't there, can't be read, or is chosen by what only tuned can
    evaluate.
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
    """Return what a section may change, or why it can't be undone."""
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
    # HELD, and how it is found: nothing stays.
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
    # A scheduler that is chosen anew starts with its own idea of the queue's depth.
    "disk": (_DISK_FILES.get, ["sys/block/*/queue/nr_requests"]),
    "scheduler": (_scheduler_files, []),
}
"""Type of section to the files that an option sets, and those that follow."""

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
    """Return the words that [bootloader] adds, as far as they can be told."""
    if unit.type != "bootloader":
        return ""
    values = [value for key, value in unit.options.items() if key.startswith("cmdline")]
    return " ".join(value.lstrip("+ ") for value in values)


def _texts(name: str, root: Path, own: Mapping[str, str], depth: int) -> Iterator[str]:
    """Yield the texts of a profile's files, those that are included first."""
    text = own.get(name) if name in own else _file_text(name, root)
    if text is None:
        if name.startswith("-"):  # "where there is one"
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
