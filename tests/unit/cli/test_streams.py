"""What labctl prints where the terminal is simple or closed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LABCTL = (sys.executable, "-m", "labctl.cli.main")


def labctl(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*LABCTL, *words], env={**os.environ, **environment}, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["latin-1", "ascii", "C locale"],
)
def test_a_terminal_of_few_letters_gets_simpler_ones(environment: dict[str, str]) -> None:
    done = labctl("tuning", "list", COLUMNS="80", **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    done.stdout.decode("latin-1")
    assert b"..." in done.stdout, "what is cut off"


@pytest.mark.parametrize("closing", [">&-", ">&- 2>&-"])
def test_a_closed_output_is_no_fault_of_labctl(closing: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m labctl.cli.main tuning list {closing}', sys.executable],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert b"fault" not in done.stderr


@pytest.mark.parametrize(
    ("redirections", "code"),
    [(">/dev/full", 3), ("2>/dev/full", 0), ("-x 2>/dev/full", 2), ("-x >&- 2>&-", 2)],
)
def test_a_full_or_closed_stream_keeps_the_exit_code(redirections: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m labctl.cli.main tuning list {redirections}', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
