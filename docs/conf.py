"""Sphinx's settings for `make site`. The table of pages in README is the site's menu."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "labctl"
extensions = ["myst_parser", "sphinx_click"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = [".*", "labctl", "results", "tests"]
myst_heading_anchors = 4
smartquotes = False
html_theme = "furo"
html_title = "labctl"
html_show_copyright = html_show_sphinx = False

REACHABLE = """
addEventListener("load", () => {
  for (const menu of document.querySelectorAll(".caption[role=heading]")) menu.ariaLevel = 2;
  for (const box of document.querySelectorAll("pre, .table-wrapper"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
});
"""
"""What the theme leaves out: levels of the menu's headings, and keyboard access to what scrolls."""


def menu(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of a page's menu, each with the names of its pages: of README its table of
    pages, of another index the pages of its folder that it links."""
    if name == root_doc:
        table = _text(name).partition("\n## Pages\n")[2]
        for part, cell in re.findall(r"^\| (\w[\w ]+) \| (\[.*) \|$", table, re.MULTILINE):
            yield part, _linked(cell, "")
    elif name.endswith("/README"):
        yield "", _linked(_text(name), name.removesuffix("README"))


def _text(name: str) -> str:
    return (ROOT / f"{name}.md").read_text(encoding="utf-8")


def _linked(text: str, folder: str) -> list[str]:
    return list(dict.fromkeys(folder + name for name in re.findall(r"\]\(([\w/-]+)\.md\)", text)))


def read(_app: Sphinx, name: str, source: list[str]) -> None:
    """Turn what a forge shows into what MyST reads."""
    text = re.sub(r'^<a id="([\w-]+)"></a>', r"(\1)=\n", source[0], flags=re.MULTILINE)
    # Reports open in the browser; MyST would have them downloaded.
    text = re.sub(r"\[([^]]+)\]\((results/[\w-]+\.html)\)", r'<a href="\2">\1</a>', text)
    if name == root_doc:
        text += "\nAlso here: <a href='everything.html'>everything on one page</a>"
        text += " and <a href='llms.txt'>llms.txt</a>.\n"
    for part, pages in menu(name):
        options = f":hidden:\n:caption: {part}" if part else ":hidden:"
        text += (
            "\n```{toctree}\n" + "\n".join([options, "", *(f"/{one}" for one in pages)]) + "\n```\n"
        )
    source[0] = text


def finish(app: Sphinx, error: Exception | None) -> None:
    """Add an index.html to each folder, the reports that pages link, llms.txt and llms-full.txt."""
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    for readme in out.rglob("README.html"):
        shutil.copy(readme, readme.with_name("index.html"))
    shutil.copytree(ROOT / "results", out / "results", ignore=shutil.ignore_patterns("*.xz"))
    (out / "llms.txt").write_text("".join(short_list(app)), encoding="utf-8")
    texts = (f"<!-- {name}.md -->\n\n{_text(name)}" for name in below(root_doc))
    (out / "llms-full.txt").write_text("\n".join(texts), encoding="utf-8")


def short_list(app: Sphinx) -> Iterator[str]:
    """Yield llms.txt (https://llmstxt.org): each page with its first sentence."""
    yield f"# labctl\n\n> {_opening(root_doc)}\n"
    for part, pages in menu(root_doc):
        yield f"\n## {part}\n\n"
        for name in pages:
            # A page that is made from the code has nothing in its source.
            url = f"{name}.html" if ".. click::" in _text(name) else f"_sources/{name}.md.txt"
            yield f"- [{app.env.titles[name].astext()}]({url}): {_opening(name)}\n"


def below(name: str) -> Iterator[str]:
    """Yield a page and the pages of its menu, in the menu's order."""
    yield name
    for _, pages in menu(name):
        for page in pages:
            yield from below(page)


def _opening(name: str) -> str:
    _, first, *_ = re.split(r"\n\n+", _text(name).strip())
    return re.sub(r"\]\([^)]*\)|[*[]", "", first.split(". ")[0].rstrip(".") + ".").replace(
        "\n", " "
    )


def setup(app: Sphinx) -> None:
    """Have Sphinx call what is above."""
    app.add_js_file(None, body=REACHABLE)
    app.connect("source-read", read)
    app.connect("build-finished", finish)
