"""Run the `labctl` command: find its subcommands, and show how they failed."""

from __future__ import annotations

import codecs
import errno
import importlib
import io
import os
import sys
import traceback
import unicodedata
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from labctl import __version__
from labctl.base import interpreter
from labctl.base.errors import ExitCode, LabctlError, UsageError
from labctl.base.plugins import COMPLETING, PluginWarning
from labctl.cli.parts.common import Group

# Make the standard streams fit to print on, whatever the terminal or the caller made of them.


_SIMPLER = {"−": "-", "…": "...", "×": "x", "–": "-", "·": "*", "─": "-", "━": "-", "│": "|"}
"""Letters of labctl's texts, and those that a terminal with few letters shows for them."""

_MOST_DIGITS_OF_SIZE = 5
"""Digits of a terminal's size: rich would convert any number of them, and Python refuses some."""

_FAILING = ("strict", "surrogateescape")
"""Error handlers of streams that raise on a letter which the encoding lacks."""


def prepare() -> None:
    """Replace streams that were closed before labctl began, and let none fail on a letter that its
    encoding lacks. Forget a size of the terminal that is not a number of a few digits."""
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name, "")
        if not (size.isascii() and size.isdecimal() and len(size) <= _MOST_DIGITS_OF_SIZE):
            os.environ.pop(name, None)
    codecs.register_error("simpler", _simpler)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            # Files that are opened later would get its number, and what is printed.
            null = os.open(os.devnull, os.O_WRONLY)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, "w", encoding="utf-8"))  # noqa: SIM115 - until the end
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in _FAILING:
            stream.reconfigure(errors="simpler")


def _simpler(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_letter(letter) for letter in lacking), error.end


def _letter(letter: str) -> str:
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return _SIMPLER.get(letter) or plain or "?"


_COMMANDS = {
    "init": ("labctl.cli.init", "Make a lab folder for tunings and studies of your own."),
    "sweep": ("labctl.cli.sweep", "Run a study and judge it."),
    "ab": ("labctl.cli.ab", "Compare two programs, tunings, builds or images: A and B."),
    "density": ("labctl.cli.density", "Count how many guests fit on this host."),
    "report": ("labctl.cli.report", "Show the results of a run."),
    "explain": ("labctl.cli.explain", "Explain a word of a report, a metric or a tuning."),
    "lesson": ("labctl.cli.lesson", "Learn by predicting: walk through a lesson on a run."),
    "timeline": ("labctl.cli.timeline", "Draw the time line of a traced trial, on host and guest."),
    "compare": ("labctl.cli.compare", "Compare two runs: hosts, kernels or days."),
    "history": ("labctl.cli.compare:history", "Plot a metric over runs; mark changes."),
    "fleet": ("labctl.cli.fleet", "Measure many hosts with one study; pool the results."),
    "gate": ("labctl.cli.gate", "Check a run against the rules of a policy."),
    "advise": ("labctl.cli.advise", "Show what to roll out, its cost and its steps."),
    "run": ("labctl.cli.runs", "List, show, import, reparse or remove runs."),
    "workload": ("labctl.cli.workload", "List, show, validate or try programs to measure."),
    "condition": ("labctl.cli.condition", "List, show or validate the load beside trials."),
    "domain": ("labctl.cli.domain", "Show what labctl understands of a VM's file."),
    "tuning": ("labctl.cli.tuning", "List, show, compare, render or validate tunings."),
    "study": ("labctl.cli.study", "List, show or write studies, which 'labctl sweep' runs."),
    "pins": ("labctl.cli.pins", "Plan which thread runs on which CPU."),
    "lint": ("labctl.cli.lint", "Check files: tunings, studies, workloads, recipes, policies."),
    "schema": ("labctl.cli.lint:schema", "Print the JSON Schema of a kind of file, for editors."),
    "image": ("labctl.cli.image", "Fetch, build, list, verify or remove guest images."),
    "exits": ("labctl.cli.host:exits", "Measure the cost of VM exits on this host."),
    "setup": ("labctl.cli.init:setup", "Install the system packages that labctl needs."),
    "doctor": ("labctl.cli.doctor", "Check this host; show whether a run's verdicts still hold."),
    "collectors": ("labctl.cli.collectors", "List what trials collect, and its cost on this host."),
    "selftest": (
        "labctl.cli.doctor:selftest",
        "Test all of labctl on this host; bundle its output.",
    ),
    "host": ("labctl.cli.host", "Show facts and settings of this host; restore changes."),
    "help": ("labctl.cli.help", "Show the help of a command."),
    "completion": ("labctl.cli.help:completion", "Print the completion script of a shell."),
}
"""Command to its module (with its name there, unless it is `command`) and its line in --help.
Modules are loaded only when they run: numpy, lxml and libvirt together take longer than --help
may."""

_OLD_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {
    **{
        ("domain", verb): ("tuning", verb)
        for verb in ("list", "show", "diff", "render", "validate")
    },
    ("pin", "plan"): ("pins",),
    ("pin",): ("pins",),
}
"""Words that name a command no longer, to its name now. Of two that fit, the first counts."""
_OLD_NAMES_END = "0.3"
"""Version that no longer knows the old names."""

