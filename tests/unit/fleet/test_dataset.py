"""A fleet's tables: written host by host, read back without the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.fleet import table as dataset
from labctl.fleet.table import EFFECTS, landed, pieces, read, write_host

DAY = "2026-11-24"


def _rows(value: float, count: int = 3) -> Any:
    return pa.table({"metric": ["latency"] * count, "value": [value + n for n in range(count)]})


def _land(data: Path, host: str, value: float, digest: str = "", day: str = DAY) -> None:
    write_host(data, EFFECTS, day, host, digest or f"digest of {host}", _rows(value))


def _digests(*hosts: str) -> dict[str, str]:
    return {host: f"digest of {host}" for host in hosts}


def _values(data: Path, digests: dict[str, str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for batch in read(landed(pieces(data, EFFECTS), digests), ("host", "value")):
        for row in batch.to_pylist():
            found.setdefault(row["host"], []).append(row["value"])
    return found


def test_what_hosts_wrote_is_read_back(tmp_path: Path) -> None:
    for number, host in enumerate(("b", "c", "a")):
        _land(tmp_path, host, 10.0 * number)
    found = _values(tmp_path, _digests("a", "b", "c"))
    assert found == {"a": [20, 21, 22], "b": [0, 1, 2], "c": [10, 11, 12]}
    assert _values(tmp_path, {}) == {}


def test_of_a_host_that_was_measured_anew_only_the_present_run_counts(tmp_path: Path) -> None:
    _land(tmp_path, "a", 1.0)
    _land(tmp_path, "b", 2.0)
    _land(tmp_path, "a", 50.0, digest="another", day="2026-11-25")
    now = {**_digests("b"), "a": "another"}
    assert _values(tmp_path, now) == {"a": [50, 51, 52], "b": [2, 3, 4]}
    assert _values(tmp_path, _digests("a")) == {"a": [1, 2, 3]}


def test_a_column_that_the_first_file_lacks_is_read_of_the_others(tmp_path: Path) -> None:
    _land(tmp_path, "a", 1.0)
    more = _rows(2.0).append_column("collector", [["zgc"] * 3])
    write_host(tmp_path, EFFECTS, DAY, "b", "digest of b", more)
    chosen = landed(pieces(tmp_path, EFFECTS), _digests("a", "b"))
    batches = read(chosen, ("host", "collector"))
    found = [(row["host"], row["collector"]) for one in batches for row in one.to_pylist()]
    assert sorted(set(found), key=str) == [("a", None), ("b", "zgc")]


@pytest.mark.parametrize("host", ["::1", "rack/7", "..", "ä b", "host%2F"])
def test_any_name_of_a_host_makes_a_file_of_the_day_and_none_elsewhere(
    tmp_path: Path, host: str
) -> None:
    _land(tmp_path / "data", host, 1.0)
    assert [path.parent for path in tmp_path.rglob("*.parquet")] == [
        tmp_path / "data" / EFFECTS / f"day={DAY}"
    ]
    assert _values(tmp_path / "data", _digests(host)) == {host: [1, 2, 3]}


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _land(tmp_path, "a", 1.0)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no more space")

    monkeypatch.setattr(dataset.pq.ParquetWriter, "write_table", fail)
    with pytest.raises(RuntimeError):
        _land(tmp_path, "a", 9.0)
    monkeypatch.undo()
    assert _values(tmp_path, _digests("a")) == {"a": [1, 2, 3]}
    assert len(list((tmp_path / EFFECTS / f"day={DAY}").iterdir())) == 1


def test_a_broken_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    _land(tmp_path, "a", 1.0)
    path = next((tmp_path / EFFECTS / f"day={DAY}").iterdir())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BrokenError, match="is incomplete") as error:
        pieces(tmp_path, EFFECTS)
    assert "Remove it" in (error.value.hint or "")


def test_what_a_newer_labctl_wrote_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "SCHEMA", 2)
    _land(tmp_path, "a", 1.0)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="newer labctl"):
        pieces(tmp_path, EFFECTS)
