"""Run `labctl domain`: show what labctl understands of a virtual machine's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from labctl.base.wording import printable
from labctl.cli.parts.common import Group, print_json

if TYPE_CHECKING:
    from labctl.domain.foreign.foreign_domain import OwnDomain


@click.group("domain", cls=Group)
def command() -> None:
    """Show a virtual machine of your own, as 'labctl sweep --domain' would copy it."""


@command.command("show")
@click.option("--domain", required=True, metavar="NAME|FILE", help="The VM, or a file of it.")
@click.option("--connect", metavar="URI", help="Where the domain NAME is defined.")
@click.option("--xml", "as_xml", is_flag=True, help="Print only the domain XML.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/own-vm.md).")
def show_command(domain: str, connect: str | None, as_xml: bool, as_json: bool) -> None:
    """Show what labctl understands of a VM's file: libvirt, Proxmox VE, KubeVirt or OpenStack.

    It names what the copy replaces or leaves out, and why the VM cannot be measured here. Disks
    are not opened.
    """
    from labctl.domain.foreign.foreign_domain import why_not_copied
    from labctl.run.planning.own_domain import domain_asked_for

    own = domain_asked_for(domain, connect)
    if as_xml:
        click.echo(printable(_indented(own.xml)))
        return
    facts = _facts(own)
    never = why_not_copied(own)
    if as_json:
        print_json({"schema": 1, **facts, "notes": list(own.notes), "refused": list(never)})
        return
    for key, value in facts.items():
        shown = (", ".join(map(str, value)) or "none") if isinstance(value, list) else value
        click.echo(f"{key}: {printable(str(shown))}")
    for note in own.notes:
        click.echo(printable(note))
    for why in never:
        click.echo(printable(f"cannot be measured: {why}"))


def _facts(own: OwnDomain) -> dict[str, object]:
    return {
        "form": own.form,
        "name": own.name,
        "vcpus": own.vcpus,
        "memory_mib": own.memory_mib,
        "firmware": "UEFI" if own.is_uefi else "BIOS",
        "disks": [f"{disk.name} {disk.path} ({disk.format})" for disk in own.disks],
        "networks": sorted(own.networks),
    }


def _indented(xml: str) -> str:
    from lxml import etree

    from labctl.base.xmldiff import parse

    root = parse(xml)
    etree.indent(root)
    return etree.tostring(root, encoding="unicode")
