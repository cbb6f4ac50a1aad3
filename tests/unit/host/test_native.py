from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.errors import BrokenError, HostError
from labctl.base.process import Deadline, run
from labctl.base.runner_messages import runner_archive
from labctl.host import cgroups, own_cgroups
from labctl.host.link import native_network
from labctl.host.native import NativeSession, check_tree, in_tree, native_session
from labctl.host.settings.journal import Journal

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or "memory" not in cgroups.detect().controllers,
    reason="needs root and memory cgroups",
)


def script(tree: Path) -> Path:
    """Return the script that enters the tree: what the private mount namespace runs."""
    argv = in_tree(tree, ["x"])
    return Path(argv[argv.index(str(tree)) - 1])


def test_the_command_comes_last_and_the_placement_first() -> None:
    argv = in_tree(Path("/tree"), ["sysbench", "--", "x"], cpus=frozenset({0, 2, 3}))
    assert argv[:3] == ["taskset", "--cpu-list", "0,2-3"]
    assert argv[-3:] == ["sysbench", "--", "x"]


def test_it_dies_with_the_one_who_started_it() -> None:
    assert in_tree(Path("/tree"), ["true"])[:3] == ["setpriv", "--pdeathsig", "KILL"]


def test_mounts_come_as_pairs_before_the_command() -> None:
    argv = in_tree(Path("/tree"), ["true"], mounts={Path("/data"): "/labdata"})
    start = argv.index("/tree")
    assert argv[start : start + 4] == ["/tree", "/data", "/labdata", "--"]


def test_without_root_the_remedy_is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(HostError, match="native runs need root"):
        check_tree(Path("/"))


def test_a_folder_that_is_no_tree_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(HostError, match="not the tree of a guest image"):
        check_tree(tmp_path)


def session(tmp_path: Path, network: Path | None = None) -> Any:
    journal = Journal(tmp_path / "journal.jsonl")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/data.img").write_text("data")
    (tmp_path / "runner").write_bytes(runner_archive())
    # The host's own root serves as the tree: it too is a Debian with python3.
    return native_session(
        Path("/"),
        data_folder=tmp_path / "data",
        memory_bytes=128 << 20,
        runner=tmp_path / "runner",
        layout=cgroups.detect(),
        journal=journal,
        network=network,
    )


def sh(channel: Channel, script: str) -> tuple[int, str]:
    result = channel.run(Command(argv=("/bin/sh", "-c", script)), seconds=20)
    return result.returncode, result.stdout.decode()


def mounts() -> set[str]:
    """All but the network namespaces of other labctls: this session has none."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line for line in lines if "/run/netns/labctl-" not in line}


@needs_root
def test_a_native_session_is_read_only_limited_and_leaves_nothing(tmp_path: Path) -> None:
    mounts_before = mounts()
    with session(tmp_path) as native:
        channel = Channel(native.connection, "native")
        channel.wait_ready(Deadline.after(20, "the native runner"))
        assert sh(channel, "cat /labdata/data.img") == (0, "data")
        assert sh(channel, "echo x >/usr/labctl-was-here")[0] != 0
        assert sh(channel, "ls /tmp | wc -l") == (0, "1\n")  # the command's own folder
        assert sh(channel, "test -c /dev/null && test -d /sys/devices && ls /proc/self")[0] == 0
        assert "/labctl-native-" in "".join(native.placement().values())
        assert native.oom_kills() == 0
        assert sh(channel, "python3 -c 'bytearray(512 << 20)'")[0] != 0
        assert native.oom_kills() >= 1
        folders = list(native.group.folders.values())
    assert folders
    assert not any(folder.exists() for folder in folders)
    assert Journal(tmp_path / "journal.jsonl").pending() == []
    assert mounts() - mounts_before == set()


@needs_root
def test_a_native_session_shares_no_memory_with_the_host(tmp_path: Path) -> None:
    """What a program leaves in shared memory, other trials and the host's programs never see."""
    with session(tmp_path) as native:
        channel = Channel(native.connection, "native")
        channel.wait_ready(Deadline.after(20, "the native runner"))
        left = f"labctl-test-{os.getpid()}"
        assert sh(channel, f"echo x >/dev/shm/{left} && ls /dev/shm") == (0, f"{left}\n")
        assert not Path("/dev/shm", left).exists()
        seen = sh(channel, "readlink /proc/self/ns/ipc")[1].strip()
        assert seen != os.readlink("/proc/self/ns/ipc")


