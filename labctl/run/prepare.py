"""The prepared image: what cloud-init's first boot makes of a built one, kept beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.base.channel import Channel, runner_program
from labctl.base.command import Command
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError
from labctl.base.events import Note
from labctl.base.tuning import Tuning
from labctl.domain.readback import ExpectedThread, expected_threads
from labctl.domain.session import RunningGuest
from labctl.guest import seed
from labctl.guest.images import Image
from labctl.run.disks import DiskFile, Disks, make_overlay
from labctl.run.guests import answering, image_xml
from labctl.run.lab import Lab

_FIRST_BOOT = 2.0
"""How much longer than later ones a first boot may take: cloud-init provisions in it."""


_ROOT = "root"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Guests of an image that labctl has built: its runner is in them, and starts by itself."""

    image: Image

    @property
    def has_native_side(self) -> bool:
        return True

    @property
    def says_everything(self) -> bool:
        return True

    @property
    def programs(self) -> Mapping[str, str]:
        return {name: str(record["path"]) for name, record in self.image.binaries.items()}

    def hash_elsewhere(self, program: str) -> str | None:
        return str(self.image.binaries[program]["sha256"])

    def disks(self, lab: Lab, baseline: Tuning) -> Disks:
        return {_ROOT: DiskFile(prepared_disk(lab, baseline))}

    def check(self) -> None:
        pass  # labctl's own files

    def xml(self, lab: Lab, tuning: Tuning, disks: Disks) -> str:
        return image_xml(lab, tuning, disks[_ROOT].path)

    def expected_threads(self, lab: Lab, tuning: Tuning, xml: str) -> list[ExpectedThread]:
        # Not from the XML: a fault in the templates must show.
        return expected_threads(tuning, lab.pin_plan_for(tuning), lab.topology.usable)

    def greet(self, lab: Lab, running: RunningGuest, deadline: Deadline) -> None:
        pass

    def quieten(self, channel: Channel) -> None:
        pass  # the image's recipe has left it out

    def hint(self, lab: Lab) -> str:
        given = self.image.given_kernel
        if given is None:
            return "'labctl image verify' tells whether its image is whole."
        initrd = "an initrd" if self.image.initrd is not None else "no initrd"
        modules = given["modules"] or "nowhere but the image"
        return (
            f"It boots {given['file']} ({given['release']}) with {initrd}; modules from {modules}. "
            "The kernel or its initrd must have virtio_pci, virtio_blk and ext4; virtio_console "
            "and isofs may be modules. Without '--kernel' it boots the image's own."
        )


def prepared_disk(lab: Lab, baseline: Tuning) -> Path:
    """The overlay that a first boot of the image provisioned; booted now if there is none.

    It is found by its seed's digest, so that another runner or another user-data makes another.
    Raises BrokenError with the log's last lines when cloud-init failed.
    """
    files = seed.render(
        hostname="labctl-guest",
        instance_id="labctl-1",
        user=str(lab.image.manifest["user"]),
        runner_program=runner_program(),
    )
    prepared = lab.image.prepared_dir / f"{seed.seed_digest(files)[:12]}.qcow2"
    if prepared.is_file():
        return prepared
    lab.listener(Note(text="First boot: cloud-init provisions the guest image (once)."))
    lab.image.prepared_dir.mkdir(exist_ok=True)
    seed_disk = lab.work / "seed.iso"
    seed.write_seed(seed_disk, files)
    disk = lab.image.prepared_dir / f".{prepared.name}.new"
    # By a relative name, so that the state folder may be moved, or be known by another path.
    make_overlay(Path(os.path.relpath(lab.image.disk, disk.parent)), disk)
    try:
        running = lab.session.start(image_xml(lab, baseline, disk, seed_disk))
        with answering(lab, running, lab.boot_s * _FIRST_BOOT, is_booting=True) as channel:
            _wait_for_cloud_init(channel, lab.boot_s * _FIRST_BOOT)
            for argv in seed.finish_commands():
                _run(channel, argv)
            # Nothing is written after this: the guest can be ended as by a loss of power.
            _run(channel, ["mount", "-o", "remount,ro", "/"], check=False)
            _run(channel, ["sync"])
        disk.rename(prepared)
    finally:
        disk.unlink(missing_ok=True)
    return prepared


def _wait_for_cloud_init(channel: Channel, seconds: float) -> None:
    channel.run(Command(argv=("cloud-init", "status", "--wait")), seconds=seconds)
    texts = channel.read([seed.RESULT_PATH, seed.LOG_PATH], Deadline.after(30, "cloud-init's log"))
    problem = seed.status_problem(texts[seed.RESULT_PATH] or "", texts[seed.LOG_PATH] or "")
    if problem is not None:
        raise BrokenError(
            problem, hint="Compare 'templates/cloud-init' in the lab folder with labctl's own."
        )


def _run(channel: Channel, argv: list[str], *, check: bool = True) -> None:
    result = channel.run(Command(argv=tuple(argv)), seconds=120)
    if check and result.returncode != 0:
        said = result.stderr.decode(errors="replace").strip()
        raise BrokenError(f"'{' '.join(argv)}' failed in the guest's first boot: {said}")
