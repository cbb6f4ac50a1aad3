"""Options that every test folder shares."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.lanes import Lane, alone_first

# The same examples each time, and no clock: a failure is the change's doing. To search further:
# pytest --hypothesis-profile=search
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("fixed")


def pytest_configure() -> None:
    """A shell ignores SIGINT in what it starts in the background, and whatever the tests start
    would inherit that; a shell can't even trap what was ignored when it began."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Lab folders that a group can write to are not believed, and some umasks would make them so.
    os.umask(0o022)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    alone_first(items)


_lane = Lane()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    _lane.before(item)
    try:
        return (yield)
    finally:
        _lane.after(item, nextitem)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate-golden",
        action="store_true",
        help="Write the files in tests/golden anew instead of comparing with them.",
    )


@pytest.fixture
def regenerate_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--regenerate-golden"))
