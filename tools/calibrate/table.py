"""A table of simulated rates, and who simulates for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tools.calibrate.rates import Rate

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`broken`: promises that these numbers don't keep, a sentence each. `values`: the rates that
    the cells show, by their coordinates."""

    title: str
    text: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    broken: Sequence[str] = ()
    values: Sequence[dict[str, Any]] = field(default_factory=list)

    @property
    def markdown(self) -> str:
        lines = [
            f"### {self.title}",
            "",
            self.text,
            "",
            _row(self.header),
            _row(["---", *["---:"] * (len(self.header) - 1)]),
            *map(_row, self.rows),
            "",
            *(f"- {note}" for note in self.notes),
        ]
        return "\n".join(lines).rstrip()

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "values": list(self.values), "broken": list(self.broken)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulations:
    """Say how many runs are simulated for most numbers, from which seed, and by whom: each number
    is one call, and no call depends on another."""

    runs: int
    seed: int
    executor: Executor
    tell: Callable[[str], None]

    def of(
        self, what: str, call: Callable[..., Found], of: Sequence[tuple[Any, ...]]
    ) -> list[Found]:
        """Return what the calls return, in the order of their arguments."""
        found = []
        for result in self.executor.map(call, *zip(*of, strict=True)):
            found.append(result)
            self.tell(f"{what}: {len(found)} of {len(of)}")
        return found


def exception(why: str | None) -> str:
    return f" An exception: {why}." if why else ""


def percent(rate: Rate) -> str:
    return f"{100 * rate.share:.1f}" if rate.n else "none"


def shown(value: float) -> str:
    return f"{100 * value:g} %"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
