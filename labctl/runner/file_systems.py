"""Make and mount the file systems that servers and commands use."""

from __future__ import annotations

import os
from typing import Any

from labctl.runner.rights import ids_of
from labctl.runner.steps import run_step

PREPARE_S = 300.0  # of one that fills a file system
# The same on both sides, also where directories order their entries by a random seed.
NEW_FILE_SYSTEM = (
    *("mkfs.ext4", "-q", "-F", "-U", "6c616263-746c-4000-8000-000000000001"),
    *("-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
    *("-E", "hash_seed=6c616263-746c-4000-8000-000000000002"),
)
MOUNTED: list[str] = []


def make_file_system(wanted: dict[str, Any]) -> None:
    """Make a file system, have it filled, and mount it with an empty cache."""
    device, at = wanted["device"], wanted["at"]
    run_step("making a file system", [*NEW_FILE_SYSTEM, device], {}, "/", PREPARE_S)
    os.makedirs(at, exist_ok=True)
    mount(device, at)
    if wanted.get("user") is not None:
        os.chown(at, *ids_of(wanted["user"]))
    for argv in wanted["prepare"]:
        run_step("prepare", argv, wanted, at, PREPARE_S)
    # A mount namespace made meanwhile keeps the file system mounted, and unmounting flushes
    # nothing.
    run_step("flushing", ["sync", "--file-system", at], {}, "/")
    unmount(at)
    mount(device, at)


def mount(device: str, at: str) -> None:
    # A file gets a loop device, which is removed on unmounting (mount(8)).
    run_step("mounting", ["mount", device, at], {}, "/")
    MOUNTED.append(at)


def unmount(at: str) -> None:
    run_step("unmounting", ["umount", at], {}, "/")
    MOUNTED.remove(at)
