"""Write each picture of a page to a file: SVG that stands alone, for slides and papers.

A page's pictures share its style and its grid of panels. A file contains the style's rules, with
the light colours in place of variables, and is as wide as a slide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lxml import etree
from markupsafe import escape

from labctl.analysis.answer.view import View
from labctl.analysis.model import Judgement
from labctl.base import process
from labctl.base.errors import LabctlError, UsageError
from labctl.base.process import Deadline
from labctl.base.wording import counted, printable
from labctl.report.page import dots
from labctl.report.page.factor_pictures import heatmap, interaction
from labctl.report.page.overview import overviews
from labctl.report.page.pictures import PICTURES, Sight
from labctl.report.page.study_heatmaps import study_heatmaps
from labctl.report.templating import template
from labctl.store.jsonfile import check_folder, write_output
from labctl.store.run_folder import LoadedRun

WIDTH = 960
_EDGE, _GAP, _LINE = 24, 18, 19
_CHARACTER = 7.6
"""Width of a letter of a legend, at most."""
_COLUMNS = {"dots": 4, "curves": 2, "interaction": 2, "heatmap": 2, "courses": 2}
_MOST_NAMED = 40
"""Characters of each half of a file's name."""
_CONVERTER = "rsvg-convert"
"""Program that converts SVG to PNG (librsvg2-bin of Debian)."""
_ZOOM, _CONVERTING_S = 2, 60.0
_COMMANDS = re.compile(r"([MLHVCZmlhvcz])([^A-Za-z]*)")
_NUMBERS = re.compile(r"-?\d+(?:\.\d+)?")
_SVG = "http://www.w3.org/2000/svg"


@dataclass(frozen=True, slots=True)
class PictureFile:
    """Hold a picture: the file's `name` without its ending, and the SVG."""

    name: str
    svg: str


@dataclass(frozen=True, slots=True)
class _Plot:
    name: str
    heading: str
    kind: str
    plot: object


def picture_files(run: LoadedRun, judgement: Judgement) -> list[PictureFile]:
    """Return the pictures of a run in the order of its page."""
    view = View(run, judgement)
    under = [
        "labctl",
        f"run {run.name}",
        *([f"under {run.run.accelerator}"] if run.run.accelerator else []),
        counted(judgement.blocks, "block"),
    ]
    return [
        PictureFile(
            f"{number:02}-{plot.name}",
            _standalone(plot, ", ".join(under), view.baseline),
        )
        for number, plot in enumerate(_plots(view), start=1)
    ]


def write_pictures(
    run: LoadedRun, judgement: Judgement, folder: Path
) -> tuple[list[Path], str | None]:
    """Write the pictures as SVG and PNG into `folder`, which is created if missing.

    Returns the files, and the reason if there are no PNGs, else None. Raises UsageError if the
    folder can't be created or written to.
    """
    check_folder(folder)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write pictures: {folder} is not a folder")
    folder.mkdir(exist_ok=True)
    written: list[Path] = []
    why_no_png = None
    for picture in picture_files(run, judgement):
        svg = folder / f"{picture.name}.svg"
        write_output(svg, picture.svg.encode())
        written.append(svg)
        if why_no_png is None:
            try:
                written.append(_as_png(svg))
            except LabctlError as error:
                why_no_png = error.message
    return written, why_no_png


def _as_png(svg: Path) -> Path:
    png = svg.with_suffix(".png")
    argv = [_CONVERTER, "--zoom", str(_ZOOM), "--output", str(png.absolute()), str(svg.absolute())]
    process.run(argv, deadline=Deadline.after(_CONVERTING_S, f"drawing {png.name}"))
    return png


