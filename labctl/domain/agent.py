"""Use a guest's qemu-guest-agent for set-up before labctl's own runner is there.

https://www.qemu.org/docs/master/interop/qemu-ga-ref.html
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from labctl.base.errors import BrokenError, HostError
from labctl.base.process import Deadline
from labctl.domain.render import RUNNER_PORT
from labctl.domain.session import AgentSilentError, understood

RUNNER_PATH = "/run/labctl-runner.pyz"
"""Path of the runner, in memory on every guest with systemd: labctl writes nothing to its disk."""

_NEEDED = (
    *("guest-exec", "guest-exec-status"),
    *("guest-file-open", "guest-file-write", "guest-file-close"),
)

_CHECK = """\
[ -d /run/systemd/system ] || echo systemd
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || echo python3
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
IFS=
for program; do
    case $program in
        *[*]*) ls -d -- $program >/dev/null 2>&1;;
        */*) [ -x "$program" ];;
        *) command -v "$program" >/dev/null;;
    esac || echo "$program"
done
"""
"""Program that prints what is missing. The runner's language is Python 3.9's; programs without a
path are searched for as in workloads' environments."""

_OWN_FILE = ("install", "--mode=600", "/dev/null", RUNNER_PATH)
_START = (
    *("systemd-run", "--quiet", "--unit=labctl-runner", "--property=Restart=always"),
    # Workloads' output must not reach the guest's disk, where /tmp may lie.
    "--setenv=TMPDIR=/run",
    *("python3", "-I", "-S", RUNNER_PATH, "--port", f"/dev/virtio-ports/{RUNNER_PORT}"),
)

_APT = "apt install"
_INSTALL = {
    _APT: "debian ubuntu linuxmint raspbian pop kali",
    "dnf install": "fedora rhel centos rocky almalinux ol amzn",
    "zypper install": "opensuse-leap opensuse-tumbleweed sles",
    "pacman -S": "arch manjaro",
}
"""Command to the IDs (os-release(5)) of its distributions."""

_PACKAGES = {
    "cyclictest": {"dnf install": "realtime-tests", "": "rt-tests"},
    "python3": {"pacman -S": "python", "": "python3"},
}
"""Program to its package if that has another name; "": any other distribution."""

_SILENT_HINT = (
    "The guest needs a running qemu-guest-agent (on Debian and Ubuntu: apt install "
    "qemu-guest-agent; on Fedora and RHEL: dnf install qemu-guest-agent). If it only boots "
    "slowly, raise 'limits.boot_s' in a copy of the study."
)
_FORBIDDEN_HINT = (
    "On Fedora and RHEL, allow them in the guest's /etc/sysconfig/qemu-ga "
    "(BLACKLIST_RPC, FILTER_RPC_ARGS) and restart qemu-guest-agent."
)
_PAUSE_S = 0.5
_COMMAND_S = 60.0

Ask = Callable[..., Any]
"""`RunningGuest.agent`: function from a command and its arguments to the value of its answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    returncode: int
    stdout: str
    stderr: str


class GuestAgent:
    """Talk to a guest's agent."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def wait(self, deadline: Deadline) -> None:
        """Wait until it answers. Raises HostError with the remedy if it never does."""
        while True:
            try:
                self._ask("guest-ping")
                return
            except AgentSilentError as error:
                if deadline.expired:
                    raise HostError(
                        f"no agent answers in the guest within {deadline.seconds:g} s",
                        hint=_SILENT_HINT,
                    ) from error
                time.sleep(_PAUSE_S)

    def start_runner(
        self, runner: bytes, workloads: Sequence[str], packages: Sequence[str] = ()
    ) -> None:
        """Put the runner, an archive, into the guest and start it on its port.

        Raises HostError naming what the guest lacks, `workloads` (programs, by path or name)
        included, and the command that installs it. `packages`: Debian's, which the workloads name.
        """
        self._check_allowed()
        self._check_programs(workloads, packages)
        # Anyone may write to files that the agent creates itself (qga/commands-posix.c).
        self._run_well(_OWN_FILE)
        self._write(RUNNER_PATH, runner)
        self._run_well(_START)

    def _check_allowed(self) -> None:
        with understood("the guest's agent", "guest-info"):
            commands = self._ask("guest-info")["supported_commands"]
            known = {str(command["name"]): command["enabled"] for command in commands}
        forbidden = [name for name in _NEEDED if not known.get(name)]
        if forbidden:
            raise HostError(
                f"the guest's agent does not allow {', '.join(forbidden)}", hint=_FORBIDDEN_HINT
            )

    def _check_programs(self, workloads: Sequence[str], packages: Sequence[str]) -> None:
        checked = self._run(("sh", "-c", _CHECK, "sh", *workloads))
        missing = [PurePosixPath(line).name for line in checked.stdout.split()]
        if "systemd" in missing:
            raise HostError(
                "the guest does not run systemd, which labctl needs for its setup",
                hint="Use a guest with systemd.",
            )
        if missing:
            names = [f"{name} (3.9 or later)" if name == "python3" else name for name in missing]
            hint = install_hint(self._distribution(), missing, packages)
            if "python3" not in missing:
                hint += " Or choose other workloads with --workload."
            raise HostError(f"the guest lacks {', '.join(names)}", hint=hint)

    def _distribution(self) -> str:
        try:
            with understood("the guest's agent", "guest-get-osinfo"):
                return str(self._ask("guest-get-osinfo").get("id", ""))
        except BrokenError:
            return ""  # an agent from before 2.10, or one that may not report it

    def _run(self, argv: Sequence[str]) -> Answer:
        path, *arguments = argv
        with understood("the guest's agent", "guest-exec"):
            started = self._ask("guest-exec", path=path, arg=arguments, **{"capture-output": True})
            deadline = Deadline.after(_COMMAND_S, f"'{path}' in the guest")
            while not (status := self._ask("guest-exec-status", pid=started["pid"]))["exited"]:
                time.sleep(min(_PAUSE_S, deadline.remaining()))
            return Answer(
                # A process ended by a signal has no exit code.
                status.get("exitcode", -1),
                _decoded(status.get("out-data")),
                _decoded(status.get("err-data")),
            )

    def _run_well(self, argv: Sequence[str]) -> None:
        done = self._run(argv)
        if done.returncode != 0:
            raise BrokenError(
                f"cannot start labctl's runner in the guest: {done.stderr.strip()}",
                hint="If SELinux confines the guest's agent, it may not be allowed to start "
                "services.",
            )

    def _write(self, path: str, data: bytes) -> None:
        handle = self._ask("guest-file-open", path=path, mode="w")
        try:
            encoded = base64.b64encode(data).decode()
            self._ask("guest-file-write", handle=handle, **{"buf-b64": encoded})
        finally:
            self._ask("guest-file-close", handle=handle)


def install_hint(distribution: str, programs: Sequence[str], declared: Sequence[str] = ()) -> str:
    """Return the command that installs the programs in a guest of that distribution (its ID of
    os-release(5)). `declared`: Debian packages for programs that this module does not know."""
    for command, ids in _INSTALL.items():
        if distribution in ids.split():
            known = [one for one in programs if one in _PACKAGES or command != _APT or not declared]
            packages = [_package(program, command) for program in known]
            if len(known) < len(programs):
                packages += declared
            return f"In the guest: {command} {' '.join(dict.fromkeys(packages))}"
    return "Install them in the guest with its package manager."


def _package(program: str, command: str) -> str:
    names = _PACKAGES.get(program, {})
    return names.get(command) or names.get("", program)


def _decoded(data: str | None) -> str:
    return base64.b64decode(data or "").decode(errors="replace")
