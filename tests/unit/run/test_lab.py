from pathlib import Path

import pytest

from labctl.run.lab import logs_of_qemu


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
