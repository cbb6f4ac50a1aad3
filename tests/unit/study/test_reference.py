"""The reference of the catalogue is the catalogue's own words."""

from __future__ import annotations

from pathlib import Path

from labctl.study.reference import COMMAND, reference
from labctl.study.tunings import BASELINE, load_tuning, load_tunings, tuning_names

FILE = Path(__file__).parents[3] / "docs" / "tunings.md"


def test_the_reference_is_up_to_date() -> None:
    written = reference(load_tunings(tuning_names()), load_tuning(BASELINE))
    assert FILE.read_text() == written, f"run: {COMMAND}"


def test_every_tuning_of_the_catalogue_says_where_it_comes_from_and_what_it_risks() -> None:
    silent = [
        name
        for name, tuning in load_tunings(tuning_names()).items()
        if not (tuning.description and tuning.sources and tuning.risks)
    ]
    assert silent == []


def test_a_tuning_is_told_with_its_keys_and_with_how_it_starts() -> None:
    text = reference(load_tunings(["cache-none", "hugepages-2M"]), load_tuning(BASELINE))
    assert "- **`cache-none`** (restored; `disk.cache: none`): The data disk passes" in text
    assert "- **`hugepages-2M`** (booted; `memory.hugepages: 2M`): " in text
    assert text.index("## Memory") < text.index("## Disk")
