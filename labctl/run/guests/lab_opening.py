"""Open a lab: prepare the host for guests, and restore it afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths
from labctl.base.process import cleaning_up
from labctl.domain.session import Session
from labctl.guest.images import Image, keep_private
from labctl.host import cgroups
from labctl.host.link import Link, link, native_network
from labctl.host.settings.journal import Journal
from labctl.run.guests.base_guest import GuestBase
from labctl.run.guests.lab import Lab, link_mac
from labctl.run.guests.leftovers import no_guest_cgroups_left
from labctl.run.planning.planned import Planned, has_native_network, has_peers, narrows_links
from labctl.run.resources.disks import RAW, DataDisks
from labctl.run.resources.huge_pages import hugetlbfs_mounted, pages_of, sizes_in_files
from labctl.run.resources.qemu_user import QemuUser, account_of_qemu, qemu_user


@contextmanager
def open_lab(
    places: StatePaths,
    planned: Planned,
    base: GuestBase,
    *,
    connect: str | None = None,
    listener: Listener,
) -> Iterator[Lab]:
    """Prepare the host for guests of `planned`; restore it afterwards, with no guest running.

    `connect`: a libvirt URI, else libvirt runs embedded. The caller holds the host's lock.
    """
    journal = Journal(places.journal)
    layout = cgroups.detect()
    with ExitStack() as stack:
        work = stack.enter_context(_work_folder(places))
        stack.enter_context(cgroups.controllers_enabled(layout, journal))
        # A daemon knows the mounts of its own host.
        sizes = () if connect else _page_sizes(planned)
        mounts = stack.enter_context(hugetlbfs_mounted(sizes, places.hugetlbfs, journal))
        stack.enter_context(no_guest_cgroups_left(places))
        user = None
        images = [base.image, *(image for image, _ in base.others.values())]
        if not connect:
            if account := account_of_qemu():
                # In any run: a VM of one's own may boot these files, and must be able to read them.
                for image in images:
                    open_image(image, account.gid)
            opened = [work, places.data, places.libvirt_root]
            opened += [folder for image in images for folder in _folders_of(image)]
            own = planned.own.domain if planned.own else None
            files = [file for image in images for file in _files_of(image)]
            # An initrd and a kernel are read by the image's own copies.
            files += [Path(t.emulator) for t in planned.tunings.values() if t.emulator]
            user = qemu_user(base.accelerator, opened, files, planned.tunings.values(), own)
            listener(Note(text=user.sentence))
        session = stack.enter_context(_session(places, layout, connect, mounts, user))
        made: Link | None = None
        network: Path | None = None
        if has_peers(planned.plan):
            is_narrow = narrows_links(planned.plan)
            made = stack.enter_context(link(journal, link_mac(work), is_narrow=is_narrow))
            network = made.native_file
        elif has_native_network(planned.plan):
            network = stack.enter_context(native_network(journal))
        lab = Lab(
            places=places,
            work=work,
            qemu_user=user,
            image=base.image,
            source=base.source,
            others=base.others,
            builds=planned.plan.builds,
            accelerator=base.accelerator,
            session=session,
            journal=journal,
            layout=layout,
            topology=planned.topology,
            pin_plans=planned.pin_plans,
            tunings=planned.tunings,
            vcpus=len(planned.pin_plan.vcpus),
            memory_mib=planned.plan.guest.memory_mib,
            boot_s=planned.plan.limits.boot_s,
            data=DataDisks(
                places.data,
                formats=frozenset({RAW, *(t.disk.format for t in planned.tunings.values())}),
                count=planned.plan.guest.data_disks,
            ),
            link=made,
            native_network=network,
            listener=listener,
        )
        lab.sockets.mkdir(mode=0o700)
        lab.data.make()
        stack.enter_context(open_to_qemu(lab))
        yield lab


@contextmanager
def open_to_qemu(lab: Lab) -> Iterator[None]:
    """Let QEMU's group, and no other user of the host, read the guests' files, and QEMU's user
    write to the data disks; after the run, other guests of that user cannot.

    A guest that breaks out of QEMU can then reach the files of its own run, but neither the image's
    tree, with its set-user-ID programs, nor older runs.
    """
    user, group = lab.qemu_ids
    for image in (lab.image, *(other for other, _ in lab.others.values())):
        open_image(image, group)
    files = lab.data.files
    for folder in (lab.work, lab.data.folder):
        _let_pass(folder, group)
    try:
        for file in files:
            # A daemon gives it to QEMU's user itself, and takes it back.
            os.chown(file, user if lab.session.is_embedded else -1, group)
            file.chmod(0o640)
        yield
    finally:
        with cleaning_up():
            for file in filter(Path.exists, files):
                os.chown(file, os.geteuid(), -1)


def open_image(image: Image, group: int) -> None:
    """Let a group read an image's files, but not its tree."""
    for folder in filter(Path.is_dir, _folders_of(image)):
        _let_pass(folder, group)
    for file in _files_of(image):
        os.chown(file, -1, group)
        file.chmod(0o640)
    keep_private(image.dir)


def _folders_of(image: Image) -> list[Path]:
    return [image.dir.parent, image.dir, image.prepared_dir]


def _files_of(image: Image) -> list[Path]:
    files = (image.disk, image.kernel, image.initrd, *image.prepared_dir.glob("[!.]*"))
    return [file for file in files if file is not None and file.is_file()]


def _let_pass(folder: Path, group: int) -> None:
    os.chown(folder, -1, group)
    folder.chmod(0o710)


def _page_sizes(planned: Planned) -> set[str]:
    """Sizes of the huge pages that guests of `planned` take from files."""
    own = pages_of(planned.own.domain.xml) if planned.own is not None else ()
    return sizes_in_files(planned.tunings.values()) | {pages.size for pages in own}


@contextmanager
def _work_folder(places: StatePaths) -> Iterator[Path]:
    """Make the folder for what only a run needs. No other user may list it. QEMU, which a daemon
    runs as a user of its own, may reach the disks that it is given (`open_to_qemu`). Only root can
    read save files."""
    work = places.work
    work.mkdir(parents=True, exist_ok=True)
    work.chmod(0o700)
    try:
        yield work
    finally:
        with cleaning_up():
            for path in sorted(work.rglob("*"), reverse=True):
                # QEMU removes its sockets itself, perhaps at this moment.
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def _session(
    places: StatePaths,
    layout: cgroups.Layout,
    connect: str | None,
    hugetlbfs: Sequence[Path],
    user: QemuUser | None,
) -> Iterator[Session]:
    if user is None:
        assert connect is not None
        opened = Session.connected(connect)
    else:
        opened = Session.embedded(
            places.libvirt_root,
            cgroups.libvirt_controllers(layout),
            hugetlbfs,
            user=user.name,
            group=user.group,
            opens_kvm=user.opens_kvm,
        )
    with opened as session:
        try:
            yield session
        finally:
            with cleaning_up():
                session.end_all()
