"""Check how a trial's command and its servers ran, and that it had the cgroup of its workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labctl.base.channel import Serving
from labctl.base.command import Command, CommandCgroup, CommandResult
from labctl.base.last_words import last_words
from labctl.base.runner_requests import cgroup_name
from labctl.collect import runner_counts
from labctl.store.trial import TrialFolder
from labctl.workloads.workload import Workload


def ran_reasons(
    workload: Workload,
    command: Command,
    result: CommandResult,
    serving: Serving,
    folder: TrialFolder,
) -> list[str]:
    """Return why a run counts for nothing: its servers, its status, its cgroup."""
    why = workload.why_failed(result)
    return [
        *server_reasons(serving, folder),
        *([why] if why else ()),
        *cgroup_reasons(command, folder),
    ]


def server_reasons(serving: Serving, folder: TrialFolder) -> list[str]:
    """Return why the trial's servers make it invalid; what they printed is stored."""
    reasons = []
    for number, server in enumerate(serving.ended):
        folder.write_raw(f"server-{number}.txt", server.output)
        if server.too_early:
            said = last_words(server.output) or "it printed nothing"
            reasons.append(
                f"the server {server.name} ended by itself with status {server.status}: {said}"
            )
    return reasons


def cgroup_reasons(command: Command, folder: TrialFolder) -> list[str]:
    """Return why the command's cgroup makes the trial invalid: it had another, or other limits."""
    if command.cgroup is None:
        return []
    told = folder.read_json(runner_counts.RAW)["cgroup"]
    return [*not_in_force(command.cgroup, cgroup_name(), told)]


def not_in_force(asked: CommandCgroup, name: str, told: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each limit that the machine didn't have, by what its runner read."""
    # proc_pid_cgroup(5); of a guest, any text.
    lines = (line.split(":", 2) for line in told["member"].splitlines() if line.count(":") > 1)
    places = {one: place for _, names, place in lines for one in names.split(",")}
    files = {path.rpartition("/")[2] for path in told["files"]}
    for controller in asked.controllers:
        where = places.get(controller, places.get("", "/"))
        if not where.endswith(f"/{name}"):
            yield f"the command was in the {controller} cgroup {where}, not in one of its own"
        if not any(file.startswith(f"{controller}.") for file in files):
            yield f"the command's cgroup has no limits of the {controller} controller"
    for path, value in told["files"].items():
        if value["set"] != value["found"]:
            yield (
                f"the command's cgroup has {value['found'] or 'no value'} in {path}, "
                f"and was given {value['set']}"
            )
    if killed := told["oom_kills"]:
        yield f"{killed} processes were killed: the memory of the command's cgroup did not suffice"