def _plots(view: View) -> Iterator[_Plot]:
    for number, overview in enumerate(overviews(view), start=1):
        heading = f"Primary comparisons against {view.baseline}"
        yield _Plot(f"overview-{number}", heading, "overview", overview)
    yield from _of_factors(view)
    invalid = dots.invalid_attempts(view)
    for place in view.places:
        sight = Sight(view=view, place=place, shown=view.tunings, invalid=invalid)
        for picture in PICTURES:
            for plot in picture.draw(sight):
                title = str(getattr(plot, "title", picture.title))
                where = _safe(f"{place.workload}-{place.condition}")
                name = f"{where}-{_safe(picture.title)}"
                if picture.template not in ("forest", "dots"):
                    own = str(getattr(plot, "name", getattr(plot, "heading", "")))
                    name = f"{where}-{_safe(own)}"
                yield _Plot(name, title, picture.template, plot)


def _of_factors(view: View) -> Iterator[_Plot]:
    factors = view.judgement.factors
    if factors is None:
        return
    for kind, plot in (
        ("interaction", interaction(factors)),
        ("heatmap", heatmap(factors)),
    ):
        if plot is not None:
            yield _Plot(f"factors-{kind}", plot.title, kind, plot)
    for one in study_heatmaps(view):
        yield _Plot(f"factors-{one.anchor}", one.title, "heatmap", one.plot)


def _safe(name: str) -> str:
    return re.sub(r"[^a-z0-9+]+", "-", name.casefold()).strip("-")[:_MOST_NAMED].strip("-")


def _standalone(plot: _Plot, under: str, baseline: str) -> str:
    drawn = template("picture.html.j2").render(kind=plot.kind, plot=plot.plot, baseline=baseline)
    parts = etree.fromstring(
        f'<div xmlns="{_SVG}">{drawn}</div>', etree.XMLParser(resolve_entities=False)
    )
    page = _Sheet(_COLUMNS.get(plot.kind, 1))
    page.heading(plot.heading)
    for part in parts:
        page.add(part)
    page.foot(under)
    wrapped = "overview" if plot.kind == "overview" else "panel" if page.has_panels else "plain"
    return (
        f'<svg xmlns="{_SVG}" width="{WIDTH}" height="{page.height}" '
        f'viewBox="0 0 {WIDTH} {page.height}" role="img">\n'
        f"<title>{escape(printable(plot.heading))}</title>\n"
        f"<style>{_style()}</style>\n"
        f'<rect class="paper" width="{WIDTH}" height="{page.height}"/>\n'
        f'<g class="{wrapped}">\n{page.text}\n</g>\n</svg>\n'
    )


