"""A VM's file of another platform becomes the domain that its owner means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree

from labctl.base.errors import UsageError
from labctl.base.xmldiff import parse
from labctl.domain.foreign.allowed import DOMAIN
from labctl.domain.foreign.foreign_domain import domain_of_file
from labctl.domain.foreign.graft import compared
from labctl.domain.foreign.platform_file import understood
from labctl.domain.foreign.rebuilt import rebuilt
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.domain.schema import validate
from labctl.study.tunings import load_tuning
from tests.unit.domain import hosts
from tests.unit.domain.own import copy_of

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


@pytest.mark.parametrize("tuning", ["baseline", "pinned+fifo+iothreads"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_copy_with_a_tuning_is_libvirt_s(path: Path, tuning: str) -> None:
    own = domain_of_file(path.read_bytes(), path.name)
    if own.vcpus > 8:
        pytest.skip("the host of the plan has room for eight vCPUs")
    copy = replace(own, xml=copy_of(own).xml)
    wanted = load_tuning(tuning)
    plan = pin_plan(hosts.TWO_SOCKETS_SMT, own.vcpus, max(1, wanted.iothreads))
    root = parse(compared(copy, wanted, plan, load_tuning("baseline"), "kvm"))
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
        "cores: 1\nnet0: virt\x01io=a\n",
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


def test_files_of_virt_launcher_s_pod_have_stand_ins() -> None:
    text = DOMAIN_XML.format("").replace("<memory>", "<metadata><k xmlns='http://kubevirt.io'/>"
        "</metadata><memory>").replace(
        "'>hvm</type>",
        "' machine='pc-q35-rhel9.4.0'>hvm</type><loader type='pflash'>/usr/share/OVMF/X.fd</loader>"
        "<nvram template='/tmp/x'>/tmp/y</nvram><kernel>/var/run/kubevirt/k</kernel>",
    )  # fmt: skip
    own = domain_of_file(text.encode(), "vm")
    assert own.form == "virt-launcher"
    assert (own.firmware, own.nvram, own.is_uefi) == ((), None, True)
    assert own.boot_files == (Path("/var/lib/labctl/disks/db-kernel"),)
    assert "machine='q35'" in own.xml.replace('"', "'")
    for note in ("<loader> (line 4): this host's UEFI", "machine pc-q35-rhel9.4.0: the version"):
        assert any(one.startswith(note) for one in own.notes), own.notes


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


CMD = "/usr/bin/kvm -id 1 -name 'a,debug-threads=on' -smp '4,sockets=2,cores=2,maxcpus=4' "
NODES = (
    "-m 'size=1024,slots=255,maxmem=8192M' "
    "-object 'memory-backend-ram,id=ram-node0,size=512M,host-nodes=0,policy=bind' "
    "-numa 'node,nodeid=0,cpus=0,cpus=1,memdev=ram-node0' "
    "-object 'memory-backend-ram,id=ram-node1,size=512M' "
    "-numa 'node,nodeid=1,cpus=2-3,memdev=ram-node1' "
    "-object 'memory-backend-ram,id=mem-dimm0,size=1024M' "
    "-device 'pc-dimm,id=dimm0,memdev=mem-dimm0,node=1' "
)
TWO_DISKS = "cores: 1\nscsi0: local-lvm:a\nvirtio1: local-lvm:b\n"


@pytest.mark.parametrize(
    ("text", "path", "found"),
    [
        ("sockets: 2\ncores: 2\nmemory: 4096\nnuma: 1\n", "cpu/numa/cell/@cpus", ["0-1", "2-3"]),
        ("sockets: 2\ncores: 2\nmemory: 4096\nnuma: 1\n", "cpu/numa/cell/@memory", ["2048"] * 2),
        (f"boot: order=net0;virtio1\n{TWO_DISKS}", "devices/disk[2]/boot/@order", ["1"]),
        (f"boot: order=virtio1;scsi0\n{TWO_DISKS}", "devices/disk/boot/@order", ["2", "1"]),
        (f"bootdisk: virtio1\n{TWO_DISKS}", "devices/disk/target[../boot]/@dev", ["vda"]),
        (TWO_DISKS, "devices/disk/boot", []),
        ("cores: 1\nacpi: 0\n", "features/acpi", []),
        (
            "cores: 1\nscsihw: virtio-scsi-single\nscsi0: local-lvm:a,queues=4\n",
            "//controller/driver/@queues",
            ["4"],
        ),
        (
            f"{CMD} -object iothread,id=i -device virtio-scsi-pci,id=virtioscsi0,iothread=i,"
            "num_queues=4 -drive file=/dev/x,id=d -device scsi-hd,drive=d,id=scsi0",
            "//controller/driver/@*",
            ["4", "1"],
        ),
        ("cores: 1\nnet0: virtio=XX:XX:XX:XX:XX:XX,bridge=vmbr0\n", "devices/interface/mac", []),
        ("cores: 1\ncpu: x86-64-v2\n", "cpu/model/text()", ["qemu64"]),
        (
            "cores: 1\nscsi0: local-lvm:a,ssd=1,serial=a%2Fb,detect_zeroes=0\n",
            "devices/disk/target/@rotation_rate | devices/disk/serial/text()"
            " | devices/disk/driver/@detect_zeroes",
            ["off", "1", "a/b"],
        ),
        ("cores: 1\nscsi0: local-lvm:a,discard=on\n", "//@detect_zeroes", ["unmap"]),
        (f"/usr/bin/taskset --cpu-list --all-tasks '0,2-3' \\\n  {CMD}", "vcpu/@cpuset", ["0,2-3"]),
        (f"{CMD} {NODES}", "memory/text()", ["2048"]),
        (f"{CMD} {NODES}", "cpu/numa/cell/@memory", ["512", "1536"]),
        (f"{CMD} {NODES}", "cpu/numa/cell/@cpus", ["0,1", "2-3"]),
        (f"{CMD} {NODES}", "numatune/memnode/@mode", ["strict"]),
        (f"{CMD} -machine 'pflash0=pflash0,type=q35+pve0'", "os/@firmware", ["efi"]),
        (f"{CMD} -drive 'if=pflash,unit=0,file=/x' -m 512", "os/@firmware", ["efi"]),
        (f"{CMD} -machine 'accel=tcg,type=pc'", "@type", ["qemu"]),
        (f"{CMD} -rtc 'base=localtime'", "clock/@offset", ["localtime"]),
        (f"/usr/bin/qemu-system-aarch64 {CMD[13:]}", "os/type/@arch", ["aarch64"]),
        (f"{CMD} -machine type=virt+pve0", "os/type/@arch", ["aarch64"]),
        (
            f"{CMD} -drive file=/dev/x,id=d -device scsi-block,drive=d,id=scsi0",
            "devices/disk/source/@dev",
            ["/dev/x"],
        ),
        (f"{CMD} -device megasas,id=scsihw0", "devices/disk", []),
    ],
)
def test_an_option_of_proxmox_is_taken(text: str, path: str, found: list[str]) -> None:
    root = parse(understood(text.encode(), "vm").xml)
    assert [str(one) for one in root.xpath(path)] == found


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("cores: 1\nmachine: pc-q35-9.2+pve1\n", "pc-q35-9.2+pve1: the version of this host's"),
        ("cores: 1\nmachine: q35,viommu=intel\n", "machine viommu=intel: left out"),
        ("cores: 1\ncpu: host,phys-bits=40\n", "cpu phys-bits=40: left out"),
        ("cores: 1\ncpu: host,flags=+nested-virt\n", "cpu +nested-virt: left out (vmx or svm"),
        ("cores: 1\ncpu: custom-x\n", "cpu custom-x: host-model stands in for the cluster's own"),
        ("cores: 1\ncpu: custom-x\n", "'qm showcmd ID --pretty' resolves it"),
        (
            "cores: 1\nscsi0: local-lvm:a,iops_rd=100,mbps=5,size=1G,werror=stop\n",
            "scsi0 iops_rd=100,mbps=5: left out (results apply to a VM without it)",
        ),
        ("cores: 1\nscsi0: local-lvm:a,werror=stop\n", "scsi0 werror=stop: left out"),
        ("cores: 1\nnet0: virtio=A,rate=5,firewall=1\n", "net0 rate=5: left out (results apply"),
        ("cores: 1\nnet0: virtio=A,tag=5,mtu=9000\n", "net0 tag=5,mtu=9000: left out"),
        ("cores: 1\nide2: none,media=cdrom\n", "ide2 (none): left out (a CD or"),
        (f"{CMD} -device tpm-tis,tpmdev=t", "-device tpm-tis: left out"),
        (f"{CMD} -object sev-guest,id=s", "-object sev-guest: left out"),
        (f"{CMD} -fsdev x", "-fsdev: left out"),
        (f"{CMD} -device ide-cd,id=ide2,drive=x", "ide2 (none): left out (a CD or"),
        (f"{CMD} -cpu host,level=30,+kvm_pv_eoi", "cpu level=30: left out"),
        (
            f"""{CMD} -object '{{"qom-type":"throttle-group","id":"t","limits":{{"x":1}}}}'""",
            "-object t: left out",
        ),
    ],
)
def test_an_option_of_proxmox_is_left_out_by_name(text: str, note: str) -> None:
    found = understood(text.encode(), "vm")
    assert any(note in one for one in found.notes), found.notes
    assert not any("firewall" in one or "size" in one for one in found.notes)


@pytest.mark.parametrize("object_", ["{x", '{"limits":1', "memory-backend-ram,size=x"])
def test_a_broken_object_of_a_command_is_refused(object_: str) -> None:
    with pytest.raises(UsageError, match="expected MiB|is not as Proxmox VE writes it"):
        understood(f"{CMD} -object '{object_}'".encode(), "vm")


VM = """apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: a}
spec:
  instancetype: {name: big}
  preference: {name: windows}
  template:
    spec:
      domain:
        devices:
          disks:
          - {name: one, disk: {bus: virtio}}
          - {name: two, disk: {}, cache: writeback}
      volumes:
      - {name: one, emptyDisk: {}}
      - {name: two, emptyDisk: {}}
      - {name: three, emptyDisk: {}}
