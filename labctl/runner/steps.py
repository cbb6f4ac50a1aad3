"""Run commands that are not measured, before and after those that are."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from typing import Any

from labctl.runner.output import LAST_OUTPUT
from labctl.runner.rights import become, ids_of

STEP_S = 60.0  # of a command before or after the measured one
LAST_LINE = 300


def run_step(
    what: str, argv: list[str], request: dict[str, Any], folder: str, limit_s: float = STEP_S
) -> None:
    """Run a command that is not measured to its end."""
    environment = environment_of(request)
    installed(argv[0], environment)
    # No pipe: processes that the step leaves running would keep it open, and a flood would fill our
    # memory.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=limit_s,
            start_new_session=True,
            preexec_fn=lambda: become(request),
        )
        if not done.returncode:
            return
        output.seek(max(0, output.seek(0, os.SEEK_END) - LAST_OUTPUT))
        lines = output.read().decode(errors="replace").strip().splitlines()[-3:]
    said = "; ".join(line[-LAST_LINE:] for line in lines)
    if done.returncode == -signal.SIGXFSZ:
        raise OSError("%s: %s wrote more than it may to a file, or printed it" % (what, argv[0]))
    raise OSError("%s: %s ended with status %d: %s" % (what, argv[0], done.returncode, said))


def environment_of(request: dict[str, Any]) -> dict[str, str]:
    if request.get("environment") is not None:
        return dict(request["environment"])
    return {**os.environ, **request.get("env", {})}


def installed(name: str, environment: dict[str, str]) -> None:
    if shutil.which(name, path=environment.get("PATH")) is None:
        raise OSError(
            "%s is not installed there: name its package in 'packages' (--package)" % name
        )


def make_folder(path: str, user: int | str | None) -> None:
    """Make an empty folder that belongs to the user."""
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path, 0o755)
    if user is not None:
        os.chown(path, *ids_of(user))
