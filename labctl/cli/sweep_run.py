"""Carry a sweep out: in front of the user, or detached."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from labctl.base.wording import printable
from labctl.cli.common import print_json
from labctl.cli.detach import Detached, detached
from labctl.cli.remember import remember_restores
from labctl.cli.stopping import why_end

if TYPE_CHECKING:
    from labctl.base.events import Listener
    from labctl.run.planning.planned import SweepRequest
    from labctl.store.run_folder import RunFolder


def sweep_and_show(request: SweepRequest, *, as_json: bool, quiet: bool) -> None:
    """Carry the sweep out, print its report, and remember which restores it showed to work."""
    from labctl.cli.report import show_finished
    from labctl.cli.sweep import swept

    folder = swept(request, quiet=quiet)
    remember_restores(request, folder, show_finished(folder, as_json=as_json))


def sweep_detached(request: SweepRequest, *, as_json: bool) -> int | None:
    """Start a sweep in a session of its own, as `detached_run`; it ends with its report."""
    from labctl.cli.report import show_finished

    def ended(folder: RunFolder) -> None:
        remember_restores(request, folder, show_finished(folder, as_json=False))

    return detached_run(request, ended, as_json=as_json)


def detached_run(
    request: SweepRequest, ended: Callable[[RunFolder], None], *, as_json: bool
) -> int | None:
    """Start a sweep in a session of its own, and print where its run is; returns the exit status
    of one that ended before its run had begun. `ended` is called there at its end."""
    from labctl.run.commands.sweep import sweep

    def work(listener: Listener) -> None:
        ended(sweep(request, listener, why_end))

    begun = detached(work)
    if not isinstance(begun, Detached):
        return begun
    if as_json:
        print_json(
            {
                "schema": 1,
                "run": begun.folder.name,
                "path": str(begun.folder),
                "progress": str(begun.progress),
                "pid": begun.pid,
            }
        )
    else:
        click.echo(printable(f"Run '{begun.folder.name}' goes on as process {begun.pid}."))
        click.echo(printable(f"Progress: {begun.progress}"))
    return None
