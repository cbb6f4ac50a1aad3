"""Run one trial: warm up, measure, store what the tools printed.

Nothing but the workload runs inside the measured window: snapshots are taken before the command
starts and after it has ended, and the guest is sent nothing meanwhile (METHOD rule 11).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from labctl.base.errors import HostError, LabctlError
from labctl.run.contained import contained
from labctl.run.guests.bench import Bench
from labctl.run.guests.lab import Lab
from labctl.run.trials.neighbours import neighbours
from labctl.run.trials.peer import serving
from labctl.run.trials.ran_checks import ran_reasons
from labctl.run.trials.trial_request import TrialRequest
from labctl.run.trials.trial_setting import cgroup_of, new_data, setting_of
from labctl.run.trials.warmup import warm_up
from labctl.run.trials.window import measured_window, store_output
from labctl.run.trials.window_checks import clock_reasons, host_reasons, thread_reasons
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus


def run_trial(lab: Lab, bench: Bench, request: TrialRequest, folder: TrialFolder) -> TrialRecord:
    """Run one attempt at a trial and store its raw files; what goes wrong is in the record.

    Raises HostError when the host can't go on (no space left), ChannelClosed never: a machine
    that ended makes the trial invalid.
    """
    definition = request.declared.definition
    started = time.monotonic()
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    reasons = list(bench.problems)
    times: dict[str, float] = {"measured_s": 0.0, "warmup_s": 0.0}
    _store(folder, bench.evidence)
    try:
        with contained(folder, "measuring it"):
            reasons += _measure(lab, bench, request, folder, times)
            reasons += bench.host_problems()
    except HostError:
        raise
    except LabctlError as error:
        reasons.append(error.message)
    return TrialRecord(
        number=request.planned.number,
        attempt=request.attempt,
        block=request.planned.block,
        boot=bench.boot or request.planned.boot,
        position=request.planned.position,
        cell=request.planned.cell,
        status=TrialStatus.INVALID if reasons else TrialStatus.DONE,
        reasons=tuple(reasons),
        wall_s=time.monotonic() - started,
        started_at=started_at,
        restored=bench.restored,
        parsed_with={
            "program": request.declared.program,
            "parameters": dict(request.declared.parameters),
            "duration_s": request.declared.duration_s,
            **({"definition": definition} if definition is not None else {}),
            **_parsed_beside(request),
            "kind": str(bench.kind),
            "accelerator": lab.accelerator.name,
            "vcpus": lab.vcpus,
        },
        measured_s=times["measured_s"],
        warmup_s=times["warmup_s"],
    )


def _store(folder: TrialFolder, evidence: Mapping[str, Any]) -> None:
    for name, value in evidence.items():
        if isinstance(value, str):
            folder.write_raw(name, value)
        else:
            folder.write_raw_json(name, value)


def _parsed_beside(request: TrialRequest) -> dict[str, Any]:
    """Return what parsing must know of the neighbours' workloads."""
    if request.condition is None:
        return {}
    keys = ("program", "parameters", "run_s", "definition")
    rows = (one.to_json() for one in request.condition.neighbours)
    return {"neighbours": [{key: row.get(key) for key in keys} for row in rows]}


def _measure(
    lab: Lab,
    bench: Bench,
    request: TrialRequest,
    folder: TrialFolder,
    times: dict[str, float],
) -> list[str]:
    """Return the trial itself; returns why it is invalid."""
    workload = request.workload
    setting = setting_of(lab, bench, workload, request.declared)
    command = workload.command(setting)
    reasons: list[str] = []
    with ExitStack() as stack:
        new_data(lab, bench, workload, setting)
        peer = stack.enter_context(serving(lab, workload, setting.parameters))
        hogs = stack.enter_context(neighbours(lab, request.condition, request.room))
        servers = stack.enter_context(
            bench.channel.serving(workload.servers(setting), cpus=bench.cpus, sched=bench.sched)
        )
        stack.enter_context(cgroup_of(lab, bench, command))
        warmed = warm_up(bench, workload, setting, request)
        folder.write_raw_json("warmup.json", warmed)
        times["warmup_s"] = warmed["seconds"]
        if not warmed["settled"]:
            reasons.append(
                f"the warm-up did not settle within {request.limits.warmup_cap_s:g} s "
                f"({len(warmed['windows'])} windows)"
            )
        hogs.start()
        result = measured_window(
            lab, bench, request, command, setting.duration_s, folder, hogs, peer
        )
        times["measured_s"] = result.duration_s
        if peer is not None:
            _store(folder, peer.evidence())
    store_output(folder, result, hogs)
    reasons += ran_reasons(workload, command, result, servers, folder)
    reasons += thread_reasons(bench, workload, command, folder)
    return [*reasons, *host_reasons(folder), *clock_reasons(bench, folder)]
