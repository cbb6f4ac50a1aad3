"""Run Ansible as a process: the hosts of an inventory, and a playbook with its events.

Nothing of Ansible is imported, because its code is under the GPL; ansible-runner, which is not,
starts it as another program.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from labctl.base import process
from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.paths import shipped_data
from labctl.base.process import Deadline, ending_signals_call

# Provide a temporary folder for ansible-runner's files: events, and an environment with secrets.


_PREFIX: Final = "labctl-fleet-"
_YOUNG_S: Final = 60.0
"""Age below which a folder's owner may not have locked it yet."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a folder that only this user can read, and that is removed at the end. Folders of
    killed labctls, whose locks nobody holds, are removed first."""
    _remove_left()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as made:
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(made)
        finally:
            os.close(descriptor)


def _remove_left() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(descriptor)
                if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _YOUNG_S:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


_INSTALL: Final = "Install it: pip install 'labctl[fleet]'."
_LIST_S: Final = 300.0
_MOST_FILES: Final = 500
"""Limit for a folder of inventories: Ansible tries to read each file in several formats."""
_OF_VARIABLES: Final = ("group_vars", "host_vars", "vars_plugins")


def collections() -> Path:
    """Return the folder that holds ansible_collections."""
    return shipped_data() / "ansible"


def environment() -> dict[str, str]:
    """Return the variables that Ansible's programs get beside the caller's environment."""
    found = {
        "ANSIBLE_COLLECTIONS_PATH": os.pathsep.join(
            filter(None, (str(collections()), os.environ.get("ANSIBLE_COLLECTIONS_PATH")))
        ),
        # ansible-runner turns it off by default: a host with another key than the known one would
        # then be measured, and tuned.
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        # By default the main loop polls each millisecond.
        "ANSIBLE_INTERNAL_POLL_INTERVAL": "0.1",
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
    }
    if config := _present_config():
        found["ANSIBLE_CONFIG"] = config
    return found


def _present_config() -> str | None:
    """Return the current folder's ansible.cfg, as Ansible itself would use it: ansible-runner
    starts it in another folder."""
    path = Path("ansible.cfg")
    if "ANSIBLE_CONFIG" in os.environ or not path.is_file():
        return None
    if path.absolute().parent.stat().st_mode & stat.S_IWOTH:
        return None
    return str(path.absolute())


def inventory_hosts(inventory: Sequence[str], limit: str | None) -> list[str]:
    """Return the hosts of inventories in their order. Raises UsageError if there are none, and
    HostError if ansible-core is missing."""
    for one in inventory:
        # With a comma it is a list of hosts.
        if "," not in one and not Path(one).exists():
            raise UsageError(
                f"no inventory {one}",
                hint="Pass a file or a folder of inventories, or hosts with a comma ('web1,').",
            )
        if "," not in one and _is_too_large(Path(one)):
            raise UsageError(
                f"{one} has more than {_MOST_FILES} files and folders, too many for inventories",
                hint="Ansible reads each file in it, and runs each program. Pass a file, or a "
                "folder with only inventories.",
            )
    argv = ["ansible", "all", "--list-hosts", *_inventories(inventory)]
    if limit:
        argv += ["--limit", limit]
    done = process.run(
        argv,
        env=environment(),
        deadline=Deadline.after(_LIST_S, "reading the inventory"),
        check=False,
        hint=_INSTALL,
    )
    if done.returncode:
        raise UsageError(
            f"Ansible cannot read the inventory: {' '.join(done.stderr.split())[:500]}",
            hint="'ansible-inventory -i FILE --list' shows how Ansible reads it.",
        )
    hosts = [line.strip() for line in done.stdout.splitlines()[1:] if line.strip()]
    if not hosts:
        raise UsageError(
            f"no host in {', '.join(inventory)}{f' matches {limit!r}' if limit else ''}",
            hint="'ansible-inventory -i FILE --graph' shows groups and hosts.",
        )
    return hosts


def _is_too_large(folder: Path) -> bool:
    """Return whether a folder has more files and folders than one of inventories; Ansible does not
    read those of variables as inventories."""
    found = 0
    for _, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name not in _OF_VARIABLES]
        found += len(folders) + len(files)
        if found > _MOST_FILES:
            return True
    return False


def in_full(inventory: str) -> str:
    """Return an inventory with its full path if it is a file: Ansible runs in another folder."""
    return str(Path(inventory).absolute()) if Path(inventory).exists() else inventory


def _inventories(inventory: Sequence[str]) -> list[str]:
    return [word for one in inventory for word in ("--inventory", one)]


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a playbook: its status, and its last lines if it failed."""

    status: int
    said: str


