"""What a browser makes of a time line's page: it draws, zooms, moves, tells and jumps, on a phone
and on a wide screen, in the dark, on paper, and without its script."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.report.timeline.timeline_page import page, spans_of
from labctl.trace.timeline.lanes import Timeline
from tests.unit.report.test_browser import PAPER_PX, check
from tests.unit.report.test_timeline import ABOUT, HOSTILE, MS, late, small
from tools.bench.timelines import made_up
from tools.browser import Browser

_PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def few(folder: Path) -> Path:
    """20 ms that are known in full."""
    return written(folder / "few.html", small())


@pytest.fixture(scope="module")
def many(folder: Path) -> Path:
    """Two seconds, 130,000 spans."""
    return written(folder / "many.html", made_up(seconds=2))


@pytest.fixture(scope="module")
def hostile(folder: Path) -> Path:
    base = small()
    lanes = tuple(replace(one, details=tuple(HOSTILE for _ in one.details)) for one in base.lanes)
    lates = tuple(replace(one, task=HOSTILE, culprit=HOSTILE) for one in base.late)
    return written(folder / "hostile.html", replace(base, lanes=lanes, late=lates))


def written(file: Path, timeline: Timeline) -> Path:
    file.write_text(page(timeline, ABOUT), encoding="utf-8")
    return file


def until(browser: Browser, script: str) -> None:
    ends = time.monotonic() + _PATIENCE_S
    while not browser.evaluate(script):
        assert time.monotonic() < ends, f"never came: {script}"
        time.sleep(0.05)


def opened(browser: Browser, file: Path, *, width: int = 1440, **how: Any) -> None:
    browser.open(file, width=width, **how)
    until(browser, "document.getElementById('frame').dataset.drawn === 'yes'")


def view(browser: Browser) -> tuple[float, float]:
    """What is shown, in milliseconds, once it is drawn."""
    browser.call(
        "Runtime.evaluate",
        expression="new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(d)))",
        awaitPromise=True,
    )
    found: list[float] = browser.evaluate(
        "['from', 'to'].map((end) => Number(document.getElementById('frame').dataset[end]) / 1e6)"
    )
    return found[0], found[1]


def focus(browser: Browser) -> None:
    browser.evaluate("document.getElementById('picture').focus()")


def text(browser: Browser, name: str) -> str:
    found: str = browser.evaluate(f"document.getElementById('{name}').innerText")
    return found


def mouse(browser: Browser, kind: str, x: float, y: float, **more: Any) -> None:
    """At a place of the picture: a share of its width, and pixels below its top."""
    left, top, width = browser.evaluate(
        "(() => { const b = document.getElementById('picture').getBoundingClientRect(); "
        "return [b.left, b.top, b.width]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type=kind, x=left + x * width, y=top + y, **more)


def see(browser: Browser) -> None:
    browser.evaluate("document.getElementById('frame').scrollIntoView({block: 'center'})")


@pytest.mark.parametrize("which", ["few", "many", "hostile"])
@pytest.mark.parametrize("width", [360, 1440])
def test_the_page_fits_is_silent_and_readable(
    browser: Browser, request: pytest.FixtureRequest, which: str, width: int
) -> None:
    opened(browser, request.getfixturevalue(which), width=width)
    for dark in (False, True):
        browser.show(dark=dark)
        assert check(browser, "tooFaint", 4.5) == []
    assert check(browser, "tooWide") == []
    assert check(browser, "unreachable") == []
    assert browser.trouble == []
    assert browser.evaluate("document.title").startswith("Timeline of trial 12")


def test_keys_zoom_move_and_go_home(browser: Browser, many: Path) -> None:
    opened(browser, many)
    focus(browser)
    assert view(browser) == (0, 2000)
    browser.press("+")
    assert view(browser) == (500, 1500)
    assert "500 to 1500 ms" in text(browser, "range")
    browser.press("ArrowRight")
    assert view(browser) == (700, 1700)
    browser.press("ArrowLeft")
    browser.press("-")
    assert view(browser) == (0, 2000)
    browser.press("+")
    browser.press("Home")
    assert view(browser) == (0, 2000)


def test_the_view_never_leaves_the_window(browser: Browser, many: Path) -> None:
    opened(browser, many)
    focus(browser)
    for _ in range(40):
        browser.press("+")
    low, high = view(browser)
    assert high - low == pytest.approx(0.0002, abs=1e-6)
    browser.press("Home")
    for key in ("+", *["ArrowRight"] * 20):
        browser.press(key)
    assert view(browser) == (1000, 2000)


def test_buttons_do_what_keys_do(browser: Browser, many: Path) -> None:
    opened(browser, many)
    browser.evaluate("document.querySelector('button[data-key=\"+\"] span').click()")
    assert view(browser) == (500, 1500)
    browser.evaluate("document.querySelector('button[data-key=\"Home\"]').click()")
    assert view(browser) == (0, 2000)


def test_the_wheel_zooms_where_it_points_once_the_pointer_moved(
    browser: Browser, many: Path
) -> None:
    opened(browser, many)
    see(browser)
    mouse(browser, "mouseMoved", 0.2, 60)
    mouse(browser, "mouseMoved", 0.25, 60)
    mouse(browser, "mouseWheel", 0.25, 60, deltaX=0, deltaY=-100)
    low, high = view(browser)
    assert high - low < 1500
    assert low + (high - low) / 4 == pytest.approx(500, abs=5)


def test_a_drag_moves(browser: Browser, many: Path) -> None:
    opened(browser, many)
    see(browser)
    focus(browser)
    browser.press("+")
    mouse(browser, "mousePressed", 0.6, 60, button="left", buttons=1)
    mouse(browser, "mouseMoved", 0.4, 60, button="left", buttons=1)
    mouse(browser, "mouseReleased", 0.4, 60, button="left")
    low, high = view(browser)
    assert (low, high) == pytest.approx((700, 1700), abs=5)


def row(browser: Browser, number: int) -> float:
    """The middle of a lane of a picture of one vCPU, in pixels below its top: axis, then a title
    and a lane each."""
    return 30 + number * 50 + 20 + 15


def test_pointing_tells_state_detail_time_and_clock_error(browser: Browser, few: Path) -> None:
    opened(browser, few)
    see(browser)
    mouse(browser, "mouseMoved", 6 / 20, row(browser, 0))
    assert text(browser, "tip").splitlines() == [
        "vCPU 0, on its host",
        "waiting for a CPU: stress-ng",
        "from 4.000000 ms, for 5.00 ms",
    ]
    mouse(browser, "mouseMoved", 6 / 20, row(browser, 1))
    assert text(browser, "tip").splitlines() == [
        "CPU 0, inside the guest",
        "running the measured task: cyclictest",
        "from 0.000000 ms, for 10.0 ms",
        "by the guest's clock, ± 35.0 µs",
    ]
    mouse(browser, "mouseMoved", 11 / 20, row(browser, 0))
    assert text(browser, "tip").splitlines() == ["77 lost events", "nothing is known here"]
    # The guest's recorder lost nothing there.
    mouse(browser, "mouseMoved", 11 / 20, row(browser, 1))
    assert "running a task: kworker/0:1" in text(browser, "tip").splitlines()


def test_a_place_of_many_spans_tells_their_shares(browser: Browser, many: Path) -> None:
    opened(browser, many)
    see(browser)
    mouse(browser, "mouseMoved", 0.5, row(browser, 0))
    said = text(browser, "tip")
    assert "spans in 1" in said
    assert "% halted" in said
    assert "% running the guest" in said


def test_keys_step_through_the_spans_of_a_lane(browser: Browser, few: Path) -> None:
    opened(browser, few)
    focus(browser)
    browser.press("ArrowDown")
    browser.press(",")
    assert "handling an exit: MSR_WRITE" in text(browser, "status")
    browser.press(",")
    assert "waiting for a CPU: stress-ng, from 4.000000 ms" in text(browser, "status")
    assert "waiting for a CPU: stress-ng" in text(browser, "tip")
    browser.press("ArrowDown")
    assert "inside the guest" in text(browser, "status")
    browser.press("Escape")
    assert browser.evaluate("document.getElementById('tip').hidden")


def test_n_and_p_go_from_mark_to_mark_and_say_the_split(browser: Browser, few: Path) -> None:
    opened(browser, few)
    focus(browser)
    browser.press("n")
    low, high = view(browser)
    assert low < 15 < 16 < high <= 20
    assert "due at 15.000 ms, came 1.00 ms late" in text(browser, "status")
    browser.press("p")
    browser.press("p")
    assert "3 of 3" not in text(browser, "status")
    assert "80 % waiting for a host CPU, 20 % for other reasons" in text(browser, "status")
    assert "stress-ng (host) had the CPU for the longest of it" in text(browser, "status")


def test_a_row_of_the_table_leads_into_the_picture(browser: Browser, many: Path) -> None:
    opened(browser, many)
    browser.evaluate("document.querySelector('#late-0 a').click()")
    low, high = view(browser)
    due = browser.evaluate(
        "JSON.parse(document.getElementById('facts').textContent).late[0].at / 1e6"
    )
    assert low < due < high < low + 10
    assert browser.evaluate("document.activeElement.id") == "picture"
    assert browser.evaluate("location.hash") == "#late-0"


def test_a_link_to_a_mark_opens_the_page_there(browser: Browser, many: Path) -> None:
    opened(browser, many)
    browser.evaluate("location.hash = '#suspect-0'")
    until(browser, "document.getElementById('status').textContent !== ''")
    assert "double scheduling" in text(browser, "status")


def colours(browser: Browser, number: int, x: float) -> list[int]:
    """Of a lane's lower left pixel at a share of the width: red, green, blue."""
    found: list[int] = browser.evaluate(
        "(() => { const c = document.getElementById('picture'); "
        f"const d = c.getContext('2d').getImageData(Math.round({x} * c.width), "
        f"{row(browser, number) + 10}, 1, 1).data; return [d[0], d[1], d[2]]; }})()"
    )
    return found


