"""A foreign guest's agent: waited for, asked what the guest has, given labctl's runner."""

from __future__ import annotations

import base64
import subprocess
from typing import Any

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.base.process import Deadline
from labctl.domain import agent as agent_module
from labctl.domain.agent import RUNNER_PATH, GuestAgent, install_hint
from labctl.domain.session import AgentSilentError

COMMANDS = (
    *("guest-exec", "guest-exec-status"),
    *("guest-file-open", "guest-file-write", "guest-file-close"),
)
SYSBENCH = "/usr/bin/sysbench"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "_PAUSE_S", 0.0)


class Guest:
    """A guest as its agent shows it. `missing`: what the check of its programs prints;
    `forbidden`: commands that its agent doesn't allow; `silent_for`: pings without an answer."""

    def __init__(
        self,
        *,
        missing: str = "",
        forbidden: tuple[str, ...] = (),
        silent_for: int = 0,
        start_status: dict[str, Any] | None = None,
        distribution: str | None = "debian",
    ) -> None:
        self.missing = missing
        self.forbidden = forbidden
        self.silent_for = silent_for
        self.start_status = {"exitcode": 0} if start_status is None else start_status
        self.distribution = distribution
        self.executed: list[list[str]] = []
        self.files: dict[str, bytes] = {}
        self._open: dict[int, str] = {}
        self._polls = 0

    def __call__(self, command: str, **arguments: Any) -> Any:
        return getattr(self, command.replace("-", "_"))(**arguments)

    def guest_ping(self) -> dict[str, Any]:
        if self.silent_for:
            self.silent_for -= 1
            raise AgentSilentError("Guest agent is not responding")
        return {}

    def guest_info(self) -> dict[str, Any]:
        commands = [{"name": c, "enabled": c not in self.forbidden} for c in COMMANDS]
        return {"supported_commands": commands}

    def guest_get_osinfo(self) -> dict[str, str]:
        if self.distribution is None:
            raise BrokenError("The command guest-get-osinfo has not been found")
        return {"id": self.distribution}

    def guest_exec(self, **arguments: Any) -> dict[str, int]:
        assert arguments["capture-output"] is True
        self.executed.append([arguments["path"], *arguments["arg"]])
        return {"pid": len(self.executed)}

    def guest_exec_status(self, pid: int) -> dict[str, Any]:
        self._polls += 1
        if self._polls % 2:
            return {"exited": False}
        if self.executed[pid - 1][0] == "sh":
            data = base64.b64encode(self.missing.encode()).decode()
            return {"exited": True, "exitcode": 0, "out-data": data}
        return {"exited": True, **self.start_status}

    def guest_file_open(self, path: str, mode: str) -> int:
        assert mode == "w"
        self._open[7] = path
        return 7

    def guest_file_write(self, handle: int, **data: str) -> None:
        self.files[self._open[handle]] = base64.b64decode(data["buf-b64"])

    def guest_file_close(self, handle: int) -> None:
        del self._open[handle]

    @property
    def open_files(self) -> int:
        return len(self._open)


def start(guest: Guest) -> None:
    GuestAgent(guest).start_runner(b"the runner's archive", [SYSBENCH])


def test_the_runner_is_written_and_started_on_its_port() -> None:
    guest = Guest()
    start(guest)
    assert guest.files == {RUNNER_PATH: b"the runner's archive"}
    assert guest.open_files == 0
    check, own_file, started = guest.executed
    assert own_file == ["install", "--mode=600", "/dev/null", RUNNER_PATH]
    assert check[0] == "sh"
    assert check[-1] == SYSBENCH
    assert started[0] == "systemd-run"
    assert started[-1] == "/dev/virtio-ports/org.labctl.runner.0"


def test_an_agent_that_is_late_is_waited_for() -> None:
    guest = Guest(silent_for=3)
    GuestAgent(guest).wait(Deadline.after(30, "the agent"))
    assert guest.silent_for == 0


def test_a_guest_without_an_agent_is_told_the_remedy_when_the_time_is_over() -> None:
    with pytest.raises(HostError, match="no agent answers in the guest within 0 s") as caught:
        GuestAgent(Guest(silent_for=10**9)).wait(Deadline.after(0, "the agent"))
    assert "apt install qemu-guest-agent" in str(caught.value.hint)


def test_an_agent_that_may_not_run_programs_is_told_where_it_is_allowed() -> None:
    guest = Guest(forbidden=("guest-exec", "guest-file-open"))
    with pytest.raises(HostError, match="does not allow guest-exec, guest-file-open") as caught:
        start(guest)
    assert "/etc/sysconfig/qemu-ga" in str(caught.value.hint)
    assert guest.executed == []


@pytest.mark.parametrize(
    ("missing", "distribution", "sentence", "remedy"),
    [
        (f"{SYSBENCH}\n", "debian", "lacks sysbench", "apt install sysbench"),
        ("/usr/bin/cyclictest\n", "fedora", "lacks cyclictest", "dnf install realtime-tests"),
        ("/usr/bin/cyclictest\n", "ubuntu", "lacks cyclictest", "apt install rt-tests"),
        ("python3\n", "arch", r"lacks python3 \(3.9 or later\)", "pacman -S python"),
        (f"{SYSBENCH}\n", "gentoo", "lacks sysbench", "its package manager"),
        (f"{SYSBENCH}\n", None, "lacks sysbench", "its package manager"),
        ("systemd\n", "alpine", "does not run systemd", "a guest with systemd"),
    ],
)
def test_what_the_guest_lacks_is_named_with_the_command_that_brings_it(
    missing: str, distribution: str | None, sentence: str, remedy: str
) -> None:
    guest = Guest(missing=missing, distribution=distribution)
    with pytest.raises(HostError, match=sentence) as caught:
        start(guest)
    assert remedy in str(caught.value.hint)
    assert guest.files == {}


def test_a_lacking_workload_may_also_be_left_out() -> None:
    with pytest.raises(HostError) as caught:
        start(Guest(missing=f"{SYSBENCH}\n"))
    assert "--workload" in str(caught.value.hint)


@pytest.mark.parametrize("status", [{"exitcode": 1}, {"signal": 9}])
def test_a_runner_that_does_not_start_is_an_error(status: dict[str, Any]) -> None:
    said = base64.b64encode(b"Access denied\n").decode()
    with pytest.raises(BrokenError, match="Access denied"):
        start(Guest(start_status={**status, "err-data": said}))


def test_a_program_that_labctl_does_not_know_comes_with_its_workloads_packages() -> None:
    missing = ["redis-benchmark", "cyclictest"]
    declared = ["redis-tools", "redis-server"]
    assert install_hint("debian", missing, declared) == (
        "In the guest: apt install rt-tests redis-tools redis-server"
    )
    # Those are Debian's names.
    assert install_hint("fedora", missing, declared) == (
        "In the guest: dnf install redis-benchmark realtime-tests"
    )


def test_programs_are_looked_for_by_path_and_by_name() -> None:
    guest = Guest()
    start(guest)
    asked = ("/usr/bin/env", "env", "no-such-program", "/no/such/program", "/etc/passwd")
    done = subprocess.run(
        [*guest.executed[0][:4], *asked], capture_output=True, text=True, check=True
    )
    said = [line for line in done.stdout.splitlines() if line not in ("systemd", "python3")]
    assert said == ["no-such-program", "/no/such/program", "/etc/passwd"]


def test_a_package_that_holds_two_programs_is_named_once() -> None:
    assert install_hint("debian", ["cyclictest", "cyclictest"]).count("rt-tests") == 1
