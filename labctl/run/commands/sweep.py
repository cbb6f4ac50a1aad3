"""Take a sweep from its request to its run folder: plan, check, make the folder, measure."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from labctl.base.events import Listener, Note
from labctl.base.paths import host_lock
from labctl.base.signals import ending_signals_interrupt
from labctl.host.lock import host_locked
from labctl.run.commands.choose_folder import earlier_folder, folder_path, new_folder
from labctl.run.commands.measure import measure
from labctl.run.commands.progress_file import told
from labctl.run.commands.record import command, finished, recorded
from labctl.run.commands.sweep_checks import check_connection, check_host
from labctl.run.guests.leftovers import clean_up
from labctl.run.planning.planned import SweepRequest
from labctl.run.planning.reached import reached
from labctl.run.planning.run_plan import Begun, on_its_connection, planned_for, with_image
from labctl.run.trials.engine import never
from labctl.store.run_folder import RunFolder

Judging = Callable[[RunFolder, int], str | None]
"""Function from a run and its number of whole blocks to the reason why its plan's rule ends it
there; None: it goes on.
"""


def sweep(request: SweepRequest, listener: Listener, judging: Judging | None = None) -> RunFolder:
    """Carry a study out, go on with a run or extend one; returns its folder.

    What measures doesn't judge: `judging` is the caller's. Without it a run goes to the last block
    of its plan, which every rule allows.

    Everything that it starts or changes is ended and put back, however it ends. Raises
    LabctlError; KeyboardInterrupt for Ctrl-C, SIGTERM and SIGHUP. The run stays resumable.
    """
    with ExitStack() as stack:
        stack.enter_context(ending_signals_interrupt())
        folder = earlier_folder(request)
        begun = Begun.read(folder) if folder else None
        request = on_its_connection(request, begun)
        planned = planned_for(request, begun)
        what = shlex.join(command(request, planned.plan))
        path = folder.path if folder else folder_path(request, planned.plan)
        stack.enter_context(host_locked(host_lock(), what=what, run_folder=path))
        clean_up(request.places, listener)
        check_connection(request.connect)
        check_host(request, planned, path)
        if folder is None:
            planned = with_image(request, planned, listener)
            folder = new_folder(path, planned, request.overrides.program)
        elif planned.added is None and reached(planned.plan, folder).is_over:
            listener(Note(text=f"Run '{folder.name}' has all its trials: nothing is left to do."))
            with told(folder, listener):
                finished(folder)
            return folder
        why_end = partial(judging, folder) if judging else never
        with (
            told(folder, listener) as telling,
            recorded(folder, request, planned) as log,
        ):
            telling.begin()
            measure(request, planned, log, telling.listen, why_end)
        return folder
