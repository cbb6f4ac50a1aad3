import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from labctl.guest.images import Image
from labctl.run.guests.lab import Lab, logs_of_qemu
from labctl.run.guests.lab_opening import open_to_qemu
from labctl.run.resources.disks import DataDisks


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("qemu:///embed?root=/var/lib/labctl/lv", "/var/lib/labctl/lv/log/qemu"),
        ("qemu:///embed?root=/srv/other", "/srv/other/log/qemu"),
        ("qemu:///embed?keepalive=1&root=/srv/a%20b+c", "/srv/a b+c/log/qemu"),
        ("qemu:///system", "/var/log/libvirt/qemu"),
        ("qemu+unix:///system?socket=/run/libvirt/libvirt-sock", "/var/log/libvirt/qemu"),
    ],
)
def test_qemu_s_log_is_where_the_connection_s_libvirt_keeps_it(uri: str, folder: str) -> None:
    assert logs_of_qemu(uri) == Path(folder)


@pytest.mark.parametrize("is_embedded", [True, False])
def test_qemus_group_reaches_what_guests_are_made_of_and_others_nothing(
    tmp_path: Path, is_embedded: bool
) -> None:
    folder, data = tmp_path / "images/debian", tmp_path / "data"
    for made in (folder / "tree", folder / "prepared", data, tmp_path / "running"):
        made.mkdir(parents=True)
    image = Image(folder, {"files": {"initrd.img": {}}})
    disk = DataDisks(data)
    files = [image.disk, image.kernel, folder / "initrd.img", disk.paths[0]]
    files.append(image.prepared_dir / "x.qcow2")
    for file in files:
        file.write_text("x")
    session = SimpleNamespace(is_embedded=is_embedded)
    work = tmp_path / "running"
    found = SimpleNamespace(
        image=image,
        others={},
        session=session,
        data=disk,
        work=work,
        qemu_ids=(65534, 65534),
    )
    with open_to_qemu(cast(Lab, found)):
        for file in files:
            # A daemon gives the data disk to QEMU's user itself.
            own = 65534 if file == disk.paths[0] and is_embedded else os.geteuid()
            assert (file.stat().st_uid, file.stat().st_gid) == (own, 65534)
            assert file.stat().st_mode & 0o777 == 0o640
    assert {file.stat().st_uid for file in files} == {os.geteuid()}, "after the run"
    for opened in (folder, image.prepared_dir, folder.parent, tmp_path / "running"):
        assert opened.stat().st_mode & 0o777 == 0o710
        assert opened.stat().st_gid == 65534
    assert image.tree.stat().st_mode & 0o777 == 0o700
