"""The command: pytest's arguments in, its output and its status out."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from labctl.base.errors import LabctlError, UsageError
from labctl.base.events import Event, Note
from labctl.base.paths import StatePaths
from labctl.base.signals import ending_signals_interrupt
from tools.kvm_host.image import built_host, guest_disk, prepared_guest
from tools.kvm_host.machine import Machine

CHECKOUT = Path(__file__).resolve().parents[2]

PYTHON = Path("/usr/bin/python3.11")
"""The machine's own, of Debian 12: a .venv links to the Python that it was made with."""

NEED_KVM = ("-m", "kvm", "tests/guest")


def pytest_command(arguments: tuple[str, ...]) -> list[str]:
    """Raises UsageError where Python is none that the checkout brings along, or the machine has."""
    if not Path(sys.prefix).is_relative_to(CHECKOUT):
        raise UsageError(
            f"{sys.executable} is not in {CHECKOUT}, and would be missing in the emulated machine",
            hint="Run 'make test-kvm'.",
        )
    if (made_with := Path(sys.executable).resolve()) != PYTHON:
        raise UsageError(
            f"{sys.executable} is {made_with}, and the emulated machine, a Debian 12, has "
            f"{PYTHON} alone",
            hint="Run 'make test-kvm' on Debian 12, whose Python 'make setup' takes.",
        )
    return [
        *("env", "PYTHONUNBUFFERED=1", sys.executable, "-m", "pytest"),
        *(arguments or NEED_KVM),
    ]


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(arguments: tuple[str, ...]) -> None:
    """Run pytest with ARGUMENTS (default: the tests that need KVM) in an emulated KVM host."""
    started = time.monotonic()

    def tell(event: Event) -> None:
        if isinstance(event, Note):
            click.echo(f"{time.monotonic() - started:5.0f} s  {event.text}", err=True)

    try:
        with ending_signals_interrupt():
            argv = pytest_command(arguments)
            places = StatePaths.default()
            host = built_host(places, tell)
            guest = prepared_guest(places, tell)
            machine = Machine(host, guest, guest_disk(guest, host, places, tell), CHECKOUT)
            tell(Note(text="Booting the emulated KVM host"))
            status = machine.run(argv, lambda text: click.echo(text, nl=False))
    except LabctlError as error:
        click.echo(error.message + (f"\n{error.hint}" if error.hint else ""), err=True)
        status = error.exit_code
    sys.exit(status)


if __name__ == "__main__":
    main()
