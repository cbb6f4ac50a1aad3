"""Settings inside a guest, made through a channel that a dictionary stands in for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labctl.base.command import Command, CommandResult
from labctl.base.process import Deadline
from labctl.base.tuning import GuestSide
from labctl.run.guests.tuned import RAW, set_up

DATA = "/dev/disk/by-id/virtio-labctl-data"
ELEVATOR = "/sys/block/vdb/queue/scheduler"
ISOLATED = "/sys/devices/system/cpu/isolated"


class Guest:
    """`files`: path to text; `fixed`: those whose kernel takes no other value."""

    def __init__(self, files: dict[str, str], fixed: Sequence[str] = ()) -> None:
        self.files = files
        self.fixed = fixed
        self.written: list[str] = []

    def read(self, paths: Sequence[str], deadline: Deadline) -> dict[str, str | None]:
        return {path: self.files.get(path) for path in paths}

    def run(self, command: Command, *, seconds: float) -> CommandResult:
        out = b""
        if command.argv[0] == "readlink":
            out = b"/dev/vdb\n"
        else:
            *_, path, value = command.argv
            self.written.append(path)
            if path not in self.fixed:
                self.files[path] = value + "\n"
        return CommandResult(
            returncode=0, stdout=out, stderr=b"", files={}, duration_s=0.0, counts={}
        )


def asked(guest: Guest, **wanted: Any) -> tuple[list[str], dict[str, Any]]:
    state = set_up(guest, GuestSide(**wanted), [DATA])  # type: ignore[arg-type]
    return list(state.problems), state.evidence.get(RAW, {})


def test_a_guest_of_which_nothing_is_asked_is_left_alone() -> None:
    guest = Guest({})
    assert asked(guest) == ([], {})
    assert guest.written == []


def test_the_elevator_of_the_data_disk_is_set_and_read_back() -> None:
    guest = Guest({ELEVATOR: "[mq-deadline] none\n"})
    problems, found = asked(guest, elevator="none")
    assert problems == []
    assert found["settings"][ELEVATOR] == {
        "asked": "none",
        "before": "mq-deadline",
        "now": "none",
    }


def test_what_is_so_already_is_not_written() -> None:
    guest = Guest({ELEVATOR: "[none] mq-deadline\n"})
    assert asked(guest, elevator="none")[0] == []
    assert guest.written == []


def test_what_the_kernel_refuses_shows_in_what_is_read_back() -> None:
    guest = Guest({ELEVATOR: "[mq-deadline] none\n"}, fixed=[ELEVATOR])
    problems, _ = asked(guest, elevator="bfq")
    assert problems == [f"in the guest {ELEVATOR} reads 'mq-deadline', expected 'bfq'"]


def test_a_file_that_the_guest_has_not_is_not_made() -> None:
    guest = Guest({})
    problems, _ = asked(guest, sysfs={"/sys/no/such": "1"})
    assert problems == ["in the guest /sys/no/such is not there, expected '1'"]
    assert guest.files == {}


def test_a_word_that_the_kernel_was_not_booted_with_is_a_problem() -> None:
    guest = Guest({"/proc/cmdline": "root=/dev/vda mitigations=auto\n"})
    problems, _ = asked(guest, command_line=("mitigations=off",))
    assert problems == ["the guest's kernel was booted without 'mitigations=off'"]


def test_a_word_that_the_kernel_ignores_is_a_problem() -> None:
    line = {"/proc/cmdline": "root=/dev/vda isolcpus=1-N\n"}
    ignored = asked(Guest({**line, ISOLATED: "\n"}), command_line=("isolcpus=1-N",))[0]
    assert ignored == [f"the guest's kernel ignores 'isolcpus=1-N': {ISOLATED} names no CPU"]
    assert asked(Guest({**line, ISOLATED: "1-3\n"}), command_line=("isolcpus=1-N",))[0] == []
