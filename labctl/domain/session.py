"""Connect to libvirt, and control running guests through it.

The default is libvirt's QEMU driver inside this process (`qemu:///embed?root=DIR`): no daemon, its
own `DIR/etc/qemu.conf`. Facts that this file depends on:

* The embedded driver needs a running event loop, registered before the connection opens.
* It knows no autodestroy, and finds its running domains again when a process opens the same root:
  that is how a guest whose owner was killed is found and ended.
* A daemon (`--connect qemu:///system`) has guests of others, may die or hang, and leaves QEMU
  running then (`domain.calls`).
* Save files hold `<backingStore/>`; our own XML, which has none, is given to the restore, so that
  QEMU reads the overlay's real chain.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import libvirt
from lxml import etree

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import BrokenError, HostError, UsageError, nearest
from labctl.base.json import parse_json
from labctl.base.process import Deadline, run
from labctl.base.xmldiff import parse
from labctl.domain.calls import MEMORY_S, Calls
from labctl.domain.orphans import adopt_orphans

# Write the qemu.conf of the embedded driver (docs/decisions/embedded-libvirt.md).


_MOUNTINFO = Path("/proc/self/mountinfo")

_TEXT = """\
# Written by labctl at each start; changes are lost.
user = "{user}"
group = "{group}"
# labctl gives QEMU's user what is its own, and nothing else.
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
seccomp_sandbox = 1
{namespaces}# No "cpu" where RT_GROUP_SCHED would refuse SCHED_FIFO in a child cgroup.
cgroup_controllers = [{controllers}]
stdio_handler = "file"
{hugetlbfs}save_image_format = "raw"
"""


def qemu_conf(
    *,
    user: str,
    group: str,
    controllers: Sequence[str],
    hugetlbfs: Sequence[Path],
    mountinfo: Path = _MOUNTINFO,
) -> str:
    """Return the text of qemu.conf.

    By default libvirt gives each QEMU a mount namespace with a /dev of its own if the kernel
    supports it. In a chroot that fails: "/" is not a mount there, so it cannot be made private.
    """
    mounts = f"hugetlbfs_mount = [{_quoted(map(str, hugetlbfs))}]\n" if hugetlbfs else ""
    return _TEXT.format(
        user=user,
        group=group,
        namespaces="" if _is_root_mounted(mountinfo) else "namespaces = []\n",
        controllers=_quoted(controllers),
        hugetlbfs=mounts,
    )


def _is_root_mounted(mountinfo: Path) -> bool:
    """Return whether "/" is a mount. proc_pid_mountinfo(5): the fifth field is the mount point, as
    seen from our root."""
    return any(line.split()[4] == "/" for line in mountinfo.read_text().splitlines())


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


EMBEDDED = "qemu:///embed"
"""Prefix of the URI of the driver in this process."""

_NOT_YET_REMOVED = re.compile(r"already (being removed|being started|active)")
"""libvirt's message about a domain's UUID while it is still removing its last guest."""

_REMOVAL_S = 30.0

_KEEPALIVE_S, _KEEPALIVES = 5, 6
"""Keepalive of virsh. Without it labctl would wait for a hanging daemon for ever."""

_AGENT_ANSWER_S = 10

_REAPED_S = 1.0
"""Longest wait for a killed QEMU's parent to reap it."""

_SYS_PIDFD_GETFD = 438
"""asm-generic/unistd.h, and the same on x86_64"""

_LIBC = ctypes.CDLL(None, use_errno=True)

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


@contextmanager
def understood(who: str, command: str) -> Iterator[None]:
    """Raise BrokenError if an answer has another form than documented: a guest may have written
    it."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BrokenError(
            f"{who} answered '{command}' with something else than documented ({error!r})"
        ) from error


class AgentSilentError(BrokenError):
    """Report that the guest's agent does not answer, or not yet."""


