from pathlib import Path

import pytest

from labctl.run.guests.started import console_end, how_it_ended

STARTED = """\
2026-11-22 09:01:16.807+0000: starting up libvirt version: 9.0.0, hostname: vm
/usr/bin/qemu-system-x86_64 \\
-name guest=labctl-guest,debug-threads=on \\
-msg timestamp=on
2026-11-22 09:01:16.807+0000: Domain id=16 is tainted: high-privileges
2026-11-22 09:01:18.070+0000: Domain id=16 is tainted: custom-monitor
"""
ENDED = "2026-11-22 09:01:24.744+0000: shutting down, reason=crashed\n"
FATAL = "2026-11-22T09:01:24.700000Z qemu-system-x86_64: fatal: no memory\n"


@pytest.fixture
def console(tmp_path: Path) -> Path:
    log = tmp_path / "console.log"
    log.write_text("[    0.5] Kernel panic - not syncing: IO-APIC + timer doesn't work!\n\n")
    return log


def test_a_guest_that_is_gone_leaves_its_console_and_qemu_s_words_of_it_alone(
    tmp_path: Path, console: Path
) -> None:
    log = tmp_path / "qemu.log"
    log.write_text(STARTED + ENDED.replace("crashed", "destroyed") + STARTED + FATAL + ENDED)
    assert how_it_ended(log, console) == (
        f"\nQEMU's log ends:\n  {FATAL.strip()}\n  {ENDED.strip()}"
        "\nIts console ends:\n  [    0.5] Kernel panic - not syncing: IO-APIC + timer doesn't work!"
    )


def test_a_log_without_a_word_on_the_last_guest_says_nothing(tmp_path: Path, console: Path) -> None:
    log = tmp_path / "qemu.log"
    log.write_text(STARTED + ENDED + STARTED)
    assert how_it_ended(log, console).startswith("\nQEMU's log is empty.\nIts console ends")


def test_a_log_whose_command_is_no_longer_in_reach_is_read_from_where_it_is(
    tmp_path: Path, console: Path
) -> None:
    log = tmp_path / "qemu.log"
    log.write_text(STARTED + FATAL * 2000 + ENDED)
    empty, *said = how_it_ended(log, console).partition("\nIts console")[0].splitlines()
    assert empty == ""
    assert len(said) == 9
    assert said[-1].strip() == ENDED.strip()


def test_logs_that_are_not_there_or_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_bytes(b"\n \n")
    none = tmp_path / "none.log"
    assert console_end(tmp_path / "empty.log") == "\nIts console is empty."
    said = how_it_ended(none, none)
    assert said == "\nQEMU's log can't be read.\nIts console can't be read."


def test_a_console_is_no_text_for_sure(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_bytes(b"\xff\xfe" * 500 + b"\nlast\n")
    _, first, *lines = console_end(log).splitlines()
    assert first == "Its console ends:"
    assert len(lines[0]) == 162
    assert lines[-1] == "  last"
