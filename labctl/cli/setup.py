"""Run `labctl setup`: install the system packages that labctl needs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from labctl.base import interpreter

SCRIPT = Path(__file__).parents[1] / "host" / "install.sh"
"""Script that `make setup` runs too."""


@click.command("setup")
@click.option("--list", "only_list", is_flag=True, help="Only list the missing packages.")
def command(only_list: bool) -> None:
    """Install the system packages that labctl needs, and create the account of QEMU.

    On Debian, missing packages are installed with apt-get, as root or with sudo. Elsewhere the
    command lists their names for apt or dnf. It skips what is installed and starts no service.
    """
    argv = ["bash", str(SCRIPT), *(["--list"] if only_list else [])]
    # The script takes this process's place, so that sudo can ask for a password.
    os.execvpe("bash", argv, interpreter.users_environment())