class Session:
    """Hold an open connection. Make one with `embedded` or `connected`."""

    def __init__(self, connection: libvirt.virConnect, uri: str) -> None:
        self._connection = connection
        self._calls = Calls(connection, uri)
        self.uri = uri

    @property
    def is_embedded(self) -> bool:
        return is_embedded(self.uri)

    @classmethod
    @contextmanager
    def embedded(
        cls,
        root: Path,
        controllers: Sequence[str],
        hugetlbfs: Sequence[Path] = (),
        *,
        user: str,
        group: str,
        opens_kvm: bool = True,
    ) -> Iterator[Session]:
        """Open the QEMU driver in this process, with its own configuration under `root`.

        `user` and `group`: those of QEMU. `opens_kvm`: False if there is a /dev/kvm that this user
        cannot open. `hugetlbfs`: mounts that guests take huge pages from; without any, libvirt
        searches for them.
        """
        _start_event_loop()
        adopt_orphans()
        # libvirt adds 6 KB for each restore, and nothing else shortens it.
        shutil.rmtree(root / "log", ignore_errors=True)
        # Independent of the umask: QEMU's user must reach libvirt's files for it in "lib".
        for folder in (root, root / "lib", root / "etc"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o711)
        text = qemu_conf(user=user, group=group, controllers=controllers, hugetlbfs=hugetlbfs)
        (root / "etc" / "qemu.conf").write_text(text)
        uri = f"{EMBEDDED}?root={root}"
        if not opens_kvm:
            find_out_without_kvm(root, uri)
        with cls.connected(uri) as session:
            yield session

    @classmethod
    @contextmanager
    def connected(cls, uri: str) -> Iterator[Session]:
        """Open a connection; raises HostError if libvirt cannot be reached there."""
        _start_event_loop()
        try:
            connection = libvirt.open(uri)
        except libvirt.libvirtError as error:
            hint = _hint_to_open(uri, str(error))
            raise HostError(f"libvirt can't open '{uri}': {error}", hint=hint) from error
        with suppress(libvirt.libvirtError):  # the embedded driver has no keepalive
            connection.setKeepAlive(_KEEPALIVE_S, _KEEPALIVES)
        try:
            yield cls(connection, uri)
        finally:
            connection.close()

    def check_here(self) -> None:
        """Raise UsageError unless its guests are QEMU's and on this host: labctl reads their
        threads, and makes their disks."""
        check_local(self._connection.getURI())
        if self._connection.getType() != "QEMU":
            raise _not_here(self.uri)

    def versions(self) -> dict[str, str]:
        """Return the versions of libvirt and of the QEMU that it starts. Raises HostError if it
        finds none that works."""
        try:
            qemu = self._connection.getVersion()
        except libvirt.libvirtError as error:
            raise HostError(
                f"libvirt finds no QEMU that works: {error}",
                hint="'labctl doctor' says what is missing.",
            ) from error
        return {"libvirt": _version(self._connection.getLibVersion()), "qemu": _version(qemu)}

    def look_at_qemu(self) -> None:
        """Have libvirt probe QEMU's capabilities, which it caches."""
        with self._calls.explained("libvirt does not report QEMU's capabilities"):
            self._connection.getDomainCapabilities(virttype="qemu")

    def domain_xml(self, name: str) -> str:
        """Return a foreign domain's definition. Raises UsageError when there is none."""
        return str(self._somebodys(name).XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))

    def check_shut_off(self, name: str) -> None:
        """Raise HostError if a foreign domain is not shut off: its disks are consistent only
        then."""
        domain = self._somebodys(name)
        with self._calls.explained(f"libvirt does not report the state of '{name}'"):
            if domain.isActive():
                raise HostError(
                    f"the domain '{name}' is running, so its disks change",
                    hint=f"Shut it down: virsh -c {self.uri} shutdown {name}. If it must keep "
                    "running, docs/own-vm.md explains how to measure with a copy of its "
                    "disks.",
                )
            if domain.hasManagedSaveImage():
                raise HostError(
                    f"the domain '{name}' was saved while it was running",
                    hint=f"Start it and shut it down: virsh -c {self.uri} start {name}",
                )

    def _somebodys(self, name: str) -> libvirt.virDomain:
        try:
            return self._connection.lookupByName(name)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise HostError(f"libvirt can't look for '{name}': {error}") from error
            with self._calls.explained("libvirt does not list its domains"):
                names = [domain.name() for domain in self._connection.listAllDomains()]
            raise UsageError(
                f"no domain '{name}' at {self.uri}",
                hint=nearest(name, names) if names else "It has no domains.",
            ) from error

    def qemu_user(self) -> tuple[int, int]:
        """Return the user and group id that libvirt runs QEMU as (its DAC security model's base
        label).
        """
        with self._calls.explained("libvirt does not report its capabilities"):
            capabilities = etree.fromstring(self._connection.getCapabilities().encode())
        label = capabilities.findtext("host/secmodel[model='dac']/baselabel")
        if label is None:
            return 0, 0
        user, group = label.strip().split(":")
        return int(user.lstrip("+")), int(group.lstrip("+"))

    def start(self, xml: str) -> RunningGuest:
        """Start a transient domain, its vCPUs paused. Raises BrokenError with libvirt's reason."""
        with self._nothing_left(xml), self._calls.explained("libvirt does not start the guest"):
            create = self._connection.createXML
            domain = _when_removed(lambda: create(xml, libvirt.VIR_DOMAIN_START_PAUSED))
            return RunningGuest(domain, self._calls)

    def restore(self, saved: Path, xml: str, name: str) -> RunningGuest:
        """Restore a saved guest with another XML, its vCPUs paused."""
        explained = self._calls.explained("libvirt does not restore the guest", MEMORY_S)
        with self._nothing_left(xml), explained:
            restore = self._connection.restoreFlags
            _when_removed(lambda: restore(str(saved), xml, libvirt.VIR_DOMAIN_SAVE_PAUSED))
            return RunningGuest(self._connection.lookupByName(name), self._calls)

    def end_all(self) -> None:
        """End every guest that was started over this connection: an interrupt may have come between
        libvirt's call and the storing of its result. Other guests of a daemon stay, whatever their
        names are."""
        try:
            domains = self._connection.listAllDomains()
        except libvirt.libvirtError:
            self._calls.end_guests()
            return
        for domain in domains:
            if domain.UUIDString() in self._calls.guests:
                _end(domain, self._calls)

    @contextmanager
    def _nothing_left(self, xml: str) -> Iterator[None]:
        uuid = parse(xml).findtext("uuid")
        assert uuid is not None  # every XML of labctl's has one
        self._calls.guests.add(uuid)
        try:
            yield
        except BaseException:
            self.end_all()
            raise


