"""The website of `make site`: README's table of pages is its menu, and names every page once."""

from __future__ import annotations

import re
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tools.browser import chromium

ROOT = Path(__file__).parents[2]
UNREACHABLE = """[...document.querySelectorAll("pre, .table-wrapper")].filter(
    one => one.scrollWidth > one.clientWidth && one.tabIndex < 0).length"""
PARTS = ["Start", "How to", "Reference", "Explanation"]


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    spec = spec_from_file_location("conf", ROOT / "docs" / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_has_one_place_in_the_menu(conf: ModuleType) -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    names = [str(page.relative_to(ROOT).with_suffix("")) for page in pages]
    assert Counter(conf.below("README")) == Counter(names)


def test_the_menu_has_four_parts(conf: ModuleType) -> None:
    assert [part for part, _ in conf.menu("README")] == PARTS


def test_anchors_and_reports_become_what_the_site_can_link(conf: ModuleType) -> None:
    source = ['<a id="here"></a>**Here.** See [a run](results/example.html).']
    conf.read(None, "docs/page", source)
    assert source == ['(here)=\n**Here.** See <a href="results/example.html">a run</a>.']


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="only 'make site' installs Sphinx")
    from sphinx.cmd.build import build_main

    out = tmp_path_factory.mktemp("site")
    trees = tmp_path_factory.mktemp("trees")
    options = ["-n", "-W", "--keep-going", "-q", "-c", str(ROOT / "docs"), "-d", str(trees)]
    assert build_main([*options, "-b", "html", str(ROOT), str(out)]) == 0
    return out


def test_its_lists_for_programs_lead_to_pages(site: Path, conf: ModuleType) -> None:
    listed = (site / "llms.txt").read_text()
    links = re.findall(r"^- \[.*?\]\((.*?)\): [\w`].*\.$", listed, re.MULTILINE)
    assert len(links) == listed.count("\n- ")
    assert [link for link in links if not (site / link).is_file()] == []
    full = (site / "llms-full.txt").read_text()
    assert full.count("<!-- ") >= len(list(conf.below("README")))


def test_each_folder_opens_with_its_index(site: Path) -> None:
    for folder in (".", "docs/decisions", "docs/lessons"):
        assert (site / folder / "index.html").read_text().count("<h1") == 1


def test_options_come_from_the_commands(site: Path) -> None:
    text = (site / "docs/options.html").read_text()
    assert 'id="labctl-fleet-rollout"' in text
    assert "--until-width" in text


def test_pages_fit_both_screens_and_describe_their_pictures(site: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        for page in ("index.html", "docs/options.html", "docs/metrics.html", "docs/report.html"):
            for width in (390, 1400):
                browser.open(site / page, width=width)
                assert browser.evaluate("document.documentElement.scrollWidth") <= width, page
                assert browser.evaluate(UNREACHABLE) == 0, page
            assert browser.evaluate("[...document.images].filter(one => !one.alt).length") == 0, (
                page
            )
