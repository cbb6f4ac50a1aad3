"""Convert ansible-runner's events into typed news of a host. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from labctl.base.json import parse_json
from labctl.base.wording import printable

MOST_SAID: Final = 600
"""Characters of a host's reason: its output may be anything."""


class What(StrEnum):
    BEGUN = "begun"
    PROGRESS = "progress"
    FETCHED = "fetched"
    PASSED = "passed"
    """Its run kept the policy's rules."""
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    STOPPED = "stopped"
    """The guard stopped its batch before anything was changed on it."""
    CHANGED = "changed"
    """Its settings or virtual machines were changed, and a timer will undo that."""
    KEPT = "kept"
    """It was told to keep the changes."""
    UNDONE = "undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNews:
    """Hold news of one host. `run`, `done`, `planned`, `digest`: from its progress.json, if the
    task read it."""

    host: str
    what: What
    task: str
    reason: str = ""
    run: str = ""
    done: int | None = None
    planned: int | None = None
    digest: str = ""


_KINDS = {
    "runner_on_start": What.BEGUN,
    "runner_on_ok": What.PROGRESS,
    "runner_retry": What.PROGRESS,
    "runner_on_failed": What.FAILED,
    "runner_on_unreachable": What.UNREACHABLE,
}

_WRONG_KEY = re.compile("Host key verification failed|HOST IDENTIFICATION HAS CHANGED")
RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,199}")
"""Name of a host's run: it becomes a path, and a variable for Ansible, which treats braces as a
template."""

_GUARD = "Stop where an earlier batch did not pass"
GATE: Final = "Stop where a rule is not kept"
_SWEEP: Final = "labctl_sweep"
_TUNE: Final = "labctl_host_tune"
CHANGE: Final = "Turn them, with a timer that puts them back"
_LAST = {
    (_SWEEP, "Verify"): What.FETCHED,
    ("labctl_gate", GATE): What.PASSED,
    (_TUNE, CHANGE): What.CHANGED,
    ("", "Keep it"): What.KEPT,
    ("", "Put back what is not kept"): What.UNDONE,
}
"""Tasks of roles, by the role's name, and of playbooks, and what their success means."""

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
            return None if task == _GUARD else HostNews(host=host, what=kind, task=task)
        case What.FAILED if data.get("ignore_errors"):
            return None
        case What.FAILED if task == _GUARD:
            return HostNews(host=host, what=What.STOPPED, task=task, reason=_reason(result))
        case What.FAILED | What.UNREACHABLE:
            return HostNews(host=host, what=kind, task=task, reason=_reason(result))
        case _:
            role = str(data.get("role", "")).rpartition(".")[2]
            last = _LAST.get((role, task)) if event.get("event") == "runner_on_ok" else None
            if last is What.UNDONE and result.get("rc"):
                return HostNews(host=host, what=What.FAILED, task=task, reason=_reason(result))
            if last is not None:
                lacking = _lacking(result) if last is What.CHANGED else ""
                return HostNews(host=host, what=last, task=task, reason=lacking)
            return _progress(host, task, result) if role == _SWEEP else None


def _lacking(result: Mapping[str, object]) -> str:
    """Return the applied settings that are not in force; "" if all are."""
    said = printed_json(result)
    found = [
        f"{words}: {', '.join(map(str, names))}"
        for key, words in _LACKING.items()
        if isinstance(names := said.get(key), list) and names
    ]
    return _short("; ".join(found))


def printed_json(result: Mapping[str, object]) -> Mapping[str, object]:
    """Return the JSON object that a task's command printed; an empty one if it printed none."""
    text = str(result.get("stdout", ""))
    try:
        said = parse_json(text[text.find("{") : text.rfind("}") + 1])
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _progress(host: str, task: str, result: Mapping[str, object]) -> HostNews | None:
    """Return the content of the host's progress.json, if the task printed it."""
    said = printed_json(result)
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
    # With status 1 labctl prints its findings on standard output.
    keys = ["stderr", "msg", "module_stderr", "stdout"]
    said = [result.get(key) for key in (reversed(keys) if result.get("rc") == 1 else keys)]
    texts = [text.strip() for text in said if isinstance(text, str) and text.strip()]
    if any(_WRONG_KEY.search(text) for text in texts):
        return "ssh rejects its host key, which differs from known_hosts"
    return _short(texts[0]) if texts else "no reason given"


def _short(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]}…"


def _last_part(task: str) -> str:
    """Return a task's name without its role, which Ansible puts before it."""
    return task.rpartition(" : ")[2]