class RunningGuest:
    """Control a running domain, paused or not."""

    def __init__(self, domain: libvirt.virDomain, calls: Calls) -> None:
        self._domain = domain
        self._calls = calls
        self.name: str = domain.name()
        self.pid: int = _process_of(self.vcpu_threads()[0])
        """QEMU's process id."""

    def resume(self) -> None:
        with self._calls.explained("libvirt does not resume the guest"):
            self._domain.resume()

    def save(self, path: Path) -> None:
        """Write the guest's memory and state to `path` and end it. The file is made with mode 0600
        first, because it holds all of the guest's memory."""
        path.touch(mode=0o600)
        with self._calls.explained("libvirt does not save the guest", MEMORY_S):
            self._domain.save(str(path))

    def live_xml(self) -> str:
        with self._calls.explained("libvirt does not show the guest"):
            return str(self._domain.XMLDesc())

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Return QEMU's answer to a monitor command (the value of "return")."""
        # libvirt-python has this call in a module of its own, which loads another library.
        import libvirt_qemu

        request: Mapping[str, object] = {"execute": command, "arguments": arguments}
        with self._calls.explained(f"QEMU does not answer '{command}'"):
            answer = libvirt_qemu.qemuMonitorCommand(self._domain, json.dumps(request), 0)
        with understood("QEMU", command):
            decoded = parse_json(answer)
            if "error" in decoded:
                raise BrokenError(f"QEMU refused '{command}': {decoded['error']}")
            return decoded["return"]

    def agent(self, command: str, **arguments: Any) -> Any:
        """Return the answer of the guest's own agent (the value of "return").

        Raises AgentSilentError while none is connected or it takes longer than some seconds,
        BrokenError with its message if it refuses.
        """
        import libvirt_qemu

        request: Mapping[str, object] = {"execute": command, "arguments": arguments}
        with self._calls.explained(f"the guest's agent does not support '{command}'"):
            try:
                answer = libvirt_qemu.qemuAgentCommand(
                    self._domain, json.dumps(request), _AGENT_ANSWER_S, 0
                )
            except libvirt.libvirtError as error:
                if error.get_error_code() == libvirt.VIR_ERR_AGENT_UNRESPONSIVE:
                    raise AgentSilentError(f"the guest's agent does not answer: {error}") from error
                raise
        with understood("the guest's agent", command):
            return parse_json(answer)["return"]

    def cpu_shares(self) -> int:
        """Return the weight of the guest's cpu cgroup, as its hierarchy counts it."""
        with self._calls.explained("libvirt does not tell the guest's CPU shares"):
            found = self._domain.schedulerParametersFlags(libvirt.VIR_DOMAIN_AFFECT_LIVE)
            return int(found["cpu_shares"])

    def set_cpu_shares(self, shares: int) -> None:
        with self._calls.explained(f"libvirt does not give the guest {shares} CPU shares"):
            live = libvirt.VIR_DOMAIN_AFFECT_LIVE
            self._domain.setSchedulerParametersFlags({"cpu_shares": shares}, live)

    def vcpu_threads(self) -> dict[int, int]:
        """Map vCPU number to host thread id."""
        cpus = self.qmp("query-cpus-fast")
        with understood("QEMU", "query-cpus-fast"):
            return {int(cpu["cpu-index"]): int(cpu["thread-id"]) for cpu in cpus}

    def iothread_threads(self) -> dict[int, int]:
        """Map libvirt's iothread number (from 1) to host thread id."""
        threads = self.qmp("query-iothreads")
        with understood("QEMU", "query-iothreads"):
            return {int(t["id"].removeprefix("iothread")): int(t["thread-id"]) for t in threads}

    def is_active(self) -> bool:
        try:
            return bool(self._domain.isActive())
        except libvirt.libvirtError:
            return False

    def end(self) -> None:
        """End the guest at once. The caller discards its overlay.

        QEMU is killed: if asked to quit, it closes its images first, which costs one to two seconds
        per restore for files that nobody will read.
        """
        if not self.is_active():
            return
        with suppress(OSError):  # already gone: libvirt is about to notice
            _kill_unnoticed(self.pid)
        deadline = Deadline.after(30, f"ending the guest {self.name}")
        while self.is_active():
            try:
                if deadline.remaining() < 28:
                    self._domain.destroy()
            except libvirt.libvirtError:
                pass
            time.sleep(0.005)


