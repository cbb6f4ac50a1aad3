"""The command: commands in, their output and their status out."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from labctl.base.errors import LabctlError
from labctl.base.events import Event, Note
from labctl.base.paths import StatePaths
from labctl.base.process import ending_signals_interrupt
from labctl.cli.sweep import seconds_of
from tools.kvm_host.image import built_host, guest_disk, prepared_guest, venv_disk
from tools.kvm_host.machine import Machine

CHECKOUT = Path(__file__).resolve().parents[2]

RESULTS = CHECKOUT / "results"


def commands_of(argv: tuple[str, ...], lines: Iterable[str]) -> Iterator[str]:
    """Yield the one command that the words are or, of no words, each line as it comes; commands of
    sh."""
    if argv:
        yield shlex.join(argv)
    else:
        yield from (line.strip() for line in lines if line.strip())


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--results", is_flag=True, help="What commands write in results/ comes out.")
@click.option("--limit", default="30m", show_default=True, help="What each command may take.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def main(results: bool, limit: str, command: tuple[str, ...]) -> None:
    """Run COMMAND in an emulated KVM host, in its copy of the checkout; without one, each line of
    standard input, in one machine. The status is the last command's."""
    started = time.monotonic()

    def tell(text: str) -> None:
        click.echo(f"{time.monotonic() - started:5.0f} s  {text}", err=True)

    def listen(event: Event) -> None:
        if isinstance(event, Note):
            tell(event.text)

    status = 0
    try:
        with ending_signals_interrupt():
            limit_s = seconds_of(limit, "--limit")
            places = StatePaths.default()
            host = built_host(places, listen)
            guest = prepared_guest(places, listen)
            disk = guest_disk(guest, host, places, listen)
            venv = venv_disk(CHECKOUT, host, places, listen)
            machine = Machine(host, guest, disk, venv, CHECKOUT, RESULTS if results else None)
            tell("Booting the emulated KVM host")
            with machine.booted(lambda text: click.echo(text, nl=False)) as booted:
                if not command:
                    tell("Booted: a command per line, please")
                for line in commands_of(command, sys.stdin):
                    status = booted.run(line, limit_s)
                    if status and not command:
                        tell(f"'{line}' ended with status {status}")
    except KeyboardInterrupt:
        kept = f"; {RESULTS} has what was written until then" if results else ""
        tell(f"Interrupted: the emulated KVM host is gone{kept}")
        status = 130
    except LabctlError as error:
        click.echo(error.message + (f"\n{error.hint}" if error.hint else ""), err=True)
        status = error.exit_code
    sys.exit(status)


if __name__ == "__main__":
    main()
