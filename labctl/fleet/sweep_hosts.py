"""Have every host of a fleet measure the same study, and keep how far each came."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labctl.base.errors import BrokenError
from labctl.fleet.ansible import play
from labctl.fleet.host_news import GATE, HostNews, What, news_of
from labctl.fleet.sweep_folder import StateRecord, Status, SweepFolder

PLAYBOOK = "labctl.lab.sweep"

Watching = Callable[[str, StateRecord, HostNews], None]
"""Function that hears of each host's news, with the host's state as it is then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToReach:
    """Say how hosts are reached, which may differ each time. `variables`: more of the roles'."""

    inventory: Sequence[str]
    forks: int
    variables: Mapping[str, str]


def sweep_hosts(fleet: SweepFolder, how: HowToReach, study: str, watching: Watching) -> None:
    """Carry the sweep out on every host that isn't done, batch by batch.

    Ansible ends a play where all hosts of a batch are lost. The rest goes on in another, unless
    the gate doesn't let it: then the hosts that are left are 'not touched'. Ctrl-C stops no host.
    Raises BrokenError where Ansible ended before it came to any host.
    """
    left = _not_done(fleet)
    while left:
        if why := _why_stopped(fleet, is_first=left[0] == fleet.record.hosts[0]):
            _leave(fleet, left, why)
            return
        heard = _Heard(fleet, watching)
        ended = play(
            PLAYBOOK,
            inventory=how.inventory,
            limit=left,
            forks=how.forks,
            variables=_variables(fleet, how, study, left),
            handler=heard.event,
        )
        if not heard.begun:
            raise BrokenError(f"ansible-playbook ended with status {ended.status}: {ended.said}")
        left = [host for host in left if host not in heard.begun]
        if heard.stopped:
            _leave(fleet, left, heard.stopped)
            return


def _why_stopped(fleet: SweepFolder, *, is_first: bool) -> str:
    """Return why the gate lets no other host begin; "" where it does. As the guard of the role
    labctl_gate, which sees the hosts of its own play alone."""
    if fleet.record.policy is None:
        return ""
    if broken := _gated(fleet, passed=False):
        return f"not touched: the gate failed on {', '.join(broken)}"
    if not is_first and not _gated(fleet, passed=True):
        return "not touched: no host of the earlier batches passed the gate"
    return ""


def _gated(fleet: SweepFolder, *, passed: bool) -> list[str]:
    """Return the hosts whose runs the gate let pass, or didn't."""
    states = {host: fleet.state(host) for host in fleet.record.hosts}
    return [
        host
        for host, state in states.items()
        if state.status is Status.DONE and (not state.reason) is passed
    ]


def _leave(fleet: SweepFolder, hosts: Sequence[str], why: str) -> None:
    for host in hosts:
        if fleet.state(host).status in (Status.WAITING, Status.NOT_TOUCHED):
            fleet.change(host, status=Status.NOT_TOUCHED, reason=why)


def _not_done(fleet: SweepFolder) -> list[str]:
    return [host for host in fleet.record.hosts if fleet.state(host).status is not Status.DONE]


def _variables(
    fleet: SweepFolder, how: HowToReach, study: str, left: Sequence[str]
) -> dict[str, Any]:
    record, there = fleet.record, set(left)
    sizes = [len(there.intersection(batch)) for batch in record.batches]
    own = "labctl"
    found: dict[str, Any] = {
        "labctl_serial": [size for size in sizes if size],
        "labctl_sweep_id": fleet.path.name,
        "labctl_sweep_study": study,
        "labctl_sweep_study_digest": record.study_digest,
        "labctl_sweep_seed": record.seed,
        "labctl_sweep_options": list(record.options),
        "labctl_sweep_version": record.labctl,
        "labctl_sweep_fetch_to": str(fleet.path / "hosts"),
        "labctl_sweep_control_command": own,
        "labctl_gate_command": own,
        **how.variables,
    }
    if record.policy is not None:
        found["labctl_gate_policy"] = record.policy
        found["labctl_gate_passed_before"] = _gated(fleet, passed=True)
        found["labctl_gate_batches"] = [list(batch) for batch in record.batches]
    return found


class _Heard:
    """Keep the hosts' states with what a playbook tells of them."""

    def __init__(self, fleet: SweepFolder, watching: Watching) -> None:
        self._fleet = fleet
        self._watching = watching
        self._hosts = frozenset(fleet.record.hosts)
        self._is_gated = fleet.record.policy is not None
        self._fetched: set[str] = set()
        self.begun: set[str] = set()
        self.stopped = ""

    def event(self, event: Mapping[str, Any]) -> None:
        """Take an event of ansible-runner."""
        news = news_of(event)
        if news is None or news.host not in self._hosts:
            return
        if news.what is What.STOPPED:
            self.stopped = news.reason
        self.begun.add(news.host)
        state = self._fleet.change(news.host, **self._changes(news))
        self._watching(news.host, state, news)

    def _changes(self, news: HostNews) -> dict[str, Any]:
        host = news.host
        match news.what:
            case What.BEGUN if host in self._fetched:
                return {}
            case What.BEGUN:
                return {"status": Status.RUNNING, "reason": ""}
            case What.PROGRESS:
                changes: dict[str, Any] = {"status": Status.RUNNING, "run": news.run}
                return changes | ({"digest": news.digest} if news.digest else {})
            case What.FETCHED:
                self._fetched.add(host)
                return {} if self._is_gated else {"status": Status.DONE, "reason": ""}
            case What.PASSED:
                return {"status": Status.DONE} if host in self._fetched else {}
            case What.FAILED if news.task == GATE and host in self._fetched:
                return {"status": Status.DONE, "reason": news.reason}
            case What.FAILED:
                return {"status": Status.FAILED, "reason": f"{news.task}: {news.reason}"}
            case What.UNREACHABLE:
                return {"status": Status.UNREACHABLE, "reason": news.reason}
            case What.STOPPED:
                return {"status": Status.NOT_TOUCHED, "reason": news.reason}
            case What.CHANGED | What.KEPT | What.UNDONE:
                return {}  # of a roll-out
