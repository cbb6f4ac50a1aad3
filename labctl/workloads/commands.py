"""Fill in the commands, servers and file system of a workload's file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command, CommandCgroup, FileSystem, Ready, Server, User
from labctl.base.cpus import parse_cpus
from labctl.base.errors import UsageError
from labctl.base.link import CLIENT, COMPETITOR, Bottleneck
from labctl.base.paths import CWD, DATA_DISK_BYTES, DISK, NOBODY, WORK, brought_folder
from labctl.base.templates import evaluate, fill_in, plain
from labctl.base.tuning import Policy, Sched
from labctl.workloads.setting import Parameters, Peer, Setting, peer_of
from labctl.workloads.workload_file import ConditionalFile, DeclaredFile, ReadyFile, ServeFile

LOCALHOST = "127.0.0.1"
TIMEOUT = "/usr/bin/timeout"
ONCE_LIMIT_S = 600.0
_MOST_LIMIT = 2**24
"""Largest limit of a cgroup: MiB of memory."""
_CAPABILITIES = {
    "realtime": ("sys_nice",),
    "memlock": ("ipc_lock",),
    "perf": ("perfmon",),
    "tracing": ("sys_admin", "dac_override"),
    "net-admin": ("net_admin", "net_raw"),
    "raw-disk": ("dac_override",),
}
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    # Otherwise SQLite and others use /var/tmp if they can write there, on the guest's disk.
    "TMPDIR": WORK,
    "TZ": "UTC",
}


@dataclass(frozen=True, slots=True)
class Commands:
    """Fill in a workload's file. All methods raise UsageError for values that cannot be filled
    in."""

    name: str
    file: DeclaredFile

    @property
    def where(self) -> str:
        return f"workload '{self.name}'"

    def peer(self, parameters: Parameters, on: str = "peer") -> Peer | None:
        """Return the server on the peer (`on`: or the competitor); None if there is none."""
        found = [*self.served(on, parameters)]
        if not found:
            return None
        if len(found) > 1:
            raise UsageError(f"{self.where}: expected one server on the {on}, got {len(found)}")
        server = found[0]
        any_address = "0.0.0.0"  # noqa: S104
        addresses = {"server": any_address, "peer": any_address, "competitor_address": COMPETITOR}
        if on == "competitor":
            addresses |= {"server": CLIENT, "peer": CLIENT}
        values = {**parameters, "files": brought_folder(self.name), **addresses}
        port = server.ready.tcp or server.ready.udp
        assert port is not None  # the file was checked
        return Peer(
            command=Command(argv=self._filled(server.argv, values, "serve")),
            protocol="udp" if server.ready.udp else "tcp",
            port=port,
        )

    def bottleneck(self, parameters: Parameters) -> Bottleneck | None:
        """Return the bottleneck of the link; None without one."""
        link = self.file.link
        if link is None:
            return None

        def number(key: str, asked: float | str) -> float:
            where = f"{self.where}: link.{key}"
            found = evaluate(asked, parameters, where) if isinstance(asked, str) else asked
            if isinstance(found, str) or not 0 <= found < math.inf:
                raise UsageError(f"{where}: expected a number ≥ 0, got {found!r}")
            return float(found)

        return Bottleneck(
            rate_mbit=number("rate_mbit", link.rate_mbit),
            queue_bdp=number("queue_bdp", link.queue_bdp),
            delay_ms=number("delay_ms", link.delay_ms),
        )

    def servers(self, setting: Setting) -> tuple[Server | FileSystem, ...]:
        """Return what exists from before the warm-up to after the window: servers, and before them
        a file system on the data disk."""
        values = self.variables(setting, setting.duration_s)
        servers = [self._server(one, values) for one in self.served("machine", setting.parameters)]
        if not self.has_file_system:
            return tuple(servers)
        disk = FileSystem(
            device=setting.data_paths[0],
            at=DISK,
            environment=self._environment(values),
            user=self._user,
            prepare=tuple(self._filled(one, values, "prepare") for one in self.file.prepare),
        )
        return (disk, *servers)

    def served(self, on: str, parameters: Parameters) -> Iterator[ServeFile]:
        """Yield the servers of the machine or the peer that run with these parameters."""
        for one in self.file.serve:
            where = f"{self.where}: serve"
            if one.on == on and (one.when is None or evaluate(one.when, parameters, where)):
                yield one

    def command(self, setting: Setting, argv: tuple[str, ...]) -> Command:
        """Return the command that runs `argv` as the file requests."""
        values = self.variables(setting, setting.duration_s)
        trial = self.file.trial
        limit_s = trial.limit_s or (ONCE_LIMIT_S if trial.kind == "once" else None)
        if trial.kind == "until-stopped":
            ends = f"{setting.duration_s:g}"
            argv = (TIMEOUT, "--signal=INT", ends, *argv)
        return Command(
            argv=argv,
            environment=self._environment(values),
            user=self._user,
            capabilities=self._capabilities,
            scratch_mib=self._scratch_mib,
            open_files=self.file.open_files,
            setup=tuple(self._filled(one, values, "setup") for one in self.file.setup),
            after=tuple(self._filled(one, values, "after") for one in self.file.after),
            files=() if trial.kind == "repeat" else self.files(),
            timeout_s=limit_s,
            label=self.name,
            sched=self.sched(setting.parameters),
            cgroup=self.cgroup(values),
        )

    def sched(self, parameters: Parameters) -> Sched | None:
        """Return the command's own policy; None if it has its machine's."""
        if (asked := self.file.sched) is None:
            return None
        where = f"{self.where}: sched.policy"
        found = fill_in(asked.policy, parameters, where)
        if found not in [*Policy]:
            raise UsageError(f"{where}: expected one of {', '.join(Policy)}, got '{found}'")
        policy = Policy(found)
        return Sched(policy=policy, priority=asked.priority if policy.realtime else 0)

    def has_cgroup(self, parameters: Mapping[str, object]) -> bool:
        """Return whether the command runs in a cgroup of its own with these parameters."""
        asked = self.file.cgroup
        if asked is None or asked.when is None:
            return asked is not None
        return bool(evaluate(asked.when, parameters, f"{self.where}: cgroup.when"))

    def cgroup(self, values: Mapping[str, object]) -> CommandCgroup | None:
        """Return the command's own cgroup; None if it has none."""
        asked = self.file.cgroup
        if asked is None or not self.has_cgroup(values):
            return None
        where = f"{self.where}: cgroup.cpus"
        try:
            cpus = parse_cpus(fill_in(asked.cpus or "", values, where))
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from error
        return CommandCgroup(
            weight=self._limit("weight", values),
            quota_percent=self._limit("quota_percent", values),
            memory_mib=self._limit("memory_mib", values),
            cpus=cpus or None,
        )

    def _limit(self, key: str, values: Mapping[str, object]) -> int | None:
        """Return a limit of the cgroup; None without one, which an expression says by 0."""
        asked = getattr(self.file.cgroup, key)
        if not isinstance(asked, str):
            return None if asked is None else int(asked)
        where = f"{self.where}: cgroup.{key}"
        found = evaluate(asked, values, where)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= _MOST_LIMIT:
            raise UsageError(
                f"{where}: expected a whole number from 0 to {_MOST_LIMIT}, got {found!r}"
            )
        return found or None

    def _server(self, one: ServeFile, values: Mapping[str, object]) -> Server:
        return Server(
            argv=self._filled(one.argv, values, "serve"),
            environment=self._environment(values),
            user=self._user,
            capabilities=self._capabilities,
            scratch_mib=self._scratch_mib,
            open_files=self.file.open_files,
            ready=self._ready(one.ready, values),
            stop=one.stop,
            grace_s=one.grace_s,
        )

    def _ready(self, ready: ReadyFile, values: Mapping[str, object]) -> Ready:
        kind, value = next(
            (kind, found)
            for kind in ("tcp", "udp", "unix", "log", "command")
            if (found := getattr(ready, kind)) is not None
        )
        if kind == "command":
            value = self._filled(value, values, "serve.ready")
        elif kind in ("unix", "log"):
            value = fill_in(value, values, f"{self.where}: serve.ready")
        return Ready(kind=kind, value=value, timeout_s=ready.timeout_s)

    @property
    def has_file_system(self) -> bool:
        """Return whether a file system is made on the data disk."""
        disk = self.file.data_disk
        return disk is not None and disk.use == "filesystem"

    @property
    def _user(self) -> User:
        named: Mapping[str, User] = {"root": None, "nobody": NOBODY}
        return named.get(self.file.user, self.file.user)

    @property
    def _capabilities(self) -> tuple[str, ...]:
        wanted = (name for one in self.file.privileges for name in _CAPABILITIES.get(one, ()))
        return tuple(dict.fromkeys(wanted))

    @property
    def _scratch_mib(self) -> int:
        """Return the size limit for each file of a run; natively a data disk is one."""
        data_mib = DATA_DISK_BYTES >> 20 if self.file.data_disk is not None else 0
        return max(self.file.scratch_mib, data_mib)

    def _environment(self, values: Mapping[str, object]) -> dict[str, str]:
        own = {
            name: fill_in(text, values, f"{self.where}: env.{name}")
            for name, text in self.file.env.items()
        }
        return {**_ENVIRONMENT, "HOME": WORK, **own}

    def argv(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """Return the command itself, filled in with `variables`."""
        argv: list[str] = []
        for number, item in enumerate(self.file.command, start=1):
            where = f"{self.where}: command, item {number}"
            if not isinstance(item, ConditionalFile):
                argv.append(fill_in(item, values, where))
            elif evaluate(item.when, values, where):
                argv += self._filled(item.argv, values, f"command, item {number}")
        return tuple(argv)

    def _filled(self, argv: list[str], values: Mapping[str, object], key: str) -> tuple[str, ...]:
        return tuple(fill_in(item, values, f"{self.where}: {key}") for item in argv)

    def variables(
        self, setting: Setting, duration_s: float, *, operations: int = 0, window_s: float = 0
    ) -> dict[str, object]:
        """Return the variables for expressions; docs/workload-keys.md lists them."""
        server = LOCALHOST
        if any(self.served("peer", setting.parameters)):
            server = peer_of(setting, self.name)
            if self.file.link is not None:
                server = CLIENT
        if self.file.data_disk is not None and not setting.data_paths:
            raise UsageError(f"{self.where} needs a data disk")
        data_paths = [DISK] if self.has_file_system else list(setting.data_paths)
        return {
            **setting.parameters,
            "vcpus": setting.vcpus,
            "threads": setting.vcpus,
            "cpus": setting.cpu_list,
            "first_cpu": int(setting.cpu_list.replace("-", ",").split(",")[0]),
            "duration": plain(duration_s),
            "window": window_s,
            "operations": operations,
            "work": WORK,
            "cwd": CWD,
            "files": brought_folder(self.name),
            "data_path": data_paths[0] if data_paths else "",
            "data_paths": data_paths,
            "server": server,
            "peer": setting.peer or "",
            "competitor_address": COMPETITOR,
            "skip_s": plain(self.file.trial.skip_s),
        }

    def files(self) -> tuple[str, ...]:
        """Return the files of a run to bring back, names or globs."""
        declared = self.file
        read = (name for metric in declared.metrics.values() for name in metric.files)
        beside = (
            one.file
            for one in (declared.operations, declared.windows)
            if one is not None and one.file is not None
        )
        return tuple(dict.fromkeys([*read, *beside, *declared.keep]))

    def marked(self) -> tuple[str, ...] | None:
        """Return the files of each run of a repeated program, if labctl marks its runs."""
        return self.files() if self.file.trial.begins is None else None