def test_lanes_are_drawn_as_their_states_are(browser: Browser, few: Path) -> None:
    opened(browser, few)
    light = colours(browser, 0, 2 / 20)
    assert light == [0x1F, 0x5F, 0xA8]  # running the guest: --c0
    assert colours(browser, 1, 2 / 20) == [0x0B, 0x6E, 0x4F]  # the measured task: --c2
    assert colours(browser, 0, 16 / 20) == [0xF4, 0xF6, 0xF8]  # halted: nothing on the panel
    browser.show(dark=True)
    until(browser, "matchMedia('(prefers-color-scheme: dark)').matches")
    view(browser)
    assert colours(browser, 0, 2 / 20) == [0x7D, 0xB6, 0xF5]


def test_two_fingers_pinch(browser: Browser, many: Path) -> None:
    opened(browser, many)
    see(browser)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    try:
        left, top, width = browser.evaluate(
            "(() => { const b = document.getElementById('picture').getBoundingClientRect(); "
            "return [b.left, b.top, b.width]; })()"
        )

        def touch(kind: str, *places: float) -> None:
            points = [
                {"x": left + place * width, "y": top + 60, "id": number}
                for number, place in enumerate(places)
            ]
            browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

        touch("touchStart", 0.45, 0.55)
        touch("touchMove", 0.4, 0.6)
        touch("touchMove", 0.3, 0.7)
        touch("touchEnd")
    finally:
        browser.call("Emulation.setTouchEmulationEnabled", enabled=False)
    low, high = view(browser)
    assert 300 < high - low < 900


def test_paper_shows_overview_picture_and_tables(browser: Browser, many: Path) -> None:
    opened(browser, many, width=PAPER_PX, media="print")
    assert check(browser, "cutOff") == []
    assert check(browser, "tooFaint", 4.5) == []
    assert not browser.evaluate("document.getElementById('tools').checkVisibility()")
    assert len(browser.printed()) > 20_000
    assert browser.trouble == []


def test_without_its_script_the_page_has_overview_figures_and_tables(
    browser: Browser, few: Path
) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(few, width=1440)
        for name in ("overview", "late", "suspects", "gaps", "figures"):
            assert browser.evaluate(f"document.getElementById('{name}').checkVisibility()")
        assert not browser.evaluate("document.getElementById('interactive').checkVisibility()")
        assert browser.evaluate("document.querySelector('noscript').checkVisibility()")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_page_without_spans_still_draws(browser: Browser, folder: Path) -> None:
    empty = Timeline(start_ns=0, end_ns=MS, lanes=(), late=(late(0.1, 100, 50),))
    assert spans_of(empty) == []
    opened(browser, written(folder / "empty.html", empty))
    assert browser.trouble == []
