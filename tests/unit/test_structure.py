"""How much of labctl one of its files knows, and that its name says what is inside."""

from __future__ import annotations

from tools.structure import MOST_IMPORTS, imports, many_imports, same_names


def test_no_module_imports_more_than_the_most() -> None:
    assert many_imports() == {}


def test_no_three_files_have_one_name() -> None:
    assert {name for name, modules in same_names().items() if len(modules) > 2} == set()


def test_imports_inside_functions_count() -> None:
    assert len(imports()["labctl.cli.sweep"]) > MOST_IMPORTS // 2
    assert "labctl.run.commands.sweep" in imports()["labctl.cli.sweep"]
