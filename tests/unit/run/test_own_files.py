"""Files that somebody else's domain names: which a copy opens, and which it doesn't."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.domain.foreign.foreign_domain import own_domain
from labctl.run.planning import own_domain as own_files
from labctl.run.planning.own_domain import FIRMWARE_FOLDERS, check_files

XML = """\
<domain type='kvm'>
  <name>web</name><memory>1048576</memory><vcpu>1</vcpu>
  <os><type arch='x86_64'>hvm</type>{system}</os>
  <devices>{devices}</devices>
</domain>
"""


def refused(system: str = "", devices: str = "") -> str:
    with pytest.raises(UsageError) as caught:
        check_files(own_domain(XML.format(system=system, devices=devices), "x"))
    assert caught.value.hint
    return caught.value.message


def disk(path: Path, kind: str = "qcow2", more: str = "") -> str:
    return (
        f"<disk type='file'><driver name='qemu' type='{kind}'/><source file='{path}'/>"
        f"<target dev='vda'/>{more}</disk>"
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "planted"
    path.write_bytes(b"\0" * 4096)
    path.chmod(0o600)
    return path


def test_a_kernel_that_nobody_else_can_change_is_booted(file: Path) -> None:
    boot = f"<kernel>{file}</kernel><initrd>{file}</initrd>"
    check_files(own_domain(XML.format(system=boot, devices=""), "x"))


@pytest.mark.parametrize("tag", ["kernel", "initrd"])
def test_a_kernel_that_others_can_change_is_refused(file: Path, tag: str) -> None:
    file.chmod(0o666)
    assert f"'web' boots {file}, but {file} is writable by everybody" in refused(
        f"<{tag}>{file}</{tag}>"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_kernel_of_another_user_is_refused(file: Path) -> None:
    os.chown(file, 65534, 65534)
    assert f"{file} is owned by" in refused(f"<kernel>{file}</kernel>")


def test_a_folder_is_no_kernel(tmp_path: Path) -> None:
    assert "is not a file" in refused(f"<kernel>{tmp_path}</kernel>")


@pytest.mark.parametrize(
    "system",
    ["<loader>{}</loader>", "<loader type='pflash'>{}</loader>", "<nvram template='{}'/>"],
)
def test_firmware_from_elsewhere_is_refused(file: Path, system: str) -> None:
    said = refused(system.format(file))
    assert f"'web' starts the firmware {file}" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="the file has to be root's")
def test_firmware_of_roots_has_to_be_in_a_known_folder(file: Path) -> None:
    said = refused(f"<loader>{file}</loader>")
    assert f"{file} is in none of {FIRMWARE_FOLDERS[0]}" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="the file has to be root's")
def test_a_link_in_a_known_folder_leads_to_one(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tmp_path / "OVMF"
    known.mkdir(mode=0o755)
    (known / "own.fd").write_bytes(b"")
    (known / "leads-out.fd").symlink_to(file)
    monkeypatch.setattr(own_files, "FIRMWARE_FOLDERS", (known,))
    check_files(own_domain(XML.format(system=f"<loader>{known}/own.fd</loader>", devices=""), "x"))
    assert f"{file} is in none of" in refused(f"<loader>{known}/leads-out.fd</loader>")


def make(*words: str | Path) -> None:
    subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True)


@pytest.mark.parametrize("more", ["", "<readonly/>"])
@pytest.mark.parametrize(
    "base",
    [
        "nbd://127.0.0.1:1/x",
        'json:{"driver":"host_device","filename":"/dev/null"}',
        "fat:/etc",
        "ssh://root@127.0.0.1/etc/shadow",
    ],
)
def test_a_disk_based_on_what_is_no_file_is_refused_before_that_is_opened(
    tmp_path: Path, base: str, more: str
) -> None:
    path = tmp_path / "disk.qcow2"
    make("create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", base, path, "4K")
    assert f"is based on {base}, which is not an absolute path of a file" in refused(
        devices=disk(path, more=more)
    )


@pytest.mark.parametrize("more", ["", "<readonly/>"])
@pytest.mark.parametrize("kind", ["raw", "qcow2"])
def test_a_disk_that_is_a_pipe_or_a_device_of_another_kind_is_refused_unopened(
    tmp_path: Path, kind: str, more: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        assert f"disk vda of 'web', {path}: neither a file nor a block device" == refused(
            devices=disk(path, kind, more)
        )


def test_variables_that_are_a_device_are_never_copied() -> None:
    said = refused(system="<nvram>/dev/zero</nvram>")
    assert said == "the variables of 'web', /dev/zero: neither a file nor a block device"


def test_a_disk_based_on_a_pipe_is_refused_unopened(tmp_path: Path) -> None:
    path, pipe = tmp_path / "disk.qcow2", tmp_path / "pipe"
    os.mkfifo(pipe)
    make("create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", pipe, path, "4K")
    assert f"{pipe}: neither a file nor a block device" in refused(devices=disk(path))


def test_a_disk_that_keeps_its_data_in_another_file_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "disk.qcow2", tmp_path / "elsewhere"
    make("create", "-q", "-f", "qcow2", "-o", f"data_file={data}", path, "4K")
    assert f"keeps its data in {data}" in refused(devices=disk(path))


def test_a_base_of_a_format_with_references_of_its_own_is_refused(
    file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "disk.qcow2"
    make("create", "-q", "-u", "-f", "qcow2", "-F", "vmdk", "-b", file, path, "4K")
    assert "says that it is 'vmdk'" in refused(devices=disk(path))


def test_disks_that_are_based_on_each_other_end(tmp_path: Path) -> None:
    one, other = tmp_path / "one.qcow2", tmp_path / "other.qcow2"
    for path, base in ((one, other), (other, one)):
        make("create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", base, path, "4K")
    assert "is based on more than 64 files" in refused(devices=disk(one))


def test_a_base_in_the_same_folder_may_be_said_by_its_name(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "disk.qcow2"
    make("create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", file.name, path, "4K")
    told = subprocess.check_output(["qemu-img", "info", "--output=json", str(path)])
    assert json.loads(told)["full-backing-filename"] == str(file)
    check_files(own_domain(XML.format(system="", devices=disk(path)), "x"))
