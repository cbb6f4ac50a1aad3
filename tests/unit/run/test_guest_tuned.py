"""What tuned answers in a guest, and what is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labctl.base.command import Command, CommandResult
from labctl.base.errors import BrokenError
from labctl.run.guests.tuned import TunedState, activate

# As tuned 2.20.0 wrote them in a Debian 12 guest of two vCPUs, booted with 1-N.
VERIFYING = "2026-11-21 15:41:39,048 INFO     tuned.daemon.daemon: verifying profile(s): x\n"
SPELLING = (
    "2026-11-21 15:41:39,551 ERROR    tuned.plugins.plugin_bootloader: verify: failed: cmdline arg "
    "'isolcpus=managed_irq,domain,1-N', expected 'isolcpus=managed_irq,domain,1'\n"
)
SCRIPT = (
    "2026-11-21 15:41:48,442 ERROR    tuned.plugins.plugin_script: verify: failed: "
    "'['/usr/lib/tuned/realtime/script.sh']'\n"
)

# As tuned 2.25.1 wrote them in a Debian 13 guest (Linux 6.12).
UNMOVABLE = (
    "2026-11-27 23:59:28,334 ERROR    tuned.plugins.plugin_scheduler: Failed to set SMP affinity "
    "of IRQ 42 to '00000001': [Errno 1] Operation not permitted\n"
)
UNMOVED = (
    "2026-11-27 23:59:30,395 ERROR    tuned.plugins.plugin_scheduler: verify: failed: 'SMP "
    "affinity of IRQ 42' = '[1]', expected '[0]'\n"
)


class Guest:
    def __init__(self, answer: Any, status: int = 0) -> None:
        self.answer = answer if isinstance(answer, str) else json.dumps(answer)
        self.status = status

    def run(self, command: Command, *, seconds: float) -> CommandResult:
        starts = command.argv[0] == "sh"
        return CommandResult(
            returncode=self.status if starts else 0,
            stdout=b"" if starts else self.answer.encode(),
            stderr=b"tuned is not installed\n" if self.status else b"",
            files={},
            duration_s=0.0,
            counts={},
        )


def activated(status: int = 0, **found: Any) -> TunedState:
    answer = {
        "profile": "virtual-guest",
        "verified": True,
        "isolated_cores": "",
        "log": VERIFYING,
        "printed": "",
        **found,
    }
    return activate(Guest(answer, status), "virtual-guest")  # type: ignore[arg-type]


def test_a_verified_profile_is_in_force() -> None:
    state = activated()
    assert state.problems == ()
    assert state.evidence["log"] == VERIFYING.splitlines()


def test_what_tuned_cannot_verify_is_named() -> None:
    (problem,) = activated(verified=False, log=VERIFYING + SCRIPT).problems
    assert problem == (
        "tuned in the guest cannot verify its profile 'virtual-guest': "
        "'['/usr/lib/tuned/realtime/script.sh']'"
    )


def test_a_last_cpu_by_its_number_is_the_one_that_the_kernel_was_given() -> None:
    same = activated(verified=False, isolated_cores="1", log=VERIFYING + SPELLING)
    assert same.problems == ()
    other = activated(verified=False, isolated_cores="2-3", log=VERIFYING + SPELLING)
    assert "isolcpus=managed_irq,domain,1-N" in other.problems[0]
    more = activated(verified=False, isolated_cores="1", log=VERIFYING + SPELLING + SCRIPT)
    assert "isolcpus" not in more.problems[0]
    assert "script.sh" in more.problems[0]


def test_an_interrupt_that_the_kernel_keeps_to_itself_is_no_failure() -> None:
    log = VERIFYING + UNMOVABLE + UNMOVED
    assert activated(verified=False, log=log).problems == ()
    (problem,) = activated(verified=False, log=VERIFYING + UNMOVED).problems
    assert "IRQ 42" in problem
    (problem,) = activated(verified=False, log=log + UNMOVED.replace("42", "43")).problems
    assert "IRQ 43" in problem
    assert "IRQ 42" not in problem


def test_a_failure_that_tuned_does_not_explain_is_one_all_the_same() -> None:
    assert "no details given" in activated(verified=False).problems[0]


def test_another_profile_than_the_one_asked_for_is_a_problem() -> None:
    assert activated(profile="balanced").problems == (
        "tuned in the guest has the profile 'balanced', expected 'virtual-guest'",
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"printed": "Requested profile 'virtual-guest' doesn't exist.\n"}, "doesn't exist."),
        ({"log": "12:00:00,1 ERROR    tuned.daemon: no such unit\n"}, "tuned.daemon: no such unit"),
    ],
)
def test_a_profile_that_tuned_does_not_apply_is_a_problem_in_its_words(
    found: dict[str, str], words: str
) -> None:
    (problem,) = activated(profile=None, verified=False, **found).problems
    assert problem.startswith("tuned in the guest has no profile, expected 'virtual-guest': ")
    assert problem.endswith(words)


def test_a_guest_without_tuned_is_said_with_the_remedy() -> None:
    with pytest.raises(BrokenError, match="tuned is not installed") as caught:
        activated(status=1)
    assert "packages" in str(caught.value.hint)


@pytest.mark.parametrize("answer", ["", "no JSON", "{}", "[1]"])
def test_a_guest_that_answers_with_garbage_is_no_crash(answer: str) -> None:
    with pytest.raises(BrokenError, match="answered with"):
        activate(Guest(answer), "virtual-guest")  # type: ignore[arg-type]
