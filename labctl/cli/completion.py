"""Run `labctl completion`, and complete the names of studies, tunings, workloads and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

if TYPE_CHECKING:
    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that completes labctl's commands, options and names in SHELL.

    For bash: labctl completion bash > /etc/bash_completion.d/labctl
    """
    made = get_completion_class(shell)
    assert made is not None
    script = made(click.Group("labctl"), {}, "labctl", "_LABCTL_COMPLETE")
    # Click's source() asks which bash is installed; the script itself needs no such question.
    click.echo(script.source_template % script.source_vars())


def _completing(names: Callable[[click.Context], Iterable[str]]) -> Completer:
    """Return a completer of these names, or of a file's when the word looks like a path."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if "/" in incomplete or incomplete.startswith("."):
            return [CompletionItem(incomplete, type="file")]
        try:
            found = list(names(context))
        except Exception:
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]

    return complete


def _studies(_: click.Context) -> list[str]:
    from labctl.study.studies import study_names

    return study_names()


def _tunings(_: click.Context) -> list[str]:
    from labctl.study.tunings import tuning_names

    return tuning_names()


def _workloads(_: click.Context) -> list[str]:
    from labctl.base.paths import data_files

    return list(data_files("benchmarks/workloads"))


def _runs(context: click.Context) -> list[str]:
    from labctl.base.paths import results_folder
    from labctl.cli.common import state_paths
    from labctl.store.run_places import LATEST, all_runs

    place = context.params.get("results") or results_folder(state_paths(context))
    return [LATEST, *(folder.name for folder in all_runs(place))]


complete_studies = _completing(_studies)
complete_tunings = _completing(_tunings)
complete_workloads = _completing(_workloads)
complete_runs = _completing(_runs)
