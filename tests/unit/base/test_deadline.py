from __future__ import annotations

import pytest

from labctl.base.errors import DeadlineError, ExitCode
from labctl.base.process import Deadline


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as a list of one that a test may change."""
    now = [100.0]
    monkeypatch.setattr("labctl.base.process.time.monotonic", lambda: now[0])
    return now


def test_nested_waits_share_what_is_left(clock: list[float]) -> None:
    deadline = Deadline.after(10, "the boot")
    clock[0] += 4
    assert deadline.remaining() == 6
    assert not deadline.expired


def test_a_deadline_that_is_over_says_what_was_not_done(clock: list[float]) -> None:
    deadline = Deadline.after(2.5, "the boot")
    clock[0] += 2.5
    assert deadline.expired
    with pytest.raises(DeadlineError, match=r"the boot was not done within 2\.5 s") as caught:
        deadline.remaining()
    assert caught.value.exit_code == ExitCode.BROKE
