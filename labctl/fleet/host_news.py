"""Convert ansible-runner's events into typed news of a host. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from labctl.base.json import parse_json
from labctl.base.wording import printable

MOST_SAID: Final = 600
"""Characters of a host's reason: its output may be anything."""


class What(StrEnum):
    """Name the kinds of news. Roles and playbooks of the collection write all but the first four
    themselves, in facts."""

    BEGUN = "begun"
    PROGRESS = "progress"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    STARTED = "started"
    """No guard stopped its batch."""
    STOPPED = "not touched"
    """The guard stopped its batch before anything was changed on it."""
    BUSY = "busy"
    """Another labctl measures on it."""
    FETCHED = "fetched"
    """Its run was fetched and verified."""
    PASSED = "passed"
    """Its run kept the policy's rules, and confirmed the advice."""
    NOT_PASSED = "not passed"
    FORESEEN = "foreseen"
    """It reported what would change on it."""
    CHANGING = "changing"
    """Something may be changed on it from now on, and a timer will undo that."""
    CHANGED = "changed"
    """All of its settings and virtual machines were changed, and a timer will undo that."""
    NOT_CHANGED = "not changed"
    KEEPING = "keeping"
    """It is about to be told to keep the changes."""
    KEPT = "kept"
    UNDONE = "undone"
    NOT_UNDONE = "not undone"
    """It could not restore its settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNews:
    """Hold news of one host. `run`, `done`, `planned`, `digest`: from its progress.json, if the
    task read it; `more`: further values of a role's own news."""

    host: str
    what: What
    task: str
    reason: str = ""
    run: str = ""
    done: int | None = None
    planned: int | None = None
    digest: str = ""
    more: Mapping[str, object] = field(default_factory=dict)


_KINDS = {
    "runner_on_start": What.BEGUN,
    "runner_on_ok": What.PROGRESS,
    "runner_retry": What.PROGRESS,
    "runner_on_failed": What.FAILED,
    "runner_on_unreachable": What.UNREACHABLE,
}

_UNREADABLE = re.compile(
    r"from_json' failed|No last item, sequence was empty|has no attribute '(status|run|digest)'"
)
"""Ansible's messages where a role cannot read what a host printed."""
_WRONG_KEY = re.compile("Host key verification failed|HOST IDENTIFICATION HAS CHANGED")
RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,199}")
"""Name of a host's run: it becomes a path, and a variable for Ansible, which treats braces as a
template."""

_SWEEP: Final = "labctl_sweep"
_IN_USE: Final = "in use"
"""Words of labctl's refusal (`host/lock.py`), by which the role tries again."""
_FACTS: Final = tuple(f"labctl_{name}_news" for name in ("sweep", "gate", "host_tune", "rollout"))
"""Facts in which roles and playbooks write a host's news. They count only as results of set_fact,
which runs on the control node: any other task returns what the host prints."""
_SET_FACT: Final = ("set_fact", "ansible.builtin.set_fact")
_ANSIBLES: Final = (What.BEGUN, What.PROGRESS, What.FAILED, What.UNREACHABLE)
_WRITTEN: Final = {str(what): what for what in What if what not in _ANSIBLES}

_LACKING = {
    "needs_reboot": "in force after a reboot of the host",
    "when_started": "in force when the virtual machine is started next",
    "in_guest": "left to do inside the guest",
    "refused": "refused by the kernel",
}
"""Keys in the output of `labctl advise --apply --json`, each a list of settings not in force
yet."""


