"""A VM's file of another platform becomes the domain that its owner means."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from labctl.base.errors import UsageError
from labctl.base.xmldiff import parse
from labctl.domain.foreign.allowed import DOMAIN
from labctl.domain.foreign.foreign_domain import domain_of_file
from labctl.domain.foreign.platform_file import understood
from labctl.domain.foreign.rebuilt import rebuilt
from labctl.domain.schema import validate

VMS = Path(__file__).parents[1] / "fixtures" / "platforms" / "vms"
FILES = sorted(VMS.iterdir())
GOLDEN = Path(__file__).parents[2] / "golden" / "platforms" / "vms"
KVM = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: a}\nspec:\n"


def test_each_platform_has_ten_files() -> None:
    for platform in ("proxmox", "kubevirt", "openstack"):
        assert len([path for path in FILES if path.name.startswith(platform)]) == 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_becomes_the_domain_as_recorded(path: Path, regenerate_golden: bool) -> None:
    found = domain_of_file(path.read_bytes(), path.name)
    root = parse(found.xml)
    etree.indent(root)
    notes = "".join(f"  {note.replace('--', '- -')}\n" for note in found.notes)
    text = f"<!-- {found.form}\n{notes}-->\n{etree.tostring(root, encoding='unicode')}\n"
    golden = GOLDEN / f"{path.stem}.xml"
    if regenerate_golden:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), "run pytest with --regenerate-golden and read the difference"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_domain_is_copied_whole_and_is_libvirt_s(path: Path) -> None:
    own = domain_of_file(path.read_bytes(), path.name)
    assert own.refused == ()
    assert own.disks != ()
    if path.suffix != ".xml":
        assert rebuilt(parse(own.xml), DOMAIN).left_out == ()
    root = parse(own.xml)
    for mapping in root.findall("devices/disk/driver/iothreads"):  # since libvirt 10
        mapping.getparent().remove(mapping)  # type: ignore[union-attr]
    validate(etree.tostring(root, encoding="unicode"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cores: 2\nmemory\n", "vm, line 2: expected 'option: value', got 'memory'"),
        ("cores: two\n", "vm, line 1: cores: expected a whole number, got 'two'"),
        ("cores: 999999999\nmemory: 1\n", "vm: expected 1 to 1024 vCPUs"),
        ("/usr/bin/kvm -name 'web", "vm: not a command as 'qm showcmd --pretty' prints it"),
        ("/usr/bin/kvm -blockdev '{x'", "vm: -blockdev is not as Proxmox VE writes it"),
        ("kind: Pod\napiVersion: v1\n", "expected kind VirtualMachine or VirtualMachineInstance"),
        (f"{KVM}  domain: 3\n", "vm, line 5: 'domain': expected a mapping"),
        (
            f"{KVM}  domain:\n    cpu: {{cores: x}}\n",
            "vm, line 6: 'cores': expected a whole number",
        ),
        (f"{KVM}  domain:\n    memory: {{guest: 2 GB}}\n", "line 6: 'guest': expected a quantity"),
        (f"{KVM}  domain:\n    devices: {{disks: 1}}\n", "line 6: 'disks': expected a list"),
        (f"{KVM}  domain: !!python/name:os.system x\n", "vm, line 5:"),
        ("{'vcpus': 2, 'ram': many}", "vm, line 1: 'ram': expected a whole number"),
        ("just words\n", "vm is of no form that labctl knows"),
        ("\x00\x01", "vm is of no form that labctl knows"),
        ("x: " + "[" * 5000, "vm is of no form that labctl knows"),
        ("apiVersion: " + "[" * 5000, "vm, line 1:"),
        ("a: 1\n" * 400_000, "vm is larger than 1048576 bytes"),
    ],
)
def test_a_file_that_is_not_understood_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        domain_of_file(text.encode(), "vm")
    assert said in caught.value.message


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(UsageError, match="vm is not UTF-8 text"):
        domain_of_file(b"cores: \xff\n", "vm")


@pytest.mark.parametrize(
    "text",
    [
        "cores: 1\nnet0: virtio=a\x01b\n",
        "cores: 1\nscsi0: local-lvm:a,cache=\x1b[31m\n",
        f'{KVM}  domain: {{memory: {{guest: 1Gi}}, cpu: {{model: "a\\0"}}}}\n',
    ],
)
def test_a_character_that_xml_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="holds a character that XML cannot hold"):
        domain_of_file(text.encode(), "vm")


@pytest.mark.parametrize("flag", ["+hv-", "+hv-a/b", "+", ";;", "-[", "+hv-tlbflush"])
def test_a_flag_leads_nowhere_in_the_xml(flag: str) -> None:
    domain_of_file(f"cores: 1\ncpu: host,flags={flag}\n".encode(), "vm")


DOMAIN_XML = """<domain type='kvm'>
<name>db</name><memory>1</memory><vcpu placement='auto'>1</vcpu>
<numatune><memory mode='strict' placement='auto'/></numatune>
<os><type arch='x86_64'>hvm</type></os>
<devices>
{}
</devices></domain>"""


@pytest.mark.parametrize(
    ("device", "note"),
    [
        ("<hostdev type='pci'/>", "<hostdev> (line 6): left out (a passed-through device)"),
        ("<filesystem/>", "<filesystem> (line 6): left out (a shared folder)"),
        (
            "<disk type='network'><source protocol='rbd' name='ssd/db'><auth/></source>"
            "<target dev='vda'/></disk>",
            "disk vda (network rbd ssd/db with a secret): stand-in",
        ),
        (
            "<disk type='network'><source protocol='iscsi' name='i/1'/><target dev='vda'/></disk>",
            "disk vda (network iscsi i/1): stand-in /var/lib/labctl/disks/db-vda.qcow2; put a",
        ),
        (
            "<disk type='volume'><source pool='p' volume='v'/><target dev='vda'/></disk>",
            "disk vda (volume p v): stand-in",
        ),
        (
            "<disk type='block' device='lun'><source dev='/dev/sg'/><target dev='sda'/></disk>",
            "disk sda (block /dev/sg lun): stand-in",
        ),
        (
            "<disk><driver type='vmdk'/><source file='/x'/><target dev='vda'/></disk>",
            "disk vda (file /x vmdk): stand-in",
        ),
        (
            "<disk><source file='/x'><encryption/></source><target dev='vda'/></disk>",
            "disk vda (file /x with a secret): stand-in",
        ),
        (
            "<disk device='cdrom' type='network'><target dev='sda'/></disk>",
            "disk sda: left out (a CD that is not a file of this host)",
        ),
    ],
)
def test_a_libvirt_domain_without_what_no_copy_can_have(device: str, note: str) -> None:
    own = domain_of_file(DOMAIN_XML.format(device).encode(), "vm")
    assert own.form == "libvirt"
    assert own.refused == ()
    assert any(found.startswith(note) for found in own.notes), own.notes
    assert "<vcpu> placement='auto': static" in own.notes
    assert "<memory> (line 3): left out (numad places it differently at each start)" in own.notes
    disk = parse(own.xml).find("devices/disk")
    if disk is not None:
        assert (disk.get("type"), disk.get("device")) == ("file", "disk")
        assert parse(own.xml).find("devices/disk/driver[@type='qcow2']") is not None
        assert rebuilt(parse(own.xml), DOMAIN).left_out == ()


def test_a_disk_that_its_owner_moved_out_of_the_pod_stays() -> None:
    file = VMS / "kubevirt-10-virt-launcher.xml"
    once = domain_of_file(file.read_bytes(), "vm")
    moved = once.xml.replace(str(once.disks[0].path), "/srv/web.qcow2")
    assert domain_of_file(moved.encode(), "vm").disks[0].path == Path("/srv/web.qcow2")


def test_values_that_may_be_secret_are_not_printed() -> None:
    found = understood(b"cores: 1\ncipassword: hunter2\nargs: -x hunter2\n", "vm")
    assert "hunter2" not in " ".join(found.notes) + found.xml.decode()


@pytest.mark.parametrize("volume", ["local-lvm:../../etc/shadow", "local:../../../etc/shadow"])
def test_a_volume_does_not_lead_out_of_its_storage(volume: str) -> None:
    found = understood(f"cores: 1\nscsi0: {volume},size=1G\n".encode(), "vm")
    assert b"shadow" not in found.xml
