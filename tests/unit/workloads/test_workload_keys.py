"""docs/workload-keys.md has every key of a workload's file, as its models take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.json import texts_of
from labctl.base.yaml import FileModel
from labctl.workloads.declarations import OWN_VARIABLES
from tools.workload_keys import PARTS, VARIABLES, page

TEXT = (Path(__file__).parents[3] / "docs" / "workload-keys.md").read_text()


def test_the_page_is_the_one_that_the_models_make() -> None:
    assert page() == TEXT, "run: make docs"


def test_every_variable_is_explained() -> None:
    assert VARIABLES.keys() == OWN_VARIABLES


@pytest.mark.parametrize("model", [model for _, model in PARTS])
def test_every_key_has_a_text(model: type[FileModel]) -> None:
    texts = texts_of(model)
    assert [key for key in model.model_fields if not texts.get(key)] == []
