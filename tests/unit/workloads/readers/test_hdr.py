import base64
import struct
import zlib

import pytest

from labctl.base.errors import BrokenError
from labctl.workloads.metric_file import read_run
from labctl.workloads.readers.declaration import MetricFile
from tests.unit.workloads.readers.outputs import Left, metric, numbers, read, reasons
from tests.unit.workloads.trials import recorded

LOG = recorded("hdrhistogram-0.10.8-lognormal.hlog")
"""3,000 values by the Python library, of which it says what is expected here, and one of 5,000,000
with a tag."""


def _declared(as_: str, tag: str | None = None) -> dict[str, MetricFile]:
    hdr = {} if tag is None else {"tag": tag}
    return metric(hdr=hdr, as_=as_, unit="ns", better="lower")


def _log(payload: bytes) -> str:
    data = zlib.compress(payload)
    whole = struct.pack(">ii", 0x1C849304 | 0x10, len(data)) + data
    return f"0.0,1.0,1.0,{base64.b64encode(whole).decode()}\n"


def test_percentiles_are_those_of_the_library_that_wrote_the_log() -> None:
    values = read_run(_declared("percentiles"), Left(stdout=LOG))
    found = numbers(values)
    # It gives the greatest value of a bin, of three digits; here its middle counts.
    assert found["it_p95"] == pytest.approx(2_166_783e-9, rel=1e-3)
    assert found["it_max"] == pytest.approx(17_235_967e-9)
    assert 0 < found["bin_width{of=it_p95}"] < 2e-3
    assert "3000 samples, but p999" in reasons(values)["it_p999"]


def test_intervals_with_a_tag_are_another_s() -> None:
    assert read(_declared("count"), LOG) == {"it": 3000}
    assert read(_declared("count", "other"), LOG) == {"it": 1}
    assert read(_declared("max", "other"), LOG) == {"it": pytest.approx(5e-3, rel=1e-3)}
    with pytest.raises(BrokenError, match="no interval with the tag 'none'"):
        read(_declared("count", "none"), LOG)


@pytest.mark.parametrize("cut", [0, 50, 300, 1500])
def test_a_log_that_is_cut_is_an_error(cut: int) -> None:
    with pytest.raises(BrokenError, match="no interval|may be cut|V2 encoding"):
        read(_declared("count"), LOG[:cut])
    with pytest.raises(BrokenError, match="no interval|expected an interval|V2 encoding"):
        read(_declared("count"), LOG[:cut] + "\n")


HEADER = struct.Struct(">iiiiqqd")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        HEADER.pack(0x1C849303 | 0x10, 5, 0, 3, 1, 1000, 1.0),
        HEADER.pack(0x1C849303 | 0x10, 0, 0, 300, 1, 1000, 1.0),
        HEADER.pack(0x1C849303 | 0x10, 1, 0, 3, 1, 1000, 1.0) + b"\xff",
        HEADER.pack(0x1C849303 | 0x10, 10, 0, 3, 1, 1000, 1.0) + b"\xff" * 9 + b"\x02",
        bytes(64 << 20),
    ],
    ids=["empty", "short", "digits", "cut number", "endless zeros", "bomb"],
)
def test_a_histogram_that_is_none_is_an_error(payload: bytes) -> None:
    with pytest.raises(BrokenError, match="V2 encoding"):
        read(_declared("count"), _log(payload))
