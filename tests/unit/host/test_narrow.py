"""What makes a narrow link, and what tc(8) is told. With real packets:
tests/guest/test_narrow_link.py.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from labctl.base.link import Bottleneck
from labctl.host import narrow as module
from labctl.host.narrow import Narrow, narrowed

ASKED = Bottleneck(rate_mbit=15, queue_bdp=2, delay_ms=12)


def _narrow(*, has_tbf: bool, has_netem: bool) -> Narrow:
    return Narrow(router="r", client="c", competitor="k", has_tbf=has_tbf, has_netem=has_netem)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What programs are told, none of which runs."""
    lines: list[str] = []

    def run(argv: Sequence[str | os.PathLike[str]], **_: Any) -> subprocess.CompletedProcess[str]:
        words = [os.fspath(word) for word in argv]
        lines.append(" ".join(words[words.index("tc") :]))
        return subprocess.CompletedProcess(words, 0, "[]", "")

    monkeypatch.setattr(module, "run", run)
    return lines


def test_the_kernel_is_told_rate_queue_and_delay_and_told_to_forget_them(told: list[str]) -> None:
    with narrowed(_narrow(has_tbf=True, has_netem=True), ASKED, frozenset({0})) as found:
        assert told == [
            "tc -n r qdisc replace dev client0 root tbf rate 15000000bit burst 3750 limit 45000",
            "tc -n c qdisc replace dev router0 root netem delay 12ms limit 100000",
        ]
        assert found.to_json()["by"] == {"rate": "tbf", "delay": "netem"}
        assert found.pids == ()
    assert told[-2:] == [
        "tc -n c qdisc del dev router0 root",
        "tc -n r qdisc del dev client0 root",
    ]


def test_a_link_without_a_limit_has_no_filter(told: list[str]) -> None:
    asked = Bottleneck(rate_mbit=0, queue_bdp=2, delay_ms=12)
    with narrowed(_narrow(has_tbf=True, has_netem=True), asked, frozenset({0})) as found:
        assert found.to_json()["by"] == {"rate": "none", "delay": "netem"}
    assert not any("tbf" in line for line in told)


def test_what_the_kernel_lacks_is_made_by_the_relay_and_said() -> None:
    lacking = _narrow(has_tbf=True, has_netem=False)
    assert lacking.by(ASKED) == {"rate": "tbf", "delay": "relay"}
    assert lacking.sentence == (
        "Narrow links: rate and queue from tbf, delay from labctl's relay: this "
        "kernel has no netem."
    )
    neither = _narrow(has_tbf=False, has_netem=False)
    assert neither.by(ASKED) == {"rate": "relay", "delay": "relay"}
    assert neither.sentence.endswith("this kernel has no tbf and no netem.")
    assert "kernel" not in _narrow(has_tbf=True, has_netem=True).sentence


def test_the_relay_is_a_program_that_runs_by_itself() -> None:
    program = Path(module.__file__).with_name("relay_program.py")
    assert "labctl" not in program.read_text().partition('"""')[2].partition('"""')[2]
