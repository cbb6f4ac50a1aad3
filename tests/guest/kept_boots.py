"""Run labctl so that its guests come from boots that an earlier test has made, for tests of what
happens after a boot: `python -m tests.guest.kept_boots WORD...`, as the command labctl.

They are real guests, restored as a sweep restores them, and each run sets them up and saves them
for itself. A boot is kept under its XML and the disks below it, so that a guest of another kernel,
size or state folder boots. One that doesn't answer is never kept.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

from labctl.cli.main import main
from labctl.domain.session import RunningGuest
from labctl.run.guests.base_guest import ImageSource
from labctl.run.guests.boots import Boots, SavedBoot, _Booting
from labctl.run.guests.started import answering, finish_boot, guest_xml

FOLDER = "LABCTL_TEST_BOOTS"
"""Variable with the folder of kept boots, on the file system of the state folders."""

_settled_and_saved = Boots._settled_and_saved


def _from_kept(self: Boots, boot: _Booting) -> SavedBoot:
    """Replace a guest that has just been started by one that was kept, or keep it."""
    # A network card's tap has been plugged in, and is another one in each run.
    if isinstance(boot.lab.source, ImageSource) and boot.lab.link is None:
        xml = guest_xml(boot.lab, self._baseline, boot.disks)
        kept = Path(os.environ[FOLDER], _key(self, xml))
        if not kept.exists():
            _keep(boot, kept)
        boot.running.end()
        boot = replace(boot, running=_restored(boot, kept, xml))
    return _settled_and_saved(self, boot)


def _key(boots: Boots, xml: str) -> str:
    below = [os.stat(disk.path) for disk in boots._disks.values()]
    files = [(status.st_dev, status.st_ino, status.st_mtime_ns) for status in below]
    asked = re.sub(r"/boot-\d+-", "/boot-", xml)
    return hashlib.sha256(f"{asked}{files}".encode()).hexdigest()


def _keep(boot: _Booting, kept: Path) -> None:
    lab, running = boot.lab, boot.running
    made = kept.with_suffix(".new")
    shutil.rmtree(made, ignore_errors=True)  # of a labctl that was killed meanwhile
    made.mkdir(parents=True)
    with answering(lab, running, lab.boot_s, is_booting=True, is_paused=False) as channel:
        finish_boot(channel, lab.boot_s)
        running.save(made / "memory")
    for name, disk in boot.disks.items():
        shutil.copy2(disk.path, made / name)
    made.rename(kept)


def _restored(boot: _Booting, kept: Path, xml: str) -> RunningGuest:
    for name, disk in boot.disks.items():
        shutil.copyfile(kept / name, disk.path)  # in place: it is QEMU's user's
    running = boot.lab.session.restore(kept / "memory", xml, boot.lab.domain_name)
    running.resume()
    return running


if __name__ == "__main__":
    Boots._settled_and_saved = _from_kept  # type: ignore[method-assign]
    main()
