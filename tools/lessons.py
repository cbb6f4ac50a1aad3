"""Pack lessons, pages and recorded runs for a room without network (`make lessons`), or print each
lesson on one sheet (`make handouts`)."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from markdown_it import MarkdownIt

from labctl.analysis.judge import judge
from labctl.base.paths import RUN_ARCHIVE
from labctl.cli.lesson import ANSWERS
from labctl.report.page.report_page import write_page
from labctl.store.run_folder import PAGE, RunFolder
from labctl.store.run_places import all_runs

ROOT = Path(__file__).parents[1]
LESSONS = ROOT / "docs" / "lessons"
RUNS = ROOT / "results"
TARGET = ROOT / "lessons.tar.xz"

_STYLE = (
    "body{max-width:44em;margin:2em auto;padding:0 1em;font:1rem/1.5 sans-serif}"
    "pre{background:#8882;padding:.6em;overflow-x:auto}table{border-collapse:collapse}"
    "td,th{padding:.2em .8em .2em 0;text-align:left;vertical-align:top}"
    "img{max-width:100%}:root{color-scheme:light dark}"
    "@media print{@page{size:A4;margin:9mm}:root{color-scheme:light}"
    "body{max-width:none;margin:0;padding:0;columns:2;font-size:7.6pt;line-height:1.3}"
    "h1{font-size:13pt;margin:0 0 .4em}h2{font-size:9.5pt;margin:.7em 0 .2em}"
    "p,ol,ul,table,pre{margin:.35em 0}pre{padding:.3em;white-space:pre-wrap;font-size:6.8pt}}"
)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT_S = 120

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_PAGE_LINK = re.compile(r"\[([^]]*)\]\(\.\./[^)]*\)")
"""A link to a page of the docs, which the archive does not hold."""


def page(text: str) -> str:
    """Return a page of Markdown as HTML; its links to other lessons lead to their pages."""
    found = re.search(r"^# (.*)$", text, re.MULTILINE)
    title = escape(found.group(1)) if found else "Lesson"
    linked = re.sub(r"\]\(([\w-]+)\.md\)", r"](\1.html)", _COMMENT.sub("", text))
    linked = _PAGE_LINK.sub(r"\1", linked)
    body = MarkdownIt("commonmark").enable("table").render(linked)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>{body}</body></html>\n"
    )


def students_text(text: str) -> str:
    """Return the index without what only teachers get."""
    return text.replace(" The archive does not contain the [answers](answers.md).", "")


def runs() -> list[RunFolder]:
    """Return the recorded runs."""
    return [run for run in all_runs(RUNS) if run.archive is not None]


def files() -> Iterator[tuple[str, bytes]]:
    """Yield each file of the archive, by its name there."""
    for path in sorted(LESSONS.glob("*.md")):
        if path.name == ANSWERS:
            continue
        text = students_text(path.read_text(encoding="utf-8"))
        name = "index" if path.stem == "README" else path.stem
        yield f"{name}.html", page(text.replace("README.md", "index.md")).encode()
    for path in sorted((LESSONS / "pictures").iterdir()):
        yield f"pictures/{path.name}", path.read_bytes()
    for folder in runs():
        yield f"runs/{folder.name}{RUN_ARCHIVE}", folder.path.read_bytes()
        run = folder.load()
        with folder.unpacked("xml") as unpacked:
            written = write_page(run, judge(run), unpacked.path, unpacked.path / PAGE)
            yield f"pages/{folder.name}.html", written.read_bytes()


def print_handouts(folder: Path) -> list[Path]:
    """Print each lesson into a folder as PDF, with a browser; returns the files. Raises
    ClickException without a browser."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise click.ClickException(f"hand-outs need a browser: install {_BROWSERS[0]}")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with TemporaryDirectory() as scratch:
        shutil.copytree(LESSONS / "pictures", Path(scratch) / "pictures")
        for path in sorted(LESSONS.glob("[0-9]-*.md")):
            source = Path(scratch) / f"{path.stem}.html"
            source.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
            target = (folder / f"{path.stem}.pdf").resolve()
            words = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
            subprocess.run(
                [browser, *words, f"--print-to-pdf={target}", source.as_uri()],
                check=True,
                capture_output=True,
                timeout=_TIMEOUT_S,
            )
            written.append(target)
    return written


@click.command()
@click.option(
    "--to", default=TARGET, type=click.Path(path_type=Path, dir_okay=False), help="The archive."
)
@click.option(
    "--handouts",
    type=click.Path(path_type=Path, file_okay=False),
    help="Print each lesson into this folder instead.",
)
def main(to: Path, handouts: Path | None) -> None:
    """Pack lessons, pages and recorded runs into one archive, or print hand-outs."""
    if handouts is not None:
        for path in print_handouts(handouts):
            click.echo(f"Wrote {path}")
        return
    with tarfile.open(to, "w:xz") as archive:
        for name, content in files():
            entry = tarfile.TarInfo(f"labctl-lessons/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    click.echo(f"Wrote {to}")


if __name__ == "__main__":
    main()
