"""Events as ansible-runner 2.4.3 gave them with ansible-core 2.19.14, cut, and broken ones."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import jinja2.sandbox
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from labctl.base.paths import shipped_data
from labctl.fleet.host_news import MOST_SAID, HostNews, What, news_of

ROLE = shipped_data() / "ansible/ansible_collections/labctl/lab/roles/labctl_sweep"

LOOKED = (
    '{ "schema": 1, "run": "20261124T104418Z-tiny", "status": "running", "pid": 25048, '
    '"done": 1, "planned": 4, "invalid": 0} alive\r\n'
)


def event(kind: str, task: str, res: Any = None, **more: Any) -> dict[str, Any]:
    data = {"host": "h1", "task": task, "role": "labctl_sweep", "res": res} | more
    return {"event": kind, "uuid": "x", "event_data": data}


def test_a_retry_carries_progress() -> None:
    said = news_of(event("runner_retry", "labctl.lab.labctl_sweep : Wait", {"stdout": LOOKED}))
    assert said == HostNews(
        host="h1",
        what=What.PROGRESS,
        task="Wait",
        run="20261124T104418Z-tiny",
        done=1,
        planned=4,
    )


def test_what_other_roles_print_is_no_progress() -> None:
    for role in ("labctl_gate", "labctl_install", ""):
        said = event("runner_on_ok", "Hold the run against the policy", {"stdout": LOOKED})
        said["event_data"]["role"] = role
        assert news_of(said) is None


def written(role: str, /, host: str = "h1", **news: Any) -> dict[str, Any]:
    """A role's own news of a host, as set_fact returns it."""
    facts = {"ansible_facts": {f"labctl_{role}_news": news}}
    return event(
        "runner_on_ok", "Write it", facts, task_action="ansible.builtin.set_fact", host=host
    )


def test_a_role_writes_its_news_itself() -> None:
    said = news_of(written("gate", what="not passed", reason="a rule\n is broken", aside=True))
    assert said == HostNews(
        host="h1",
        what=What.NOT_PASSED,
        task="Write it",
        reason="a rule is broken",
        more={"aside": True},
    )


@pytest.mark.parametrize("what", ["begun", "unreachable", "progress", "none", 7, None, ["kept"]])
def test_a_role_can_write_no_other_news(what: Any) -> None:
    assert news_of(written("sweep", what=what)) is None


def test_a_fact_that_a_host_returns_is_not_its_news() -> None:
    """A module runs on the host, which may return any facts; set_fact runs here."""
    lie = written("rollout", what="kept")
    lie["event_data"]["task_action"] = "ansible.builtin.command"
    lie["event_data"]["role"] = "labctl_host_tune"
    assert news_of(lie) is None


NEWS = re.compile(r"labctl_\w+_news:\s*(?:\{\s*)?what: *(\"[^\"]*\"|[a-z ]+)")


def test_the_collection_writes_only_news_that_are_known() -> None:
    collection = ROLE.parents[1]
    files = [*collection.glob("roles/*/tasks/*.yml"), *collection.glob("playbooks/*.yml")]
    found = {
        word
        for path in files
        for said in NEWS.findall(path.read_text())
        for word in (re.findall(r"'([^']*)'", said) or [said.strip()])
    }
    assert found == {
        str(what)
        for what in What
        if what not in (What.BEGUN, What.PROGRESS, What.FAILED, What.UNREACHABLE)
    }


def test_a_failure_has_the_words_of_the_command() -> None:
    res = {"msg": "non-zero return code", "rc": 3, "stderr": "labctl: no QEMU\n        Install it."}
    said = news_of(event("runner_on_failed", "Start", res, ignore_errors=None))
    assert said is not None
    assert (said.what, said.reason) == (What.FAILED, "labctl: no QEMU Install it.")


IN_USE = "labctl: this host is in use: 'labctl sweep' (process 7) has been running since 10:00"


def test_a_host_that_another_labctl_uses_is_busy() -> None:
    said = news_of(event("runner_retry", "Start", {"rc": 3, "stderr": IN_USE}))
    assert said is not None
    assert said.what is What.BUSY
    assert "has been running since" in said.reason


def test_a_finding_is_on_standard_output() -> None:
    res = {"msg": "non-zero return code", "rc": 1, "stderr": "a note", "stdout": "2 files differ"}
    said = news_of(event("runner_on_failed", "Verify", res))
    assert said is not None
    assert said.reason == "2 files differ"


def test_a_host_that_does_not_answer_in_time_is_named_as_such() -> None:
    res = {"msg": "Task failed: Timed out after 60 second(s).", "timedout": {"period": 60}}
    said = news_of(event("runner_on_failed", "Wait", res))
    assert said is not None
    assert (said.what, said.reason) == (What.FAILED, "no answer within 60 s")


