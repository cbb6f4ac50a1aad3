"""Give a clone what it can't share with the others: its seat, disks and network card, and the XML
that names them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from labctl.base.cpus import CpuSet
from labctl.base.own_guests import neighbour_seat
from labctl.base.tuning import Tuning
from labctl.domain.confined import confined_to
from labctl.domain.usb_addresses import with_usb_addresses
from labctl.host.link import tap
from labctl.run.guests.boots import SavedBoot, empty_data_disks
from labctl.run.guests.lab import Lab
from labctl.run.guests.started import guest_xml, hand_over
from labctl.run.resources.disks import make_overlays, remove_disks
from labctl.run.resources.huge_pages import huge_pages, pages_of


@dataclass(frozen=True, slots=True)
class CloneParts:
    """Hold the lab with a clone's seat, and the clone's XML."""

    lab: Lab
    xml: str


@contextmanager
def clone_parts(
    lab: Lab, saved: SavedBoot, tuning: Tuning, cpus: CpuSet | None, number: int
) -> Iterator[CloneParts]:
    """Make the files and devices of the clone of that number, from 0; remove them at the end.
    `cpus`: those of all its threads; None where its tuning says where each runs."""
    lab = replace(lab, seat=neighbour_seat(number))
    with ExitStack() as stack:
        if lab.link is not None:
            # Plugged into nothing: a restored card only wants the kind that it was saved with.
            unplugged = lab.link.unplugged(number)
            many = (tuning.network.queues or 1) > 1
            stack.enter_context(tap(lab.journal, unplugged, many_queues=many))
            lab = replace(lab, link=unplugged)
        lab = replace(lab, data=empty_data_disks(lab, tuning))
        stack.callback(shutil.rmtree, lab.data.folder, ignore_errors=True)
        disks = make_overlays(saved.disks, lab.work, lab.domain_name)
        stack.callback(remove_disks, disks)
        stack.callback(lab.console_log.unlink, missing_ok=True)
        for disk in disks.values():
            hand_over(lab, disk.path)
        asked = guest_xml(lab, tuning, disks)
        if cpus is not None:
            asked = confined_to(asked, cpus)
        xml = with_usb_addresses(asked, saved.live)
        stack.enter_context(huge_pages(pages_of(xml), lab.journal))
        yield CloneParts(lab, xml)
