"""The `labctl` command as a whole: its exit codes, and how failures look."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from labctl.base.errors import BrokenError, HostError, LabctlError, UsageError
from labctl.cli import main as module
from labctl.cli.main import cli
from tests.unit.cli.conftest import Labctl


def _commands(group: click.Group, *before: str) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        yield (*before, name)
        if isinstance(found, click.Group):
            yield from _commands(found, *before, name)


assert isinstance(cli, click.Group)
COMMANDS = list(_commands(cli))


def raising(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """`labctl pins` raises this."""
    monkeypatch.setattr("labctl.cli.pins.command", raising(error))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(labctl: Labctl, words: tuple[str, ...]) -> None:
    said = labctl(*words, "--help")
    assert said.code == 0
    assert said.out.startswith(f"Usage: labctl {' '.join(words)}")
    assert said.err == ""


def test_every_group_is_named_in_the_help(labctl: Labctl) -> None:
    said = labctl("--help")
    assert said.code == 0
    for words in COMMANDS:
        if len(words) == 1:
            assert f"  {words[0]} " in said.out


def test_the_version_is_the_packages(labctl: Labctl) -> None:
    import labctl as package

    assert labctl("--version").out == f"labctl, version {package.__version__}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("the file is wrong", hint="Mend it."), 2),
        (HostError("the host can't", hint="Get another."), 3),
        (BrokenError("it broke", hint="Try again."), 4),
    ],
)
def test_each_kind_of_failure_has_its_exit_code_its_sentence_and_its_remedy(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch, error: LabctlError, code: int
) -> None:
    fail_with(monkeypatch, error)
    said = labctl("pins")
    assert said.code == code
    assert said.err == f"labctl: {error.message}\n        {error.hint}\n"
    assert said.out == ""


def test_an_error_without_a_remedy_prints_no_empty_line(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, BrokenError("it broke"))
    assert labctl("pins").err == "labctl: it broke\n"


def test_a_traceback_is_shown_only_where_it_is_asked_for(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, BrokenError("it broke"))
    assert "Traceback" not in labctl("pins").err
    said = labctl("--debug", "pins")
    assert said.code == 4
    assert "Traceback" in said.err
    assert said.err.endswith("labctl: it broke\n")


def test_a_fault_of_our_own_is_called_one(labctl: Labctl, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError("division by zero"))
    said = labctl("pins")
    assert said.code == 4
    assert said.err.startswith("labctl: a fault in labctl: ZeroDivisionError: division by zero\n")
    assert "labctl --debug" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EACCES, "Run labctl as root"),
        (errno.EROFS, "--state-dir"),
    ],
)
def test_what_the_host_refuses_to_any_file_is_no_fault_of_ours(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    fail_with(monkeypatch, OSError(number, os.strerror(number), "/some/file"))
    said = labctl("pins")
    assert said.code == 3
    assert "'/some/file'" in said.err
    assert remedy in said.err


def test_another_error_of_the_system_is_a_fault(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, OSError(errno.EBADF, "Bad file descriptor"))
    assert labctl("pins").code == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupted_command_says_so(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    fail_with(monkeypatch, error)
    said = labctl("pins")
    assert said.code == 130
    assert said.err.strip() == "labctl: interrupted"


def test_an_interrupted_sweep_says_how_to_go_on(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = KeyboardInterrupt("SIGINT")
    stopped.add_note("Continue with: labctl sweep --resume r1")
    fail_with(monkeypatch, stopped)
    assert labctl("pins").err.splitlines()[-1].strip() == "Continue with: labctl sweep --resume r1"


def test_an_error_cannot_drive_the_terminal(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, BrokenError("the guest: \x1b]0;owned\x07 said", hint="\x1b[2J"))
    said = labctl("pins")
    assert "\x1b" not in said.err
    assert "owned" in said.err


def test_a_finding_is_exit_code_1(labctl: Labctl, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.pass_context
    def found(context: click.Context) -> None:
        context.exit(1)

    monkeypatch.setattr("labctl.cli.pins.command", found)
    assert labctl("pins").code == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--nosuch"],
        ["sweep", "--nosuch"],
        ["sweep", "--accel", "xen"],
        ["sweep", "--seed", "-1"],
        ["sweep", "--blocks", "many"],
        ["report"],
        ["run", "rm"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_code_2(labctl: Labctl, words: list[str]) -> None:
    said = labctl(*words)
    assert said.code == 2
    assert said.err.startswith("labctl: ")
    assert "Traceback" not in said.err


@pytest.mark.parametrize("command", ["report", "run show", "run rm --yes", "run reparse"])
def test_a_run_that_is_not_there_is_exit_code_2(
    labctl: Labctl, tmp_path: Path, command: str
) -> None:
    said = labctl(*command.split(), "nosuch", "--results", str(tmp_path))
    assert said.code == 2
    assert said.err.startswith(f"labctl: no run named 'nosuch' in {tmp_path}\n")


def run_piped(*words: str, stdout: int | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "labctl.cli.main", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("words", [("tuning", "list"), ("tuning", "list", "--json")])
def test_a_reader_that_leaves_early_is_no_failure(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run_piped(*words, stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_that_finds_no_space_is_the_hosts_refusal() -> None:
    with open("/dev/full", "wb") as full:
        done = run_piped("tuning", "list", "--json", stdout=full.fileno())
    assert done.returncode == 3
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "slow"),
    [
        ("labctl.cli.main", {"numpy", "scipy", "lxml", "libvirt", "pydantic", "rich", "jinja2"}),
        ("labctl.run.commands.sweep", {"pyarrow", "matplotlib"}),
    ],
)
def test_a_module_loads_nothing_that_takes_long_and_it_may_not_need(
    name: str, slow: set[str]
) -> None:
    script = f"import sys, {name}; print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.replace("'", "").strip("[]\n").split(", "))
    assert name in loaded
    assert not loaded & slow


def test_the_list_of_commands_loads_none_of_them() -> None:
    script = (
        "import sys; from labctl.cli.main import cli; cli(['--help'], standalone_mode=False); "
        "print(*(name for name in sys.modules if name.startswith('labctl.')), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name for name in done.stderr.split() if name.startswith("labctl.cli.")}
    assert loaded == {"labctl.cli.main", "labctl.cli.parts", "labctl.cli.parts.common"}


def test_each_command_in_the_help_has_its_module() -> None:
    for name, (path, _) in module._COMMANDS.items():
        assert path.startswith("labctl.cli.")
        assert cli.get_command(click.Context(cli), name) is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "said", "near"),
    [
        (["swep"], "labctl has no command 'swep'", "sweep"),
        (["run", "lst"], "labctl run has no command 'lst'", "list"),
    ],
)
def test_an_unknown_command_is_refused_with_the_nearest_name(
    labctl: Labctl, words: list[str], said: str, near: str
) -> None:
    said_by = labctl(*words)
    assert said_by.code == 2
    assert said in said_by.err
    assert f"Did you mean '{near}'?" in said_by.err


@pytest.mark.parametrize("group", ["tuning", "image", "run"])
def test_no_line_of_a_groups_help_is_cut_off(labctl: Labctl, group: str) -> None:
    assert "..." not in labctl(group, "--help").out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("words", "says", "remedy"),
    [
        (("sweep", "pinning", "--blocks", "x"), "'x' is not a whole number", "labctl sweep --help"),
        (("report",), "missing argument 'RUN'", "'latest' is the newest"),
        (("report", "a", "b"), "unexpected extra argument (b)", "labctl report --help"),
        (("sweep", "--blok", "1"), "no such option '--blok'", "labctl sweep --help"),
        (("sweep", "x", "--accel", "y"), "'y' is not one of 'auto', 'kvm', 'tcg'", "labctl sweep"),
    ],
)
def test_a_wrong_command_line_is_refused_as_everything_else_is(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    says: str,
    remedy: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["labctl", *words])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    sentence, hint = capsys.readouterr().err.splitlines()
    assert sentence.startswith("labctl: ")
    assert says in sentence
    assert remedy in hint


def test_labctl_alone_shows_the_three_commands_to_begin_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["labctl"])
    with pytest.raises(SystemExit):
        module.main()
    out = capsys.readouterr().out
    commands = [line.split()[1] for line in out.splitlines() if line.startswith("  labctl ")]
    assert commands == ["doctor", "sweep", "report"]
    assert len(out.splitlines()) < 12


def test_a_sweep_without_a_study_lists_them_and_starts_none(labctl: Labctl) -> None:
    said = labctl("sweep", "--quick")
    assert said.code == 2
    assert "nested-overhead" in said.out
    assert "Which disk does the guest want on this host?" in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("memory", "mib"), [((), 1024), (("--memory", "2G"), 2048), (("--memory-mib", "512"), 512)]
)
def test_memory_is_given_in_mib_or_with_its_unit(
    labctl: Labctl, memory: tuple[str, ...], mib: int
) -> None:
    assert (
        f'<memory unit="MiB">{mib}</memory>'
        in labctl(*("domain", "render", "baseline", "--vcpus", "1", *memory)).out
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("domain", "render", "baseline", "--memory", "1"), "expected at least 64 MiB, got '1'"),
        (("collectors", "--seconds", "2h"), "expected 0.1 to 3600 seconds, got '2h'"),
    ],
)
def test_a_quantity_keeps_to_its_limits(labctl: Labctl, words: tuple[str, ...], said: str) -> None:
    found = labctl(*words)
    assert (found.code, said in " ".join(found.err.split())) == (2, True)