"""
TYPE = """---
kind: VirtualMachineClusterInstancetype
metadata: {name: big}
spec:
  cpu: {guest: 8, model: Nehalem, dedicatedCPUPlacement: true}
  memory: {guest: 4Gi, hugepages: {pageSize: 2Mi}}
  ioThreadsPolicy: shared
  gpus: [{name: g, deviceName: x}]
"""
PREFERENCE = """---
kind: VirtualMachinePreference
metadata: {name: windows}
spec:
  clock: {preferredTimer: {hpet: {present: false}, pit: {tickPolicy: delay}}}
  cpu:
    preferredCPUTopology: spread
    preferredCPUFeatures: [{name: aes}]
  devices:
    preferredDiskBus: scsi
    preferredDiskCache: none
    preferredDiskDedicatedIoThread: true
    preferredInterfaceModel: e1000e
    preferredNetworkInterfaceMultiQueue: true
    preferredTPM: {}
  features: {preferredHyperv: {synictimer: {direct: {}}}, preferredSmm: {}}
  firmware: {preferredEfi: {}}
  machine: {preferredMachineType: pc-q35-rhel9.4.0}
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("vcpu/text()", ["8"]),
        ("memory/text()", ["4096"]),
        ("cpu/topology/@sockets | cpu/topology/@cores", ["4", "2"]),
        ("cpu/model/text() | cpu/feature/@name", ["Nehalem", "aes"]),
        ("memoryBacking/hugepages/page/@size", ["2"]),
        ("iothreads/text()", ["2"]),
        ("devices/disk/target/@bus", ["virtio", "scsi", "scsi"]),
        ("devices/disk/driver/@cache", ["none", "writeback", "none"]),
        ("devices/disk/driver/@iothread", ["2"]),
        ("devices/interface/model/@type | devices/interface/driver/@queues", ["e1000e", "8"]),
        ("os/@firmware", ["efi"]),
        ("features/hyperv/*[@state='on']", ["vpindex", "synic", "stimer"]),
        ("features/smm/@state", ["on"]),
        ("clock/timer/@present | clock/timer/@tickpolicy", ["no", "yes", "delay"]),
    ],
)
@pytest.mark.parametrize("form", ["documents", "list"])
def test_an_instance_type_and_a_preference_of_the_same_file_hold(
    path: str, found: list[str], form: str
) -> None:
    text = VM + TYPE + PREFERENCE
    if form == "list":
        parts = [*VM.splitlines(), *TYPE.splitlines(), *PREFERENCE.splitlines()]
        items = [f"- {line}" if line.startswith("apiV") else f"  {line}" for line in parts]
        text = "kind: List\nitems:\n" + "\n".join(items).replace("\n  ---\n  kind", "\n- kind")
    read = understood(text.encode(), "vm")
    nodes = parse(read.xml).xpath(path)
    assert isinstance(nodes, list)
    assert sorted(n.tag if isinstance(n, etree._Element) else str(n) for n in nodes) == sorted(
        found
    )
    assert read.form == "KubeVirt, VirtualMachine"
    noted = "\n".join(read.notes)
    assert "instancetype" not in noted
    assert "devices.gpus: left out\n" in f"{noted}\n"
    assert "devices.tpm: left out\n" in f"{noted}\n"
    assert "machine pc-q35-rhel9.4.0: the version of this host's QEMU" in noted


