"""tools/test.sh, with commands for tests that only say that they began and ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

COMMAND = """\
#!{python}
import os, signal, sys, time
from pathlib import Path

signal.signal(signal.SIGINT, signal.default_int_handler)  # as tests/conftest.py has it
print(f"{name} began, niceness {{os.nice(0)}}", flush=True)
Path({began!r}).touch()
while not Path({awaited!r}).exists():
    time.sleep(0.01)
print("closing line of {name}")
sys.exit({status})
"""


class Checkout:
    """A checkout whose tests end when a file is there: the other tests' beginning, or `over`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / ".venv/bin"
        self.bin.mkdir(parents=True)
        (folder / "tools").mkdir()
        shutil.copy(CHECKOUT / "tools/test.sh", folder / "tools")

    def command(self, name: str, awaited: str, status: int = 0) -> None:
        path = self.bin / name
        path.write_text(
            COMMAND.format(
                python=sys.executable,
                name=name,
                began=str(self.folder / f"{name}-began"),
                awaited=str(self.folder / awaited),
                status=status,
            )
        )
        path.chmod(0o755)

    def start(self) -> subprocess.Popen[str]:
        commands = (f"exec {self.bin / name}" for name in ("guests", "units"))
        argv = [str(self.folder / "tools/test.sh"), *commands]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("guests", [0, 1])
@pytest.mark.parametrize("units", [0, 1])
def test_both_run_at_once_and_the_guests_closing_line_is_the_last(
    tmp_path: Path, guests: int, units: int
) -> None:
    checkout = Checkout(tmp_path)
    checkout.command("guests", awaited="units-began", status=guests)
    checkout.command("units", awaited="guests-began", status=units)
    process = checkout.start()
    out, _ = process.communicate(timeout=60)
    nice = os.nice(0)
    assert out.splitlines() == [
        f"units began, niceness {min(nice + 19, 19)}",
        "closing line of units",
        f"guests began, niceness {nice}",
        "closing line of guests",
    ]
    assert process.returncode == max(guests, units)


def test_an_interrupt_ends_both(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    for name in ("guests", "units"):
        checkout.command(name, awaited="over")
    process = checkout.start()
    try:
        while not all((tmp_path / f"{name}-began").exists() for name in ("guests", "units")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        (tmp_path / "over").touch()
    assert process.returncode == 130
    # It waited for both: whoever holds the pipe has ended.
    assert "closing line" not in out
