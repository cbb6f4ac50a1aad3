"""A restored guest's devices on USB are where they were when it booted."""

from __future__ import annotations

from lxml import etree

from labctl.domain.save_image import with_usb_addresses

ASKED = """<domain><devices>
<disk><target dev='sdb' bus='usb'/></disk><disk><target dev='vda' bus='virtio'/></disk>
<input type='tablet' bus='usb'/><input type='keyboard' bus='usb'/>
<input type='tablet' bus='usb'><address type='usb' bus='0' port='1'/></input>
<hub type='usb'/><sound model='ac97'/><input type='mouse' bus='ps2'/>
</devices></domain>"""

LIVE = """<domain><devices>
<disk><target dev='vda' bus='virtio'/><address type='pci' slot='0x04'/></disk>
<disk><target dev='sdb' bus='usb'/><address type='usb' bus='0' port='5'/></disk>
<input type='tablet' bus='usb'><address type='usb' bus='0' port='2'/></input>
<input type='keyboard' bus='usb'><address type='usb' bus='0' port='3'/></input>
<input type='tablet' bus='usb'><address type='usb' bus='0' port='1'/></input>
<input type='mouse' bus='ps2'/><input type='keyboard' bus='ps2'/>
<sound model='ac97'><address type='pci' slot='0x05'/></sound>
<hub type='usb'><address type='usb' bus='0' port='4'/></hub>
</devices></domain>"""


def test_each_device_gets_the_address_that_it_booted_with() -> None:
    devices = etree.fromstring(with_usb_addresses(ASKED, LIVE)).find("devices")
    assert devices is not None
    ports = [
        (device.tag, None if (address := device.find("address")) is None else address.get("port"))
        for device in devices
    ]
    assert ports == [
        ("disk", "5"),
        ("disk", None),
        ("input", "2"),
        ("input", "3"),
        ("input", "1"),
        ("hub", "4"),
        ("sound", None),
        ("input", None),
    ]


def test_a_guest_that_shows_no_devices_adds_no_address() -> None:
    devices = etree.fromstring(with_usb_addresses(ASKED, "<domain/>")).find("devices")
    assert devices is not None
    assert len(devices.findall("*/address")) == 1