@pytest.mark.parametrize(
    ("wish", "shape"),
    [
        ("{}", "8 1 1"),
        ("{preferredCPUTopology: preferCores}", "1 8 1"),
        ("{preferredCPUTopology: threads}", "1 1 8"),
        ("{preferredCPUTopology: any}", "8 1 1"),
        ("{preferredCPUTopology: spread, spreadOptions: {ratio: 4}}", "2 4 1"),
        ("{preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads}}", "2 2 2"),
        ("{preferredCPUTopology: spread, spreadOptions: {across: CoresThreads}}", "1 4 2"),
        ("{preferredCPUTopology: spread, spreadOptions: {ratio: 3}}", "8 1 1"),
    ],
)
def test_a_preference_shapes_the_cpus(wish: str, shape: str) -> None:
    preference = f"---\nkind: P-preference\nmetadata: {{name: windows}}\nspec: {{cpu: {wish}}}\n"
    root = parse(understood((VM + TYPE + preference).encode(), "vm").xml)
    topology = root.find("cpu/topology")
    assert topology is not None
    assert " ".join(str(topology.get(key)) for key in ("sockets", "cores", "threads")) == shape


def test_a_missing_instance_type_is_asked_for() -> None:
    notes = "\n".join(understood(VM.encode(), "vm").notes)
    assert "instancetype big: left out (add its object to the file: 'kubectl get -o yaml" in notes
    assert "preference windows: left out" in notes
    assert "vCPUs: 1 for the instance type's" in notes