def play(
    playbook: str,
    *,
    inventory: Sequence[str],
    limit: Sequence[str],
    forks: int,
    variables: Mapping[str, object],
    handler: Callable[[Mapping[str, object]], None],
    check: bool = False,
) -> Ended:
    """Run a playbook of the collection to its end; `handler` gets each event as it arrives.

    ansible-runner writes the environment and each event into files, which lie in a folder of this
    user alone and are removed. Raises HostError if it is not installed, and what the handler
    raised, after the playbook was ended.
    """
    try:
        import ansible_runner
    except ImportError as error:
        raise HostError("ansible-runner is not installed", hint=_INSTALL) from error
    if shutil.which("ansible-playbook", path=environment()["PATH"]) is None:
        raise HostError("'ansible-playbook' is not installed", hint=_INSTALL)
    raised: list[BaseException] = []
    ended = threading.Event()

    def hear(event: dict[str, object]) -> bool:
        if not raised:
            try:
                handler(event)
            except BaseException as error:  # runner would lose it in its own event thread
                raised.append(error)
        return False

    # Each worker of Ansible's has a session of its own: runner ends only the first process, and the
    # workers would wait for hosts for hours.
    running: list[psutil.Process] = []

    def is_cancelled() -> bool:
        if not raised and not ended.is_set():
            return False
        if not running:
            running.extend(psutil.Process().children(recursive=True))
        return True

    # ansible-playbook has a session of its own, so that our signals do not end it.
    with private_folder() as made, ending_signals_call(lambda number, frame: ended.set()):
        limited = made / "hosts.limit"
        limited.write_text("".join(f"{host}\n" for host in limit))
        given = made / "variables.json"
        given.write_text(json.dumps(dict(variables)))
        words = ["--extra-vars", f"@{given}", "--limit", f"@{limited}", "--forks", str(forks)]
        words += ["--check", "--diff"] if check else []
        runner = ansible_runner.run(
            private_data_dir=str(made),
            playbook=playbook,
            inventory=list(map(in_full, inventory)),
            cmdline=shlex.join(words),
            envvars=environment(),
            event_handler=hear,
            cancel_callback=is_cancelled,
            quiet=True,
            suppress_env_files=True,
        )
        said = runner.stdout.read()[-4000:] if runner.rc else ""
    for left in running:
        with suppress(psutil.NoSuchProcess):
            left.kill()
    if raised:
        raise raised[0]
    # A signal during the end of the last task cancels nothing, but still counts.
    if ended.is_set() or runner.status == "canceled":
        raise KeyboardInterrupt
    if runner.rc is None:
        raise BrokenError(f"ansible-playbook did not end: {runner.status}")
    return Ended(int(runner.rc), re.sub(r"\x1b\[[0-9;]*m", "", said))


# Split hosts into batches, as Ansible's `serial` does.


_SIZE = re.compile(r"([1-9][0-9]*)(%?)")


def batches_of(hosts: Sequence[str], serial: str) -> tuple[tuple[str, ...], ...]:
    """Return the hosts in batches of the sizes that `serial` lists ("1,10%"): numbers of hosts, or
    shares of all of them; the last size applies to the rest. Raises UsageError."""
    sizes = [_size(word.strip(), len(hosts)) for word in serial.split(",")]
    found: list[tuple[str, ...]] = []
    begin = 0
    while begin < len(hosts):
        end = begin + sizes[min(len(found), len(sizes) - 1)]
        found.append(tuple(hosts[begin:end]))
        begin = end
    return tuple(found)


def _size(word: str, hosts: int) -> int:
    match = _SIZE.fullmatch(word)
    if match is None or (match[2] and int(match[1]) > 100):
        raise UsageError(
            f"--serial: expected a number of hosts or a share, got '{word}'",
            hint="Write it as '10%', or as '1,10%' for one host first.",
        )
    return max(1, hosts * int(match[1]) // 100) if match[2] else int(match[1])
