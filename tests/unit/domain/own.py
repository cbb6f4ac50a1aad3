"""Domains of other people's, and labctl's copies of them, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lxml import etree

from labctl.base.xmldiff import parse
from labctl.domain.foreign.copied import Copied, CopyRequest, copied
from labctl.domain.foreign.foreign_domain import OwnDomain, own_domain
from tests.unit.domain import hosts

VIRT_INSTALL = ("server", "old", "uefi", "direct")
"""Domains that virt-install made: fixtures/README.md."""

BY_HAND = """\
<domain type='kvm' id='7' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <!-- odd order, no addresses -->
  <devices>
    <disk type='block'>
      <source dev='/dev/vg/web'/>
      <backingStore/>
      <target bus='virtio' dev='vda'/>
      <serial>abc</serial>
      <shareable/>
    </disk>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' cache='writeback' iothread='2'/>
      <source file='/srv/log.qcow2' startupPolicy='optional'/>
      <target bus='virtio' dev='vdb'/>
    </disk>
    <disk type='file'><source file='/srv/shared.img'/><target dev='vdc'/><readonly/></disk>
    <disk type='file' device='cdrom'>
      <source file='/srv/setup.iso'/><target dev='sda' bus='sata'/><readonly/>
    </disk>
    <disk type='block' device='cdrom'><source dev='/dev/sr0'/><target dev='sdb'/></disk>
    <interface type='network'>
      <mac address='52:54:00:aa:bb:cc'/>
      <source network='default' portgroup='x'/>
      <target dev='web0'/>
      <model type='virtio'/>
      <driver name='vhost' queues='4'/>
      <mtu size='9000'/>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
    </interface>
    <serial type='tcp'>
      <source mode='bind' host='0.0.0.0' service='2445'/><protocol type='telnet'/>
      <log file='/var/log/web.log'/>
    </serial>
    <serial type='pty'/>
    <console type='tcp'>
      <source mode='bind' host='0.0.0.0' service='2445'/><target type='serial' port='0'/>
    </console>
    <channel type='unix'>
      <source mode='connect' path='/run/monitoring.sock'/>
      <target type='virtio' name='com.example.monitoring'/>
    </channel>
    <graphics type='vnc' port='5901' passwd='secret'/>
    <graphics type='spice'><listen type='none'/></graphics>
    <channel type='spicevmc'><target type='virtio' name='com.redhat.spice.0'/></channel>
    <redirdev bus='usb' type='tcp'>
      <source mode='connect' host='10.0.0.1' service='4000'/>
    </redirdev>
    <sound model='ich9'/>
    <audio id='1' type='pulseaudio' serverName='/run/pulse'/>
    <tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>
    <vsock model='virtio'><cid auto='no' address='3'/></vsock>
    <rng model='virtio'>
      <backend model='egd' type='udp'><source mode='bind' service='1234'/></backend>
    </rng>
    <memballoon model='none'/>
  </devices>
  <sysinfo type='smbios'>
    <system><entry name='uuid'>11111111-2222-4333-8444-555555555555</entry></system>
  </sysinfo>
  <vcpu placement='static' cpuset='0-7,^3' current='2'>8</vcpu>
  <cputune>
    <vcpupin vcpu='0' cpuset='4'/>
    <emulatorpin cpuset='0-3,^2'/>
    <vcpusched vcpus='1' scheduler='rr' priority='5'/>
  </cputune>
  <iothreads>2</iothreads>
  <numatune><memory mode='preferred' nodeset='0'/></numatune>
  <memoryBacking><hugepages><page size='1048576' unit='KiB'/></hugepages></memoryBacking>
  <memory unit='GB'>4</memory>
  <maxMemory unit='GiB' slots='4'>16</maxMemory>
  <cpu mode='custom' match='exact' check='full'>
    <model fallback='forbid'>Nehalem</model>
    <topology sockets='8' cores='1' threads='1'/>
    <feature policy='require' name='vmx'/>
    <numa><cell id='0' cpus='0-7' memory='3906250' unit='KiB'/></numa>
  </cpu>
  <features>
    <acpi/>
    <hyperv mode='custom'><relaxed state='on'/></hyperv>
    <ioapic driver='kvm'/>
  </features>
  <clock offset='utc'>
    <timer name='kvmclock' present='yes'/><timer name='hpet' present='yes'/>
  </clock>
  <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>
  <genid>22222222-2222-4333-8444-555555555555</genid>
  <resource><partition>/production</partition></resource>
  <seclabel type='dynamic' model='apparmor' relabel='yes'/>
  <on_crash>preserve</on_crash>
  <uuid>11111111-2222-4333-8444-555555555555</uuid>
  <name>web</name>
</domain>
"""


LABEL = "+64055:+64056"
"""Whom QEMU runs as."""


def own(name: str = "by hand") -> OwnDomain:
    """A domain that virt-install made, or the one that was written by hand."""
    if name == "by hand":
        return own_domain(BY_HAND, "domain 'web'")
    path = hosts.FIXTURES / f"virt-install-4.1.0-own-{name}.xml"
    return own_domain(path.read_bytes(), f"domain '{name}'")


def copy_of(domain: OwnDomain, **changes: Any) -> Copied:
    values: dict[str, Any] = {
        "name": "labctl-guest",
        "uuid": "5f0c1ab2-3d4e-4f56-8a9b-0c1d2e3f4a5b",
        "accelerator": "kvm",
        "disabled_features": (),
        "disks": {disk.name: Path(f"/lab/{disk.name}.qcow2") for disk in domain.disks},
        "nvram": Path("/lab/nvram.fd") if domain.is_uefi else None,
        "console_log": Path("/lab/console.log"),
        "runner_socket": Path("/lab/runner.sock"),
        "agent_socket": Path("/lab/agent.sock"),
        "label": LABEL,
        "keep_network": False,
        "confined_to": None,
    }
    return copied(domain, CopyRequest(**{**values, **changes}))


def copy_xml(domain: OwnDomain, **changes: Any) -> etree._Element:
    """The root of labctl's copy."""
    return parse(copy_of(domain, **changes).xml)
