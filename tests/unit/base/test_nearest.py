from __future__ import annotations

from labctl.base.errors import nearest


def test_the_nearest_name_is_offered_with_all_that_is_allowed() -> None:
    assert nearest("pined", ["pinned", "native"]) == (
        "Did you mean 'pinned'? Allowed: native, pinned."
    )


def test_no_name_is_offered_when_none_is_near() -> None:
    assert nearest("xyz", ["pinned"]) == "Allowed: pinned."
    assert nearest("xyz", []) == "There are none."
