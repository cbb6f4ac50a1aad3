"""docs/studies.md has every key of a study's file, as its models take it."""

from __future__ import annotations

from pathlib import Path

from labctl.study.studyfile import QuickFile, StudyFile, WorkloadFile
from tools.study_keys import page

TEXT = (Path(__file__).parents[3] / "docs" / "studies.md").read_text()


def test_the_page_is_the_one_that_the_models_make() -> None:
    assert page() == TEXT, "run: make docs"


def test_every_key_has_its_line() -> None:
    for model in (StudyFile, WorkloadFile, QuickFile):
        for key in model.model_fields:
            assert f"`{key}`" in TEXT