def test_a_file_of_two_vms_is_refused() -> None:
    with pytest.raises(UsageError, match="vm: expected one VM, got 2"):
        understood(f"{VM}---\n{VM}".encode(), "vm")


@pytest.mark.parametrize(
    ("domain", "path", "found"),
    [
        ("{devices: {}}", "devices/interface/model/@type", ["virtio"]),
        ("{devices: {autoattachPodInterface: false}}", "devices/interface", []),
        ("{devices: {disks: [{name: r}]}}", "devices/disk/target/@bus", ["sata"]),
        ("{devices: {disks: [{name: r, bootOrder: 2}]}}", "//boot/@order", ["2"]),
        (
            "{devices: {disks: [{name: r, blockSize: {custom: {logical: 512, physical: 4096}}}]}}",
            "//blockio/@physical_block_size",
            ["4096"],
        ),
        ("{resources: {requests: {cpu: 2.5, memory: 2Gi}}}", "vcpu/text()", ["3"]),
        ("{resources: {requests: {cpu: 1500m, memory: 2Gi}}}", "vcpu/text()", ["2"]),
        (
            "{resources: {requests: {memory: 1Gi}, limits: {memory: 2Gi}}}",
            "memory/text()",
            ["1024"],
        ),
        ("{features: {acpi: {enabled: false}}}", "features/acpi", []),
        ("{firmware: {kernelBoot: {kernelArgs: root=x}}}", "os/cmdline/text()", ["root=x"]),
        ("{features: {hyperv: {tlbflush: {}}}}", "features/hyperv/vpindex/@state", ["on"]),
        ("{clock: {timer: {rtc: {track: guest}}}}", "clock/timer/@track", ["guest"]),
    ],
)
def test_a_field_of_kubevirt_is_taken(domain: str, path: str, found: list[str]) -> None:
    root = parse(understood(f"{KVM}  domain: {domain}\n".encode(), "vm").xml)
    assert [str(one) for one in root.xpath(path)] == found


