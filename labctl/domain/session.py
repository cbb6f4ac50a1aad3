"""The connection to libvirt, and a running guest as libvirt shows it.

The default is libvirt's QEMU driver inside this process (`qemu:///embed?root=DIR`): no daemon, its
own `DIR/etc/qemu.conf`. Facts that this file depends on:

* The embedded driver needs a running event loop, registered before the connection opens.
* It knows no autodestroy, and finds its running domains again when a process opens the same root:
  that is how a guest whose owner was killed is found and ended.
* Save files hold `<backingStore/>`; our own XML, which has none, is given to the restore, so that
  QEMU reads the overlay's real chain.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lxml import etree

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.domain.orphans import adopt_orphans

# Read by libvirt when it is loaded: what it logs is also in the exceptions that reach us.
os.environ.setdefault("LIBVIRT_LOG_OUTPUTS", "4:file:/dev/null")

import libvirt

NAME_PREFIX = "labctl-"
"""Domains whose names begin so are labctl's, and only those are ever ended."""

_QEMU_CONF = """\
# Written by labctl at each start; changes are lost.
# QEMU runs as root here: the guests are labctl's own images, and a QEMU user of its own would need
# a changed /dev/kvm (see docs/decisions/embedded-libvirt.md).
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
# No "cpu" where RT_GROUP_SCHED would refuse SCHED_FIFO in a child cgroup.
cgroup_controllers = [{controllers}]
stdio_handler = "file"
{hugetlbfs}save_image_format = "raw"
"""

_BEING_REMOVED = "already being removed"
_REMOVAL_S = 30.0

_ANSWER_S = 60.0
_MEMORY_S = 180.0
"""For what writes or reads a guest's whole memory."""

_AGENT_ANSWER_S = 10

_QEMU_NAME = f"guest={NAME_PREFIX}".encode()
"""How the value of QEMU's -name begins."""

_loop_lock = threading.Lock()
_loop_started = False


def _start_event_loop() -> None:
    global _loop_started
    with _loop_lock:
        if _loop_started:
            return
        libvirt.virEventRegisterDefaultImpl()
        libvirt.registerErrorHandler(lambda *_: None, None)  # errors reach us as exceptions

        def loop() -> None:
            while True:
                libvirt.virEventRunDefaultImpl()

        threading.Thread(target=loop, name="libvirt-events", daemon=True).start()
        _loop_started = True


class AgentSilentError(BrokenError):
    """The guest's agent isn't there, or not yet."""


