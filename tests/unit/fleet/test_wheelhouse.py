"""Which packages a wheelhouse gets."""

from __future__ import annotations

from labctl.fleet.wheelhouse import pinned


def test_of_a_package_that_is_not_installed_nothing_is_pinned() -> None:
    assert pinned("no-such-package") == {}


def test_a_root_that_is_written_otherwise_is_none_of_its_own_needs() -> None:
    assert "import-linter" not in pinned("import_linter")