@needs_root
def test_ports_of_native_runs_are_their_own(tmp_path: Path) -> None:
    listen = "import socket; s = socket.create_server(('127.0.0.1', {port})); print('listens')"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        script = listen.format(port=taken.getsockname()[1])
        journal = Journal(tmp_path / "network.jsonl")
        with native_network(journal) as network, session(tmp_path, network) as native:
            channel = Channel(native.connection, "native")
            channel.wait_ready(Deadline.after(20, "the native runner"))
            assert sh(channel, f'python3 -c "{script}"') == (0, "listens\n")
            assert sh(channel, "ls /sys/class/net") == (0, "lo\n")
    assert not network.exists()
    assert journal.pending() == []


@needs_root
def test_a_command_in_the_tree_has_a_session_of_its_own(tmp_path: Path) -> None:
    argv = in_tree(Path("/"), ["python3", "-c", "import os; print(os.getpid() == os.getsid(0))"])
    assert run(argv, deadline=Deadline.after(20, "python3")).stdout == "True\n"


def test_a_runner_that_ended_is_reported_with_its_last_words(tmp_path: Path) -> None:
    class Ended:
        pid = 7
        returncode = 1

        def poll(self) -> int:
            return 1

    stderr = tmp_path / "stderr"
    stderr.write_text("mount: permission denied\n")
    ours, theirs = socket.socketpair()
    with ours, theirs, stderr.open("rb") as file:
        group = own_cgroups.Cgroup({}, None, None)
        ended: Any = Ended()
        with pytest.raises(BrokenError, match="status 1: mount: permission denied"):
            NativeSession(ours, ended, group, file).check_alive()


def test_the_script_of_the_tree_lies_beside_its_module() -> None:
    assert "chroot" in script(Path("/t")).read_text()


def test_the_tree_is_entered_with_a_mount_for_each_folder_and_a_copy_for_all_links(
    tmp_path: Path,
) -> None:
    """A sweep enters it hundreds of times, and each program that is started costs a millisecond."""
    tree, bin_folder, log = tmp_path / "tree", tmp_path / "bin", tmp_path / "log"
    for name in ("usr", "etc", "two words", "proc", "run"):
        (tree / name).mkdir(parents=True)
    for name in ("bin", "lib"):
        (tree / name).symlink_to(f"usr/{name}")
    bin_folder.mkdir()
    for name in ("mount", "cp", "mkdir", "chroot"):
        program = bin_folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\n')
        program.chmod(0o755)
    run(
        ["sh", str(script(tree)), str(tree), "--", "true"],
        deadline=Deadline.after(20, "the script"),
        env={"PATH": f"{bin_folder}:{os.environ['PATH']}"},
    )
    called = log.read_text().splitlines()
    assert [line for line in called if line.startswith("cp")] == ["cp -P -- bin lib /sys"]
    assert sum(line.startswith("mkdir") for line in called) == 1
    bound = [line for line in called if line.startswith("mount -o bind,ro")]
    assert bound == [
        f"mount -o bind,ro ./{name} /sys/{name}" for name in ("etc", "two words", "usr")
    ]
    assert called[-1] == "chroot /sys true"
    assert len(called) == 1 + 1 + 1 + len(bound) + 6 + 1


def test_a_group_without_a_limit_counts_no_kills() -> None:
    with pytest.raises(BrokenError, match="without a memory limit"):
        own_cgroups.Cgroup({}, None, None).oom_kills()
