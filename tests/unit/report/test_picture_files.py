"""Pictures as files of their own: nothing of the page around them is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lxml import etree

from labctl.analysis.judge import judge
from labctl.base.errors import UsageError
from labctl.report.page.picture_files import PictureFile, _wider, picture_files, write_pictures
from labctl.store.run_folder import LoadedRun
from tests.unit.synthetic import WORKLOADS, synthetic_run

HOSTILE = "</svg><script>alert(1)</script>\"'../../etc\x1b[2J"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return synthetic_run(blocks=10)


@pytest.fixture(scope="module")
def files(run: LoadedRun) -> list[PictureFile]:
    return picture_files(run, judge(run))


def test_there_is_a_file_for_each_picture_with_a_name_that_says_which(
    files: list[PictureFile],
) -> None:
    names = [file.name for file in files]
    assert names[0] == "01-overview-1"
    assert "02-sysbench-cpu-neighbour-change-against-baseline" in names
    assert "03-sysbench-cpu-neighbour-host-cpu" in names
    assert len(set(names)) == len(names)


def test_each_is_whole_without_the_page(files: list[PictureFile]) -> None:
    for file in files:
        root = etree.fromstring(file.svg)
        assert root.tag == f"{SVG}svg"
        assert int(root.get("width") or 0) == 960
        assert root.findtext(f"{SVG}title")
        assert "var(" not in file.svg
        assert not re.search(r"href=|url\(|<script|@import|system-ui", file.svg)


def test_every_colour_of_a_picture_has_a_rule(files: list[PictureFile]) -> None:
    styled = set(re.findall(r"\.([a-z][\w-]*)", files[0].svg.split("</style>")[0]))
    for file in files:
        for line in etree.fromstring(file.svg).iter(f"{SVG}line", f"{SVG}rect", f"{SVG}path"):
            classes = set((line.get("class") or "").split())
            assert classes & styled, etree.tostring(line)


def test_nothing_lies_outside_of_the_sheet(files: list[PictureFile]) -> None:
    for file in files:
        root = etree.fromstring(file.svg)
        height = int(root.get("height") or 0)
        for inner in root.iter(f"{SVG}svg"):
            if inner is not root and inner.getparent().tag == f"{SVG}g":
                assert float(inner.get("x") or 0) + float(inner.get("width") or 0) <= 960
                assert float(inner.get("y") or 0) + float(inner.get("height") or 0) <= height


def test_a_slide_says_which_run_it_is_of_and_that_it_was_emulated() -> None:
    run = synthetic_run(blocks=10, accelerator="tcg")
    for file in picture_files(run, judge(run)):
        assert "run synthetic, under tcg, 10 blocks" in file.svg


def test_what_was_stretched_keeps_its_place() -> None:
    assert _wider("M10 5h0M50 7.5H100V2L20 3Z", 2.0) == "M20 5h0M100 7.5H200V2L40 3Z"


def test_names_of_a_run_make_no_path_and_no_markup(tmp_path: Path) -> None:
    run = synthetic_run(blocks=2, workloads={HOSTILE: WORKLOADS["sysbench-cpu"]})
    files = picture_files(run, judge(run))
    assert files
    for file in files:
        assert re.fullmatch(r"[0-9a-z][0-9a-z.+-]*", file.name)
        assert ".." not in file.name
        assert etree.fromstring(file.svg).findall(f".//{SVG}script") == []


def test_without_the_converter_the_svg_is_written_and_the_reason_is_said(
    run: LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    written, why = write_pictures(run, judge(run), tmp_path / "pictures")
    assert {file.suffix for file in written} == {".svg"}
    assert why is not None
    assert "rsvg-convert" in why


def test_a_file_is_no_folder(run: LoadedRun, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UsageError, match="not a folder"):
        write_pictures(run, judge(run), tmp_path / "taken")
    with pytest.raises(UsageError, match="there is no folder"):
        write_pictures(run, judge(run), tmp_path / "not" / "there")


def test_a_run_without_comparisons_has_no_pictures_of_them(tmp_path: Path) -> None:
    run = synthetic_run(blocks=3, tunings=["native"])
    assert [file for file in picture_files(run, judge(run)) if "overview" in file.name] == []