@pytest.mark.parametrize(
    "said",
    [
        "Task failed: The filter plugin 'ansible.builtin.from_json' failed: Expecting value: line "
        "1 column 1 (char 0)",
        "Task failed: No last item, sequence was empty.",
        "object of type 'str' has no attribute 'status'",
    ],
)
def test_an_answer_that_cannot_be_read_is_named_as_such(said: str) -> None:
    """As ansible-core 2.19 words it."""
    for one in (event("runner_on_failed", "Wait", {"msg": said}),
                written("rollout", what="not changed", reason=said)):  # fmt: skip
        news = news_of(one)
        assert news is not None
        assert news.reason.startswith("its answer cannot be read")


def test_a_wrong_key_is_named_as_such() -> None:
    res = {"unreachable": True, "msg": "@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@"}
    said = news_of(event("runner_on_unreachable", "Ask for the version", res))
    assert said is not None
    assert said.what is What.UNREACHABLE
    assert said.reason == "ssh rejects its host key, which differs from known_hosts"


def test_what_a_host_prints_can_neither_flood_nor_paint_the_terminal() -> None:
    res = {"stderr": "\x1b[31m" + 10_000 * "x"}
    said = news_of(event("runner_on_failed", "Start", res))
    assert said is not None
    assert len(said.reason) <= MOST_SAID + 1
    assert "\x1b" not in said.reason


@pytest.mark.parametrize(
    "stdout",
    ["", "{}", "{", '{"run": 7}', '{"run": null}', "[]", '{"run": "r", "done": "many"}',
     '{"run": "r", "done": -1, "planned": 1e400}', '{"run": "r", "done": true}'],
)  # fmt: skip
def test_broken_progress_is_no_progress(stdout: str) -> None:
    said = news_of(event("runner_on_ok", "Wait", {"stdout": stdout}))
    assert said is None or (said.run == "r" and said.done is None)


@pytest.mark.parametrize(
    "broken",
    [{}, {"event": "runner_on_ok"}, {"event": "runner_on_ok", "event_data": None},
     {"event": "runner_on_ok", "event_data": {"host": 7}}, {"event": ["runner_on_ok"]},
     {"event": "playbook_on_stats", "event_data": {"host": "h1"}}],
)  # fmt: skip
def test_an_event_of_no_host_is_passed_over(broken: dict[str, Any]) -> None:
    assert news_of(broken) is None


FLOOD = 400_000 * "{"


def test_a_flood_of_braces_takes_no_time() -> None:
    begin = time.process_time()
    assert news_of(event("runner_on_ok", "Wait", {"stdout": FLOOD})) is None
    assert time.process_time() - begin < 1


def seen(stdout: str) -> Any:
    """What the role makes of what a host printed."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment()
    environment.filters["from_json"] = json.loads
    environment.tests["search"] = lambda value, pattern: bool(re.search(pattern, value))
    said = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    line, whole = (
        environment.compile_expression(said[f"__labctl_sweep_{name}"].strip()[2:-2])
        for name in ("line", "seen")
    )
    return whole(__labctl_sweep_line=line(__labctl_sweep_looked={"stdout": stdout}))


def test_the_role_reads_progress_behind_what_a_login_prints() -> None:
    assert seen("{welcome\r\n" + LOOKED)["run"] == "20261124T104418Z-tiny"
    assert seen("{}\n") == {}


def test_the_role_is_not_held_by_a_flood_of_braces() -> None:
    begin = time.process_time()
    with pytest.raises(ValueError, match="Expecting"):
        seen(FLOOD + "} alive\n")
    assert time.process_time() - begin < 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(res=JSON, task=st.text(), kind=st.sampled_from(["runner_on_ok", "runner_on_failed"]))
def test_nothing_that_a_host_sends_breaks_the_reader(res: Any, task: str, kind: str) -> None:
    news_of(event(kind, task, res))


def test_the_roles_time_all_that_runs_on_a_host() -> None:
    """In a play of the user's own too; the collection's plays limit each task besides."""
    untimed = []
    remote = ("command", "raw", "file", "copy", "fetch")
    for name in ("labctl_sweep", "labctl_host_tune"):
        for path in (ROLE.parent / name).glob("*s/*.yml"):
            for task in flat(yaml.safe_load(path.read_text()) or []):
                runs = any(f"ansible.builtin.{module}" in task for module in remote)
                if runs and "timeout" not in task and task.get("delegate_to") != "localhost":
                    untimed.append(task["name"])
    assert untimed == []


def flat(tasks: Any) -> list[dict[str, Any]]:
    found = []
    for task in tasks if isinstance(tasks, list) else []:
        found += [task, *flat(task.get("block", [])), *flat(task.get("rescue", []))]
    return found