class _Sheet:
    """Collect the parts of a picture from the top down."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._parts: list[str] = []
        self._y = _EDGE
        self.has_panels = False

    @property
    def text(self) -> str:
        return "\n".join(self._parts)

    @property
    def height(self) -> int:
        return self._y + _EDGE

    def heading(self, text: str) -> None:
        self._text(_EDGE, self._y + 14, text, "title")
        self._y += 34

    def foot(self, text: str) -> None:
        self._y += 20
        self._text(_EDGE, self._y, text, "foot")

    def add(self, part: etree._Element) -> None:
        kind = etree.QName(part).localname
        if kind == "svg":
            self._svg(part, _EDGE, self._y, WIDTH - 2 * _EDGE)
            self._y += _height(part)
        elif kind == "ul":
            self._legend(part)
        else:
            self._panels(list(part))

    def _text(self, x: float, y: float, text: str, kind: str) -> None:
        self._parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(printable(text))}</text>'
        )

    def _svg(self, part: etree._Element, x: float, y: float, width: float) -> None:
        for name, value in (("x", x), ("y", y), ("width", width)):
            part.set(name, f"{value:g}")
        part.tail = None
        _unstretch(part, width)
        self._parts.append(etree.tostring(part, encoding="unicode"))

    def _legend(self, items: Iterable[etree._Element]) -> None:
        x = float(_EDGE)
        for item in items:
            mark, text = item[0], _words(item)
            width = 26 + _CHARACTER * len(text)
            if x > _EDGE and x + width > WIDTH - _EDGE:
                x, self._y = float(_EDGE), self._y + _LINE
            of = (mark.get("class") or "").split()
            if of[0] == "line":
                self._parts.append(f'<path class="{" ".join(of)}" d="M{x:g} {self._y + 7}h16"/>')
            else:
                self._parts.append(
                    f'<rect class="{of[-1]}" x="{x:g}" y="{self._y}" width="14" height="14"/>'
                )
            self._text(x + 21, self._y + 12, text, "legend")
            x += width
        self._y += _LINE + 10

    def _panels(self, panels: list[etree._Element]) -> None:
        self.has_panels = True
        columns = min(self._columns, len(panels)) or 1
        width = (WIDTH - 2 * _EDGE - _GAP * (columns - 1)) / columns
        for first in range(0, len(panels), columns):
            tallest = 0
            for column, panel in enumerate(panels[first : first + columns]):
                x = _EDGE + column * (width + _GAP)
                said = panel.findall(f"{{{_SVG}}}p")
                names = [_words(one) for p in said for one in p if _words(one)]
                for line, text in enumerate(names):
                    kind = "legend" if line else "panel-name"
                    self._text(x, self._y + 13 + line * _LINE, text, kind)
                (inner,) = panel.findall(f"{{{_SVG}}}svg")
                self._svg(inner, x, self._y + 6 + len(names) * _LINE, width)
                tallest = max(tallest, 6 + len(names) * _LINE + _height(inner))
            self._y += tallest + _GAP


def _unstretch(part: etree._Element, width: float) -> None:
    """Draw the stretched part of a picture at its size in pixels: some programs stretch strokes
    too."""
    for inner in part.findall(f"{{{_SVG}}}svg"):
        own = width * float((inner.get("width") or "100%").rstrip("%")) / 100
        if inner.attrib.pop("viewBox", None) is None:
            _unstretch(inner, own)
            continue
        inner.attrib.pop("preserveAspectRatio", None)
        for path in inner.iter(f"{{{_SVG}}}path"):
            path.set("d", _wider(path.get("d") or "", own / 100))


def _wider(path: str, factor: float) -> str:
    """Return a path with its x coordinates multiplied. Supports the commands that pictures use."""
    out = []
    for command, numbers in _COMMANDS.findall(path):
        values = [float(value) for value in _NUMBERS.findall(numbers)]
        if command not in "Vv":
            step = 1 if command in "Hh" else 2
            values = [
                value * factor if at % step == 0 else value for at, value in enumerate(values)
            ]
        out.append(command + " ".join(f"{value:.2f}".rstrip("0").rstrip(".") for value in values))
    return "".join(out)


def _height(part: etree._Element) -> int:
    return int(float(part.get("height") or 0))


def _words(element: etree._Element) -> str:
    return " ".join(str(text) for text in element.itertext()).strip()


@cache
def _style() -> str:
    """Return the rules of pictures with the light colours in place of variables."""
    whole = template("style.css.j2").render()
    light = dict(re.findall(r"(--[\w-]+):\s*([^;]+);", whole.partition("@media")[0]))
    rules = re.sub(r"/\*.*?\*/", "", template("pictures.css.j2").render(), flags=re.DOTALL)
    rules += (
        "svg { overflow: visible; } svg rect.paper { fill: var(--paper); stroke: none; }"
        "svg text.title { font-size: 18px; font-weight: 700; } svg text.panel-name { font-weight: "
        "700; } svg text.legend { font-size: 13px; } svg text.foot { font-size: 12px; "
        "fill: var(--soft); }"
    )
    rules = re.sub(r"var\((--[\w-]+)\)", lambda name: light[name[1]], rules)
    # Drawing programs do not know CSS's generic names of interface fonts.
    return rules.replace("system-ui, sans-serif", "'DejaVu Sans', Arial, Helvetica, sans-serif")