class Session:
    """An open connection. Make one with `embedded` or `connected`."""

    def __init__(self, connection: libvirt.virConnect, uri: str) -> None:
        self._connection = connection
        self.uri = uri

    @classmethod
    @contextmanager
    def embedded(
        cls, root: Path, controllers: Sequence[str], hugetlbfs: Sequence[Path] = ()
    ) -> Iterator[Session]:
        """The QEMU driver in this process, with its own configuration under `root`.

        `hugetlbfs`: mounts that guests take huge pages from; without any, libvirt looks for them.
        """
        _start_event_loop()
        adopt_orphans()
        (root / "etc").mkdir(parents=True, exist_ok=True, mode=0o755)
        mounts = f"hugetlbfs_mount = [{_quoted(map(str, hugetlbfs))}]\n" if hugetlbfs else ""
        text = _QEMU_CONF.format(controllers=_quoted(controllers), hugetlbfs=mounts)
        (root / "etc" / "qemu.conf").write_text(text)
        with cls.connected(f"qemu:///embed?root={root}") as session:
            yield session

    @classmethod
    @contextmanager
    def connected(cls, uri: str) -> Iterator[Session]:
        """Raises HostError when libvirt can't be reached there."""
        _start_event_loop()
        try:
            connection = libvirt.open(uri)
        except libvirt.libvirtError as error:
            raise HostError(
                f"libvirt does not open '{uri}': {error}",
                hint="Run 'make setup' as root, or name another connection with --connect.",
            ) from error
        try:
            yield cls(connection, uri)
        finally:
            connection.close()

    def versions(self) -> dict[str, str]:
        """Versions of libvirt and of the QEMU that it starts."""
        return {
            "libvirt": _version(self._connection.getLibVersion()),
            "qemu": _version(self._connection.getVersion()),
        }

    def domain_xml(self, name: str) -> str:
        """The definition of somebody's domain. Raises UsageError when there is none."""
        return str(self._somebodys(name).XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))

    def check_shut_off(self, name: str) -> None:
        """Raises HostError when somebody's domain isn't shut off: what its disks hold is only
        whole then."""
        domain = self._somebodys(name)
        with _explained(f"libvirt does not tell the state of '{name}'"):
            if domain.isActive():
                raise HostError(
                    f"the domain '{name}' is running, and its disks change",
                    hint=f"Shut it down: virsh -c {self.uri} shutdown {name}",
                )
            if domain.hasManagedSaveImage():
                raise HostError(
                    f"the domain '{name}' was saved in the middle of its work",
                    hint=f"Start it and shut it down: virsh -c {self.uri} start {name}",
                )

    def _somebodys(self, name: str) -> libvirt.virDomain:
        try:
            return self._connection.lookupByName(name)
        except libvirt.libvirtError as error:
            raise UsageError(
                f"no domain '{name}' at {self.uri}: {error}",
                hint=f"'virsh -c {self.uri} list --all' shows them.",
            ) from error

    def qemu_user(self) -> tuple[int, int]:
        """User and group id that libvirt runs QEMU as (its DAC security model's base label)."""
        with _explained("libvirt does not tell its capabilities"):
            capabilities = etree.fromstring(self._connection.getCapabilities().encode())
        label = capabilities.findtext("host/secmodel[model='dac']/baselabel")
        if label is None:
            return 0, 0
        user, group = label.strip().split(":")
        return int(user.lstrip("+")), int(group.lstrip("+"))

    def start(self, xml: str) -> RunningGuest:
        """Start a transient domain, its vCPUs paused. Raises BrokenError with libvirt's reason."""
        with self._nothing_left(), _explained("libvirt does not start the guest"):
            create = self._connection.createXML
            domain = _when_removed(lambda: create(xml, libvirt.VIR_DOMAIN_START_PAUSED))
            return RunningGuest(domain)

    def restore(self, saved: Path, xml: str, name: str) -> RunningGuest:
        """Restore a saved guest with another XML, its vCPUs paused."""
        with self._nothing_left(), _explained("libvirt does not restore the guest", _MEMORY_S):
            restore = self._connection.restoreFlags
            _when_removed(lambda: restore(str(saved), xml, libvirt.VIR_DOMAIN_SAVE_PAUSED))
            return RunningGuest(self._connection.lookupByName(name))

    def end_all(self) -> None:
        """End every guest of labctl's that runs on this connection, whoever holds it: an interrupt
        may come between libvirt's call and what would have kept its result."""
        try:
            domains = self._connection.listAllDomains()
        except libvirt.libvirtError:
            return  # the connection is gone: the next run ends them (run.leftovers)
        for domain in domains:
            if domain.name().startswith(NAME_PREFIX):
                _end(domain)

    @contextmanager
    def _nothing_left(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.end_all()
            raise


class RunningGuest:
    """A domain that runs, paused or not."""

    def __init__(self, domain: libvirt.virDomain) -> None:
        self._domain = domain
        self.name: str = domain.name()
        self.pid: int = _process_of(self.vcpu_threads()[0])
        """QEMU's process id."""

    def resume(self) -> None:
        with _explained("libvirt does not resume the guest"):
            self._domain.resume()

    def save(self, path: Path) -> None:
        """Write the guest's memory and state to `path` and end it. The file is made 0600 first:
        it holds all that the guest knew."""
        path.touch(mode=0o600)
        with _explained("libvirt does not save the guest", _MEMORY_S):
            self._domain.save(str(path))

    def live_xml(self) -> str:
        with _explained("libvirt does not show the guest"):
            return str(self._domain.XMLDesc())

    def qmp(self, command: str, **arguments: Any) -> Any:
        """QEMU's answer to a monitor command (the value of "return")."""
        # libvirt-python has this call in a module of its own, which loads another library.
        import libvirt_qemu

        request: Mapping[str, Any] = {"execute": command, "arguments": arguments}
        with _explained(f"QEMU does not answer '{command}'"):
            answer = libvirt_qemu.qemuMonitorCommand(self._domain, json.dumps(request), 0)
        decoded = json.loads(answer)
        if "return" not in decoded:
            raise BrokenError(f"QEMU refused '{command}': {decoded.get('error')}")
        return decoded["return"]

    def agent(self, command: str, **arguments: Any) -> Any:
        """The answer of the guest's own agent (the value of "return").

        Raises AgentSilentError while none is connected or it takes longer than some seconds,
        BrokenError with what it said when it refuses.
        """
        import libvirt_qemu

        request: Mapping[str, Any] = {"execute": command, "arguments": arguments}
        try:
            answer = libvirt_qemu.qemuAgentCommand(
                self._domain, json.dumps(request), _AGENT_ANSWER_S, 0
            )
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_AGENT_UNRESPONSIVE:
                raise AgentSilentError(f"the guest's agent does not answer: {error}") from error
            raise BrokenError(f"the guest's agent refused '{command}': {error}") from error
        return json.loads(answer)["return"]

    def vcpu_threads(self) -> dict[int, int]:
        """vCPU number to host thread id."""
        return {cpu["cpu-index"]: cpu["thread-id"] for cpu in self.qmp("query-cpus-fast")}

    def iothread_threads(self) -> dict[int, int]:
        """libvirt's iothread number (from 1) to host thread id."""
        threads = self.qmp("query-iothreads")
        return {int(t["id"].removeprefix("iothread")): t["thread-id"] for t in threads}

    def is_active(self) -> bool:
        try:
            return bool(self._domain.isActive())
        except libvirt.libvirtError:
            return False

    def end(self) -> None:
        """End the guest at once. What it wrote to its overlay is thrown away by the caller.

        QEMU is killed rather than asked: asked, it closes its images first, which costs one to
        two seconds per restore for files that nobody will read.
        """
        if not self.is_active():
            return
        try:
            os.kill(self.pid, signal.SIGKILL)
        except OSError:
            pass  # already gone: libvirt is about to notice
        deadline = Deadline.after(30, f"ending the guest {self.name}")
        while self.is_active():
            try:
                if deadline.remaining() < 28:
                    self._domain.destroy()
            except libvirt.libvirtError:
                pass
            time.sleep(0.005)


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _end(domain: libvirt.virDomain) -> None:
    try:
        RunningGuest(domain).end()
    except (BrokenError, libvirt.libvirtError):
        try:
            domain.destroy()
        except libvirt.libvirtError:
            pass  # already gone


def _when_removed(act: Callable[[], Any]) -> Any:
    """Act once libvirt has let go of the guest of that name that ran before: one that was killed
    while no driver was open is removed in the background when one opens."""
    deadline = time.monotonic() + _REMOVAL_S
    while True:
        try:
            return act()
        except libvirt.libvirtError as error:
            if _BEING_REMOVED not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _process_of(thread: int) -> int:
    try:
        lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    except OSError as error:
        raise BrokenError("the guest ended as soon as it was started") from error
    for line in lines:
        if line.startswith("Tgid:"):
            return int(line.split()[1])
    raise BrokenError(f"/proc/{thread}/status names no Tgid")


@contextmanager
def _explained(what: str, seconds: float | None = None) -> Iterator[None]:
    """libvirt's refusal as an error of ours. Its calls know no deadline: after `seconds` the QEMU
    that they wait for is killed, and they fail (None: what an answer may take)."""
    seconds = _ANSWER_S if seconds is None else seconds
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        for pid in _our_qemus():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    except libvirt.libvirtError as error:
        if expired.is_set():
            raise BrokenError(
                f"{what}: QEMU did not answer within {seconds:g} s and was ended"
            ) from error
        raise BrokenError(f"{what}: {error}", hint=_hint(str(error))) from error
    except SystemError as error:
        # A signal that arrived inside a call of the C library: CPython wraps what its handler
        # raised.
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise
    finally:
        timer.cancel()


def _our_qemus() -> list[int]:
    """Processes of labctl's guests: a host has one run at a time."""
    found = []
    for name in os.listdir("/proc"):
        try:
            arguments = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # no process, or one that has ended
        if name.isdigit() and any(a.startswith(_QEMU_NAME) for a in arguments):
            found.append(int(name))
    return found


_HINTS = (
    (
        "Cannot set scheduler parameters",
        "SCHED_FIFO and SCHED_RR need root outside a cpu cgroup "
        "with RT_GROUP_SCHED; see 'labctl host facts'.",
    ),
    ("Cannot allocate memory", "Give the guest less memory in the study's 'guest.memory_mib'."),
    ("No space left on device", "Free some space, or name another folder with --state-dir."),
    ("Permission denied", "Run labctl as root."),
)


def _hint(text: str) -> str | None:
    return next((hint for pattern, hint in _HINTS if pattern in text), None)


def _version(number: int) -> str:
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"