_READ_THE_LAB = (
    "sweep",
    "ab",
    "density",
    "workload",
    "condition",
    "tuning",
    "study",
    "pins",
    "lint",
    "image",
    "doctor",
    "selftest",
    "collectors",
    "exits",
    "explain",
    "fleet",
)
"""Commands that use files which a lab folder may shadow."""

_MOST_SAID = 5000
"""Characters of a message, which may quote foreign text."""

_MOST_NAMED = 5
"""Shadowed files that are named one by one."""

_SPACE = "Free some space there, or name other folders with --state-dir and --results."
_MEMORY = "End other programs, or raise this process's limit ('ulimit -v', or its cgroup's)."
_RESERVE = bytearray(2 << 20)
"""Memory for the sentence that says that it lacks."""
_NO_MEMORY = f"labctl: not enough memory\n        {_MEMORY}\n".encode()
_RIGHTS = "Run labctl as root, or name folders of your own with --state-dir and --results."
_HOST_HINTS = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EIO: "The kernel's log names the disk: 'dmesg'.",
    errno.EROFS: _RIGHTS,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
}
"""Hints for refusals that any file operation may meet."""


_OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)
"""Refusals that any file operation may meet because of the name that the user gave."""
_LOOP = "Symlink loop"
"""Start of the error of pathlib for ELOOP before Python 3.13."""
_MOST_OF_NAME = 200
"""Characters that are shown of such a name."""

_START = """\
labctl measures the real effect of each virtualization tuning on this host.

Start with
  labctl doctor                  check what this host can measure
  labctl sweep pinning --quick   measure for about ten minutes and show the answer
  labctl report latest           show it again; --html FILE writes a page

'labctl --help' lists every command."""


def _is_new(args: list[str]) -> bool:
    """Return whether it is today's `domain show`, which takes no name of a tuning."""
    return args[:2] == ["domain", "show"] and not (args[2:] and args[2][:1] != "-")


class _Commands(Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute or "command")
        assert isinstance(command, click.Command)
        if COMPLETING in os.environ:
            from labctl.cli.help import offer_names

            offer_names(command)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        for old, name in _OLD_NAMES.items():
            if tuple(args[: len(old)]) == old and not _is_new(args):
                if not context.resilient_parsing:
                    _say(
                        f"'labctl {' '.join(old)}' is now 'labctl {' '.join(name)}'; the old name "
                        f"works until {_OLD_NAMES_END}",
                        None,
                    )
                args = [*name, *args[len(old) :]]
                break
        return super().resolve_command(context, args)

    def invoke(self, context: click.Context) -> Any:
        try:
            result = super().invoke(context)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # The reader of our output (head, less) has left: nothing is wrong. Caught here,
            # because click makes exit code 1 of it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.DONE

    def line(self, context: click.Context, name: str) -> str:
        return _COMMANDS[name][1]


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="labctl")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of images and working files (default: /var/lib/labctl for root).",
)
@click.option(
    "--lab",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Your lab folder (default: $LABCTL_LAB, or the current folder if 'labctl init' made it).",
)
@click.option("--debug", is_flag=True, help="Show a traceback on failure.")
@click.pass_context
def cli(context: click.Context, state_dir: Path | None, lab: Path | None, debug: bool) -> None:
    """Measure the real effect of each virtualization tuning on this host."""
    from labctl.base.paths import naming_lab

    context.obj = {"state_dir": state_dir, "debug": debug}
    context.with_resource(naming_lab(lab))
    if context.invoked_subcommand != "init":
        _tell_lab(context.invoked_subcommand or "")
    if context.invoked_subcommand != "host":
        _tell_pending(context)


