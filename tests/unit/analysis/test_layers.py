"""The layers between a workload and the disk are named where native and guest are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.judge import judge
from labctl.store.run_folder import LoadedRun
from tests.unit.records import plan_of, run_of
from tests.unit.synthetic import synthetic_run


def made(**disks: dict[str, Any]) -> LoadedRun:
    """A run with fio on the data disk; `disks` by tuning, else QEMU's default."""
    run = synthetic_run()
    guests = [
        name for name, entry in run.plan.to_json()["tunings"].items() if entry["kind"] == "guest"
    ]
    workloads = {
        name: {**entry, "uses_data_disk": entry["program"] == "fio"}
        for name, entry in run.plan.to_json()["workloads"].items()
    }
    recorded = {name: {"disk": {"cache": None, "format": "raw"}} for name in guests}
    recorded |= {name: {"disk": {"format": "raw", **disk}} for name, disk in disks.items()}
    host = {**run.run.to_json()["host"], "state_folder": {"file_system": "xfs"}}
    return replace(
        run,
        plan=plan_of({**run.plan.to_json(), "workloads": workloads}),
        run=run_of({**run.run.to_json(), "host": host, "tunings": recorded}),
    )


def said(run: LoadedRun) -> str:
    [text] = [text for text in judge(run).warnings if "use different storage layers" in text]
    return text


def test_both_sides_are_named_with_the_hosts_file_system() -> None:
    text = said(made())
    assert text.startswith("Under 'fio-randread' native and guest use different storage layers")
    assert "natively it is a file on the host's xfs, opened without the host's page cache" in text
    assert "a block device without a file system" in text
    assert text.endswith("the same file open through the page cache.")


@pytest.mark.parametrize("cache", ["none", "directsync"])
def test_the_page_cache_goes_by_the_cache_mode(cache: str) -> None:
    assert said(made(pinned={"cache": cache})).endswith(
        "without the page cache with 'pinned', through it with all others."
    )


@pytest.mark.parametrize("cache", ["writeback", "writethrough", "unsafe"])
def test_other_modes_go_through_it(cache: str) -> None:
    assert said(made(pinned={"cache": cache})).endswith("open through the page cache.")


def test_an_image_in_place_of_the_file_is_a_layer_too() -> None:
    text = said(made(pinned={"format": "qcow2"}))
    assert text.endswith("through the page cache, with 'pinned' a qcow2 image in its place.")


def test_a_run_that_recorded_no_tunings_says_what_it_can() -> None:
    run = made()
    bare = replace(run, run=run_of({**run.run.to_json(), "tunings": {}, "host": {}}))
    text = said(bare)
    assert "a file on the host's file system" in text
    assert text.endswith("with or without the page cache, depending on its cache mode.")


def test_without_the_disk_or_without_a_native_side_there_is_nothing_to_say() -> None:
    assert not [
        text for text in judge(synthetic_run()).warnings if "use different storage layers" in text
    ]
    run = made()
    guests = {n: e for n, e in run.plan.to_json()["tunings"].items() if e["kind"] == "guest"}
    alone = replace(run, plan=plan_of({**run.plan.to_json(), "tunings": guests}))
    assert not [text for text in judge(alone).warnings if "use different storage layers" in text]


def fits(run: LoadedRun, *, disk: int | None = 256 << 20, memory: int = 24 << 30) -> list[str]:
    """What is said of a disk of that size on a host with that memory."""
    host = {**run.run.to_json()["host"], "memory_bytes": memory}
    sized = replace(run, run=run_of({**run.run.to_json(), "host": host, "data_disk_bytes": disk}))
    return [text for text in judge(sized).warnings if "fit into the host's memory" in text]


def test_a_disk_that_the_page_cache_can_hold_is_told_where_a_guest_uses_the_page_cache() -> None:
    [text] = fits(made())
    assert text.startswith("The data disk's 256 MiB fit into the host's memory (24 GiB)")
    assert fits(made(), disk=32 << 30) == []
    assert fits(made(), disk=None) == [], "a run that did not record it"
    guests = [
        name for name, entry in made().plan.to_json()["tunings"].items() if entry["kind"] == "guest"
    ]
    assert fits(made(**{name: {"cache": "none"} for name in guests})) == []