def check_local(uri: str) -> None:
    """Raise UsageError for the URI of a connection that leads to another host
    (libvirt.org/uri.html, "Transport configuration")."""
    parts = urlsplit(uri)
    if parts.hostname or parts.scheme.partition("+")[2] not in ("", "unix"):
        raise _not_here(uri)


def _not_here(uri: str) -> UsageError:
    return UsageError(
        f"'{uri}' does not start QEMU on this host",
        hint="Run labctl on the host of the guests, with '--connect qemu:///system'.",
    )


def is_embedded(uri: str) -> bool:
    """Return whether libvirt's driver runs in labctl's own process there."""
    return uri.startswith(EMBEDDED)


def _hint_to_open(uri: str, refusal: str) -> str:
    if is_embedded(uri):
        return "Run 'labctl setup' as root, or name another connection with --connect."
    if "Permission denied" in refusal or "authentication" in refusal:
        return "Run labctl as root."
    return (
        "Start libvirt's daemon: 'systemctl start libvirtd' (or virtqemud). Without "
        "--connect, labctl needs no daemon: --domain also accepts a file from 'virsh "
        "dumpxml --inactive'."
    )


def _end(domain: libvirt.virDomain, calls: Calls) -> None:
    try:
        RunningGuest(domain, calls).end()
    except (BrokenError, libvirt.libvirtError):
        try:
            domain.destroy()
        except libvirt.libvirtError:
            pass  # already gone