def news_of(event: Mapping[str, object]) -> HostNews | None:
    """Return an event's news of a host; None if it has none to keep."""
    kind = _KINDS.get(str(event.get("event")))
    data = event.get("event_data")
    if kind is None or not isinstance(data, Mapping) or not isinstance(data.get("host"), str):
        return None
    host, task = data["host"], _last_part(str(data.get("task", "")))
    result = data.get("res")
    result = result if isinstance(result, Mapping) else {}
    match kind:
        case What.BEGUN:
            return HostNews(host=host, what=kind, task=task)
        case What.FAILED if data.get("ignore_errors"):
            return None
        case What.FAILED | What.UNREACHABLE:
            return HostNews(host=host, what=kind, task=task, reason=_reason(result))
        case _ if str(data.get("task_action")) in _SET_FACT:
            return _written(host, task, result.get("ansible_facts"))
        case _:
            role = str(data.get("role", "")).rpartition(".")[2]
            if role != _SWEEP:
                return None
            if event.get("event") == "runner_retry" and _IN_USE in str(result.get("stderr")):
                why = _reason(result)
                again = {"tried": "again"}
                return HostNews(host=host, what=What.BUSY, task=task, reason=why, more=again)
            return _progress(host, task, result)


def _written(host: str, task: str, facts: object) -> HostNews | None:
    """Return the news that a role or a playbook wrote into a fact; None if the task set others."""
    if not isinstance(facts, Mapping):
        return None
    said = next((facts[name] for name in _FACTS if name in facts), None)
    what = _WRITTEN.get(str(said.get("what"))) if isinstance(said, Mapping) else None
    if what is None or not isinstance(said, Mapping):
        return None
    reason = said.get("reason")
    return HostNews(
        host=host,
        what=what,
        task=task,
        reason=_plain(reason) if isinstance(reason, str) else "",
        more={key: value for key, value in said.items() if key not in ("what", "reason")},
    )


def lacking(printed: object) -> str:
    """Return the applied settings that are not in force, from the output of the command that
    applied them; "" if all are."""
    said = printed if isinstance(printed, Mapping) else _object_in(str(printed))
    found = [
        f"{words}: {', '.join(map(str, names))}"
        for key, words in _LACKING.items()
        if isinstance(names := said.get(key), list) and names
    ]
    return _short("; ".join(found))


def _object_in(text: str) -> Mapping[str, object]:
    """Return the JSON object that a command printed; an empty one if it printed none."""
    try:
        said = parse_json(text[text.find("{") : text.rfind("}") + 1])
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _progress(host: str, task: str, result: Mapping[str, object]) -> HostNews | None:
    """Return the content of the host's progress.json, if the task printed it."""
    said = _object_in(str(result.get("stdout", "")))
    run = said.get("run")
    if not isinstance(run, str) or not RUN_NAME.fullmatch(run):
        return None
    return HostNews(
        host=host,
        what=What.PROGRESS,
        task=task,
        run=_short(run),
        done=_count(said.get("done")),
        planned=_count(said.get("planned")),
        digest=_short(str(said.get("digest", ""))),
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**31 else None


def _reason(result: Mapping[str, object]) -> str:
    """Return why a task failed: the error that it printed, else Ansible's message."""
    if isinstance(late := result.get("timedout"), Mapping):
        return f"no answer within {_short(str(late.get('period')))} s"
    keys = ["stderr", "msg", "module_stderr", "stdout"]
    if result.get("rc") == 1:  # labctl prints what a check has found on standard output
        keys = ["stdout", "stderr", "msg", "module_stderr"]
    said = [result.get(key) for key in keys]
    texts = [text.strip() for text in said if isinstance(text, str) and text.strip()]
    if any(_WRONG_KEY.search(text) for text in texts):
        return "ssh rejects its host key, which differs from known_hosts"
    return _plain(texts[0]) if texts else "no reason given"


def _plain(text: str) -> str:
    """Return a reason in an operator's words where Ansible's are those of its expressions."""
    if _UNREADABLE.search(text):
        return "its answer cannot be read: expected JSON as labctl prints it, got something else"
    return _short(text)


def _short(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]}…"


def _last_part(task: str) -> str:
    """Return a task's name without its role, which Ansible puts before it."""
    return task.rpartition(" : ")[2]
