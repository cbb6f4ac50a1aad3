"""What tuned answers in a guest, and what is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labctl.base.command import Command, CommandResult
from labctl.base.errors import BrokenError
from labctl.run.guest_tuned import TunedState, activate

# As tuned 2.20.0 wrote it in a Debian 12 guest; the second line is of a host without a PMU.
LOG = (
    "2024-01-01 12:44:23,972 INFO     tuned.daemon.daemon: verifying profile(s): virtual-guest\n"
    "2024-01-01 12:44:24,072 ERROR    tuned.plugins.base: verify: failed: 'kernel.nmi_watchdog' = "
    "'1', expected '0'\n"
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
            side={},
        )


def activated(answer: Any, status: int = 0) -> TunedState:
    return activate(Guest(answer, status), "virtual-guest")  # type: ignore[arg-type]


def test_a_verified_profile_is_in_force() -> None:
    state = activated({"profile": "virtual-guest", "verified": True, "log": LOG})
    assert state.problems == ()
    assert state.evidence["log"] == LOG.splitlines()


def test_what_tuned_cannot_verify_is_named() -> None:
    state = activated({"profile": "virtual-guest", "verified": False, "log": LOG})
    (problem,) = state.problems
    assert "can't verify its profile 'virtual-guest': 'kernel.nmi_watchdog' = '1'" in problem


def test_another_profile_than_the_one_asked_for_is_a_problem() -> None:
    state = activated({"profile": "balanced", "verified": True, "log": ""})
    assert state.problems == (
        "tuned in the guest has the profile 'balanced', asked was 'virtual-guest'",
    )


def test_a_guest_without_tuned_is_said_with_the_remedy() -> None:
    with pytest.raises(BrokenError, match="tuned is not installed") as caught:
        activated({}, status=1)
    assert "packages" in str(caught.value.hint)


@pytest.mark.parametrize("answer", ["", "no JSON", "{}", "[1]"])
def test_a_guest_that_answers_with_garbage_is_no_crash(answer: str) -> None:
    with pytest.raises(BrokenError, match="answered with"):
        activated(answer)