def _kill_unnoticed(pid: int) -> None:
    """Kill a QEMU and wait until it is gone, before libvirt sees the end of its monitor's socket.

    If libvirt finds a process that is still ending, it looks again only after 200 ms
    (virProcessKillPainfully). So the sockets are held open here (pidfd_getfd(2), Linux 5.6);
    without that right or on an older kernel, libvirt waits.
    """
    with ExitStack() as held:
        with suppress(OSError):
            _hold_sockets(pid, held)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _REAPED_S
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.002)


def _hold_sockets(pid: int, held: ExitStack) -> None:
    process = os.pidfd_open(pid)
    held.callback(os.close, process)
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed since
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                copy = _LIBC.syscall(_SYS_PIDFD_GETFD, process, int(number), 0)
                if copy >= 0:
                    held.callback(os.close, copy)


def _when_removed(act: Callable[[], Any]) -> Any:
    """Act once libvirt has removed the earlier guest of that name: one that was killed while no
    driver was open is removed in the background when one opens."""
    deadline = time.monotonic() + _REMOVAL_S
    while True:
        try:
            return act()
        except libvirt.libvirtError as error:
            if not _NOT_YET_REMOVED.search(str(error)) or time.monotonic() > deadline:
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


def _version(number: int) -> str:
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


# Let a guest's threads move freely among some CPUs, but no others. Pure.


_PINS = ("vcpupin", "emulatorpin", "iothreadpin", "vcpusched", "iothreadsched", "emulatorsched")


def confined_to(xml: str, cpus: CpuSet) -> str:
    """Return a domain's XML whose threads have these CPUs and the usual policy, whatever it
    requested: libvirt gives every thread without a pin of its own the CPUs of <vcpu>."""
    root = parse(xml)
    vcpu = root.find("vcpu")
    assert vcpu is not None  # every XML of labctl's has one
    vcpu.set("cpuset", format_cpus(cpus))
    for tune in root.findall("cputune"):
        for element in [element for element in tune if element.tag in _PINS]:
            tune.remove(element)
        if len(tune) == 0:
            root.remove(tune)
    return etree.tostring(root, encoding="unicode")


# Keep libvirt's record of QEMU's capabilities, probed where no process can open /dev/kvm.
#
# libvirt probes QEMU as the user that will run it, but with CAP_DAC_OVERRIDE, so that QEMU finds
# KVM on a host whose /dev/kvm that user cannot open. Then libvirt considers its record outdated and
# probes again on every call, seconds each (virQEMUCapsIsValid). A record without KVM stays valid.


_HIDDEN = """\
mount --bind "$1" /dev/kvm
exec "$2" -P -m labctl.domain.session "$3"
"""


def find_out_without_kvm(root: Path, uri: str) -> None:
    """Have libvirt probe QEMU in a mount namespace of its own, unless its record is valid. If that
    fails its calls take longer, and nothing else differs."""
    nothing = root / "no-kvm"
    nothing.touch(mode=0o600)  # neither a device nor open to QEMU's user
    shell = ("sh", "-e", "-c", _HIDDEN, "sh", str(nothing), sys.executable, uri)
    run(
        ["unshare", "--mount", "--propagation", "private", *shell],
        deadline=Deadline.after(120, "reading QEMU's capabilities"),
        check=False,
    )


def _look(uri: str) -> None:
    with Session.connected(uri) as session:
        session.look_at_qemu()


if __name__ == "__main__":
    _look(sys.argv[1])
