"""Pack lessons, pages and recorded runs for a room without network (`make lessons`)."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

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
    ":root{color-scheme:light dark}"
)

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


@click.command()
@click.option(
    "--to", default=TARGET, type=click.Path(path_type=Path, dir_okay=False), help="The archive."
)
def main(to: Path) -> None:
    """Pack lessons, pages and recorded runs into one archive."""
    with tarfile.open(to, "w:xz") as archive:
        for name, content in files():
            entry = tarfile.TarInfo(f"labctl-lessons/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    click.echo(f"Wrote {to}")


if __name__ == "__main__":
    main()
