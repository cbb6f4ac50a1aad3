"""Make the XML of a copy of the administrator's own domain, for each tuning."""

from __future__ import annotations

from labctl.base.placement import refuse
from labctl.base.tuning import Tuning
from labctl.base.xmldiff import parse
from labctl.domain.foreign.copied import Copied, CopyRequest, confirmed, copied
from labctl.domain.foreign.foreign_domain import OwnDomain
from labctl.domain.foreign.graft import grafted, problems, with_data_disk
from labctl.domain.schema import validate
from labctl.run.guests.lab import Lab
from labctl.run.guests.started import image_xml
from labctl.run.planning.fitting import rt_runtime_us
from labctl.run.planning.own_domain import OwnGuest
from labctl.run.resources.disks import Disks

NVRAM = "nvram"


def xml_of(own: OwnGuest, baseline: Tuning, lab: Lab, tuning: Tuning, disks: Disks) -> str:
    """Return the validated domain XML of a tuning's copy."""
    root = lab.work / "root.qcow2"  # of labctl's own domain, which says what a tuning means
    plain, rendered = (image_xml(lab, t, root) for t in (baseline, tuning))
    xml = grafted(made(own, baseline, lab, disks).xml, tuning, plain, rendered)
    refuse(tuning.name, problems(xml, lab.pin_plan_for(tuning), rt_runtime_us(tuning)))
    xml = with_data_disk(xml, rendered)
    what = f"labctl's copy of '{own.domain.name}'"
    xml = confirmed(xml, _paths(own.domain, lab, disks, rendered), _label(lab), what)
    validate(xml, what=what)
    return xml


def made(own: OwnGuest, baseline: Tuning, lab: Lab, disks: Disks) -> Copied:
    """Return the copy of the administrator's domain, as it is without a tuning."""
    confined = lab.pin_plan_for(baseline)
    return copied(
        own.domain,
        CopyRequest(
            name=lab.domain_name,
            uuid=lab.domain_uuid,
            accelerator=lab.accelerator.name,
            disabled_features=lab.accelerator.disabled_features,
            disks={name: disk.path for name, disk in disks.items()},
            nvram=disks[NVRAM].path if NVRAM in disks else None,
            console_log=lab.console_log,
            runner_socket=lab.runner_socket,
            agent_socket=lab.agent_socket,
            label=_label(lab),
            keep_network=own.keep_network,
            confined_to=confined.usable if confined.usable != confined.online else None,
        ),
    )


def _paths(own: OwnDomain, lab: Lab, disks: Disks, rendered: str) -> frozenset[str]:
    """Return every file that the copy may name."""
    labctls = parse(rendered).iterfind("devices/disk/source")
    return frozenset(
        (
            *(str(disk.path) for disk in disks.values()),
            *(str(disk.path) for disk in own.read_only),
            *map(str, (*own.firmware, *own.boot_files)),
            *map(str, (lab.console_log, lab.runner_socket, lab.agent_socket)),
            *(source.get("file", "") for source in labctls),
        )
    )


def _label(lab: Lab) -> str:
    """Return whom a copy's QEMU runs as. A daemon's QEMU user reads the original's disks only where
    libvirt gives them to it; root reads them as they are."""
    user, group = lab.qemu_ids if lab.qemu_user else (0, 0)
    return f"+{user}:+{group}"
