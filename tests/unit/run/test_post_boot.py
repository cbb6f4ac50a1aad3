"""A guest is hostile: what it says while it is set up breaks nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labctl.base.command import Command, CommandResult, Server
from labctl.base.errors import BrokenError
from labctl.base.process import Deadline
from labctl.run.trials.engine import PostBootSetup


class Guest:
    def read(self, paths: Sequence[str], deadline: Deadline) -> dict[str, str | None]:
        return dict.fromkeys(paths)

    def serving(self, servers: Sequence[Server]) -> AbstractContextManager[None]:
        assert not servers
        return nullcontext()

    def run(self, command: Command, *, seconds: float) -> CommandResult:
        return CommandResult(
            returncode=1,
            stdout=b"",
            stderr=b"\xff\xfe: gone\n",
            files={},
            duration_s=0.0,
            counts={},
        )


def test_a_guest_whose_complaint_is_no_text_is_an_error_and_no_crash() -> None:
    lab = SimpleNamespace(vcpus=1, link=None)
    declared = SimpleNamespace(
        program="sysbench-cpu", parameters={}, duration_s=1.0, definition=None
    )
    plan = SimpleNamespace(workloads={"cpu": declared}, skipped_workloads={})
    done = SimpleNamespace(count_in_guest=lambda channel: None, check=lambda kind, channel: None)
    done.for_arm = lambda tuning: done
    post_boot = PostBootSetup(cast(Any, lab), cast(Any, plan), cast(Any, done), cast(Any, done))
    with pytest.raises(BrokenError, match="sysbench-cpu fails in the guest: .*: gone"):
        post_boot.set_up(cast(Any, Guest()), ("/dev/vdb",), cast(Any, None))