@pytest.mark.parametrize(
    ("domain", "note"),
    [
        ("{memory: {guest: 1Gi, maxGuest: 4Gi}}", "memory.maxGuest: left out (without hotplug)"),
        (
            "{firmware: {kernelBoot: {container: {image: i, kernelPath: /k}}}}",
            "kernel (i /k): stand-in /var/lib/labctl/disks/a-kernel; put a copy of the file there",
        ),
        ("{firmware: {bootloader: {efi: {secureBoot: true}}}}", "efi.secureBoot: left out"),
        ("{machine: {type: pc-q35-rhel9.4.0}}", "machine pc-q35-rhel9.4.0: the version of"),
        ("{features: {pvspinlock: {}}}", "features.pvspinlock: left out"),
        ("{features: {hyperv: {vendorid: {}}}}", "features.hyperv.vendorid: left out"),
        ("{clock: {utc: {offsetSeconds: 3}}}", "clock.utc.offsetSeconds: left out"),
        ("{devices: {disks: [{name: r, shareable: true}]}}", "disk r.shareable: left out"),
        ("{devices: {interfaces: [{name: d, pciAddress: x}]}}", "interface d.pciAddress: left out"),
        ("{devices: {watchdog: {}}}", "devices.watchdog: left out"),
        ("{launchSecurity: {}}", "domain.launchSecurity: left out"),
        ("{cpu: {maxSockets: 4}}", "cpu.maxSockets: left out (without hotplug)"),
    ],
)
def test_a_field_of_kubevirt_is_left_out_by_name(domain: str, note: str) -> None:
    found = understood(f"{KVM}  domain: {domain}\n".encode(), "vm")
    assert any(note in one for one in found.notes), found.notes


def test_another_architecture_and_a_sidecar_are_named() -> None:
    head = KVM.replace("{name: a}", "{annotations: {hooks.kubevirt.io/hookSidecars: x}}")
    own = domain_of_file(f"{head}  architecture: arm64\n  domain: {{}}\n".encode(), "vm")
    assert own.notes[0].startswith("hooks.kubevirt.io/hookSidecars: left out (a sidecar changes")
    assert "'hvm' on 'aarch64'" in own.refused[0]


@pytest.mark.parametrize(
    ("more", "path", "found"),
    [
        ('"properties": {}', "os/type/@machine", ["pc"]),
        ('"extra_specs": {"hw:cpu_sockets": "2"}', "cpu/topology/@*", ["2", "4", "1"]),
        ('"extra_specs": {"hw:cpu_threads": "2"}', "cpu/topology/@*", ["4", "1", "2"]),
        ('"properties": {"hw:cpu_cores": 4, "hw:cpu_threads": 2}', "//topology/@*", list("142")),
        ('"properties": {"hw:cpu_cores": "3"}', "cpu/topology", []),
        ('"properties": {"hw:mem_page_size": "1GiB"}', "//page/@size", ["1048576"]),
        ('"properties": {"hw:mem_page_size": "2048"}', "//page/@size", ["2048"]),
        ('"properties": {"hw:mem_page_size": "large"}', "//page/@size", ["2048"]),
        ("\"properties\": \"hw:pmu='False', hw:mem_page_size='2MB'\"", "//pmu/@state", ["off"]),
        ("\"properties\": \"hw:pmu='False', hw:mem_page_size='2MB'\"", "//page/@size", ["2048"]),
        ('"properties": {"hw:virtio_packed_ring": "true"}', "//driver/@packed", ["on", "on"]),
    ],
)
@pytest.mark.parametrize("form", ["client", "API"])
def test_a_field_of_a_flavor_is_taken(more: str, path: str, found: list[str], form: str) -> None:
    text = f'{{"name": "m", "vcpus": 8, "ram": 1024, {more}}}'
    read = understood((text if form == "client" else f'{{"flavor": {text}}}').encode(), "vm")
    assert [str(one) for one in parse(read.xml).xpath(path)] == found


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ('"swap": 512', "swap 512: left out (a disk of the instance's own)"),
        ('"properties": {"hw:mem_page_size": "any"}', "hw:mem_page_size=any: left out"),
        ('"properties": {"hw:cpu_cores": "3"}', "hw:cpu_cores=3: left out"),
        ('"properties": {"hw:numa_nodes": "2"}', "hw:numa_nodes=2: left out (Nova places it"),
        ('"properties": {"quota:cpu_quota": "9"}', "quota:cpu_quota=9: left out (results apply"),
        (
            '"properties": {"trait:X": "required"}',
            "trait:X=required: left out (only Nova's scheduler",
        ),
        ('"properties": {"hw_rng:allowed": "True"}', "hw_rng:allowed=True: left out"),
        ('"swap": ""', "machine: pc, Nova's default"),
    ],
)
def test_a_field_of_a_flavor_is_left_out_by_name(more: str, note: str) -> None:
    found = understood(f'{{"vcpus": 8, "ram": 1024, {more}}}'.encode(), "vm")
    assert any(one.startswith(note) for one in found.notes), found.notes
    assert len(found.notes) <= 3
