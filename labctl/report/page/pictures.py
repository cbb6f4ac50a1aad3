"""List the pictures of a workload and condition, a row each, in the order in which the page has
them.

The page loops over the rows; docs/report.md says by them how each is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from labctl.analysis.cells import Scenario
from labctl.analysis.view import View
from labctl.report.page.bitrates import bitrates
from labctl.report.page.curves import curves
from labctl.report.page.dots import Invalid, dots
from labctl.report.page.forest import forest
from labctl.report.page.stacks import exits, host_cpu, no_exits


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Hold what a picture is drawn from. `shown`: the arms that there is room for; `invalid`: the
    attempts that were thrown out, of the whole run."""

    view: View
    place: Scenario
    shown: Collection[str]
    invalid: Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Describe a picture. `shows`: how it is read. `draw` gives the values of each plot, () where
    there is nothing to draw; then `why_none` says why, or "" where the page leaves it out.
    `template`: templates/report/pictures/TEMPLATE.html.j2, which draws the plots. `is_titled`:
    whether the title stands above them, or each has a heading of its own. `leads`: whether it
    stands above what is said in words, and shows all arms."""

    title: str
    shows: str
    template: str
    draw: Callable[[Sight], Sequence[object]]
    why_none: Callable[[Sight], str] = lambda _: ""
    is_titled: bool = True
    leads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Hold a picture as the template takes it; `why_none` where it has no plots."""

    name: str
    heading: str
    template: str
    plots: Sequence[object]
    why_none: str

    @property
    def anchor(self) -> str:
        """Return what identifies the picture in its section."""
        return self.name.casefold().replace(",", "").replace(" ", "-")


def drawings(sight: Sight, *, leads: bool) -> Iterator[Drawing]:
    """Yield the pictures that there is something to say with."""
    for picture in PICTURES:
        if picture.leads is leads:
            plots = picture.draw(sight)
            why_none = "" if plots else picture.why_none(sight)
            if plots or why_none:
                yield Drawing(
                    name=picture.title,
                    heading=picture.title if picture.is_titled else "",
                    template=f"report/pictures/{picture.template}.html.j2",
                    plots=plots,
                    why_none=why_none,
                )


def _one(plot: object | None) -> Sequence[object]:
    return () if plot is None else (plot,)


PICTURES = (
    Picture(
        title="Change against baseline",
        shows="A row per tuning: the bar is the interval that decides, the large dot the "
        "estimate, small dots single blocks (above 200 blocks a line where nine in ten of "
        "them lie). The shaded strip is the noise floor, baseline measured against "
        "itself: the A/A control's interval. Between the dotted lines a change is "
        "too small to matter to the study. Native stands last, for reference, with an arrow"
        " where it is too far away to be drawn.",
        template="forest",
        draw=lambda at: _one(forest(at.view, at.place)),
        is_titled=False,
        leads=True,
    ),
    Picture(
        title="What it costs the host",
        shows="CPU seconds per second by thread: the vCPUs, QEMU's emulator threads, iothreads, "
        "vhost workers, and labctl itself. Natively it is the workload.",
        template="stacks",
        draw=lambda at: _one(host_cpu(at.view, at.place, at.shown)),
    ),
    Picture(
        title="Every trial, by block",
        shows="A panel per arm, guests on one scale and native arms on one of their own, blocks "
        "from left to right. × is an invalid trial, at its value or, without one, at the bottom. "
        "A dashed line says that another boot begins. Above 60 blocks neighbouring ones are "
        "joined: the dot is their median, the line their reach.",
        template="dots",
        draw=lambda at: _one(dots(at.view, at.place, at.invalid, at.shown)),
    ),
    Picture(
        title="Latency by percentile",
        shows="A panel per tuning, with baseline and its native twin. Samples of different trials"
        " are never pooled: each point is the median over the blocks of one trial's "
        "percentile, the band the middle half of the blocks. A percentile that some trial "
        "of an arm has too few samples for is in the table only. The largest latency stands"
        " apart at the right, and the caption says of how many trials, of what length, it "
        "is the largest.",
        template="curves",
        draw=lambda at: curves(at.view, at.place, at.shown),
        is_titled=False,
    ),
    Picture(
        title="Bitrate over time",
        shows="A stream that shares a link, and its competitor: a panel per arm. Each point is "
        "the mean over the blocks, the band the mean's 95 % interval at that moment. "
        "Dashed lines part the thirds: alone, with the competitor, alone again. Drawn from the "
        "trials' own records, which a run in an archive doesn't show.",
        template="courses",
        draw=lambda at: _one(bitrates(at.view, at.place, at.shown)),
    ),
    Picture(
        title="VM exits by reason",
        shows="Their number and (where the pictures have room for all arms) their time, per "
        "operation where that was measured, else per second. Where there are none, a "
        "sentence says why. Of a run on a host with an [exit price list](exit-prices.md) a "
        "table holds the loss that Σ exits × price predicts against the one that was "
        "measured.",
        template="exits",
        draw=lambda at: exits(at.view, at.place, at.shown),
        why_none=lambda at: no_exits(at.view, at.place),
    ),
)
