"""Define options for runs that may end early, and the judge that such a run asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.base.errors import UsageError
from labctl.base.quantities import PERCENT, TIME, Kind

if TYPE_CHECKING:
    from labctl.base.stopping import Stopping
    from labctl.store.run_folder import RunFolder


def rule_asked_for(
    width: str | None, most_blocks: int | None, at: str | None, blocks: int | None
) -> Stopping | None:
    """Return the rule that --until-width, --max-blocks and --looks make; None without them.

    Raises UsageError for a rule that can't be, and for two things at once.
    """
    from labctl.base.stopping import CAP, looks, until_width

    given = {"--until-width": width, "--looks": at, "--blocks": blocks}
    said = [option for option, value in given.items() if value is not None]
    if len(said) > 1:
        raise UsageError(
            f"{' and '.join(said)} each say when the run ends",
            hint="Give one of them: a width, looks, or a fixed number of blocks.",
        )
    if most_blocks is not None and width is None:
        raise UsageError(
            "--max-blocks is the cap of a run until a width",
            hint="Name the width, such as '--until-width 2%'; --blocks is a fixed number.",
        )
    if width is not None:
        return until_width(
            _read(PERCENT, width, "--until-width") / 100,
            CAP if most_blocks is None else most_blocks,
        )
    return None if at is None else looks(_numbers(at))


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of a time such as "90", "90s", "10m" or "1h"; raises UsageError."""
    seconds = _read(TIME, text, option)
    if seconds < 0:
        raise UsageError(f"{option}: expected a time from 0 on, got '{text}'")
    return seconds


def _read(kind: Kind, text: str, option: str) -> float:
    try:
        return kind.read(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"--looks is '{text}': it takes numbers of blocks", hint="Give, for example, 10,15,20."
        ) from error


def why_end(folder: RunFolder, blocks: int) -> str | None:
    """Return why a run ends after so many whole blocks by its plan's rule; None: it goes on."""
    from labctl.analysis.decide import decide
    from labctl.analysis.stopping import stop_after, until

    run = folder.load()
    rule = run.plan.rule
    stop = rule and stop_after(decide(until(run, blocks)), rule, blocks)
    return stop.why if stop else None