def _tell_lab(command: str) -> None:
    """Say that a lab folder is not believed, and which of labctl's own files one shadows."""
    from labctl.base.paths import lab, shadowing

    try:
        found = lab()
    except UsageError:
        if command == "host":
            return  # What puts the host right reads no lab folder.
        raise
    if found.ignored:
        _say(found.ignored, None)
    if command in _READ_THE_LAB and (shadows := [str(path) for path in shadowing()]):
        more = len(shadows) - _MOST_NAMED
        named = [*shadows[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
        _say(f"{found.folder} replaces labctl's own {', '.join(named)}", None)


def _tell_pending(context: click.Context) -> None:
    """Say what labctl has changed on this host and not put back."""
    from labctl.cli.parts.common import state_paths

    places = state_paths(context)
    try:
        if places.journal.stat().st_size == 0:
            return
    except OSError:
        return
    if note := _pending_note(places.journal):
        _say(note, "'labctl host status' shows it, 'labctl host restore' restores it.")


def _pending_note(journal: Path) -> str:
    """Return a sentence about what is changed on this host and by nobody who lives; "" when
    nothing is."""
    # Every command comes here when something is: it has to be cheap to load.
    from labctl.host.settings.journal import Journal

    try:
        pending = Journal(journal).pending()
    except LabctlError:
        return ""  # who may not read it, or finds it broken, is told when it matters
    asked = list(dict.fromkeys(entry.kept for entry in pending if entry.kept))
    dead = sum(1 for entry in pending if entry.left_behind())
    said = []
    if asked:
        said.append(f"'labctl host tune {' '.join(asked)}' is active on this host")
    if dead:
        said.append(f"a killed labctl left {dead} of its settings changed")
    return "; ".join(said)


def main() -> None:
    """Run the `labctl` script; exit with the codes of labctl.base.errors."""

    prepare()
    _show_plugin_warnings()
    interpreter.take_no_matrix_threads()
    interpreter.check_memory_for_numpy()
    sys.exit(call(sys.argv[1:]))


def call(words: Sequence[str]) -> int:
    """Run a command of labctl, show how it failed, and return its exit code."""
    debug = "--debug" in words
    try:
        code = cli.main(list(words), prog_name="labctl", standalone_mode=False)
        return code if isinstance(code, int) else ExitCode.DONE
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else ExitCode.DONE
    except LabctlError as error:
        if debug:
            traceback.print_exc()
        _say(error.message, error.hint)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        is_bare = error.ctx.parent is None
        click.echo(_START if is_bare else error.format_message())
        return ExitCode.USAGE
    except click.ClickException as error:
        _say(*_in_our_words(error))
        return ExitCode.OPEN if error.exit_code == ExitCode.OPEN else ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort) as stopped:
        notes = getattr(stopped.__cause__ or stopped, "__notes__", ())  # click makes it an Abort
        _say("interrupted", "\n".join(notes) or None)
        return 128 + 2
    except Exception as error:
        _RESERVE.clear()
        try:
            return _failed(error, debug)
        except Exception as another:
            if not (isinstance(another, MemoryError) or interpreter.lacking_memory()):
                raise
            os.write(2, _NO_MEMORY)
            return ExitCode.HOST


def _failed(error: Exception, debug: bool) -> int:
    """Say why a command failed that did not say so itself; return its exit code."""
    if debug:
        traceback.print_exc()
    if wrong := _wrong_name(error):
        _say(wrong, "Give another name.")
        return ExitCode.USAGE
    # Under a low limit Python's own compiler fails with errors of any type.
    if (lacking := interpreter.lacking_memory()) or _lacks_memory(error):
        _say(f"{lacking or 'not enough memory'} ({type(error).__name__})", _MEMORY)
        return ExitCode.HOST
    if isinstance(error, OSError) and error.errno in _HOST_HINTS:
        _say(str(error), _HOST_HINTS[error.errno])
        return ExitCode.HOST
    _say(
        f"a fault in labctl: {type(error).__name__}: {error}",
        "Run it again with 'labctl --debug …' and report the output.",
    )
    return ExitCode.BROKE


def _show_plugin_warnings() -> None:
    """Print warnings about plug-ins as labctl's own sentences."""
    show = warnings.showwarning

    def shown(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, PluginWarning):
            _say(str(message), None)
        else:
            show(message, category, *place, **more)

    warnings.showwarning = shown


def _wrong_name(error: Exception) -> str | None:
    """Return a sentence about a file's name that the kernel refuses; None for another error."""
    if isinstance(error, RuntimeError) and str(error).startswith(_LOOP):
        return str(error)[:_MOST_OF_NAME]
    if isinstance(error, OSError) and error.errno in _OF_NAMES:
        return f"{str(error.filename)[:_MOST_OF_NAME]}: {error.strerror}"
    return None


def _lacks_memory(error: Exception) -> bool:
    """Return whether the kernel, or a limit, refused memory for values, threads or libraries."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, ImportError) and "failed to map segment" in str(error))
        or (isinstance(error, RuntimeError) and str(error) == "can't start new thread")
    )


def _in_our_words(error: click.ClickException) -> tuple[str, str | None]:
    """Return the sentence and the remedy for what Click found wrong with the command line."""
    said = error.format_message().rstrip(".")
    said = said[:1].lower() + said[1:]
    said = said.replace("valid integer range", "whole number").replace(
        "valid integer", "whole number"
    )
    context = getattr(error, "ctx", None)
    if context is None:
        return said, None
    remedy = f"'{context.command_path} --help' shows its usage."
    if isinstance(error, click.MissingParameter) and getattr(error.param, "metavar", "") == "RUN":
        remedy = f"'labctl run list' shows the runs; 'latest' is the newest. {remedy}"
    return said, remedy


def _say(message: str, hint: str | None) -> None:
    from labctl.base.wording import printable

    if len(message) > _MOST_SAID:
        message = f"{message[:_MOST_SAID]}… ({len(message)} characters)"
    with suppress(OSError):  # a full disk behind standard error must not change the exit code
        click.echo(f"labctl: {printable(message)}", err=True)
        if hint:
            click.echo(f"        {printable(hint)}", err=True)


if __name__ == "__main__":
    main()
