"""Read HdrHistogram's interval logs: a line for each interval, its histogram in the V2 encoding,
compressed and in base64 (HdrHistogram's AbstractHistogram.encodeIntoCompressedByteBuffer and
HistogramLogWriter)."""

from __future__ import annotations

import base64
import binascii
import math
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence

from labctl.base.errors import BrokenError
from labctl.workloads.histogram import Bin, Histogram, histogram
from labctl.workloads.readers.declaration import HdrFile
from labctl.workloads.readers.output import Part

MOST_BYTES = 8 << 20
"""Limit for all histograms of a log, decompressed: the counts of 8 million bins."""
_COMPRESSED = 0x1C849304
_V2 = 0x1C849303
_WORD = 0xF0
"""Bits of a cookie for the width of a count; V2 writes all of them alike."""
_HEADER = struct.Struct(">iiiiqqd")
_MOST_DIGITS = 5


def by_log(wanted: HdrFile, parts: Sequence[Part], source: str) -> Histogram:
    """Return the sum of all intervals' histograms, in the log's unit. Raises BrokenError."""
    counts: Counter[tuple[int, int]] = Counter()
    left = MOST_BYTES
    for part in parts:
        for line in _intervals(wanted, part):
            try:
                payload = _payload(line, left)
                counts.update(_bins(payload))
            except (ValueError, zlib.error, struct.error, binascii.Error) as error:
                raise BrokenError(
                    f"{part.name}: an interval has no histogram of HdrHistogram's V2 encoding "
                    f"({error}); {part.end}"
                ) from error
            left -= len(payload)
    if not counts:
        tag = f"with the tag '{wanted.tag}'" if wanted.tag is not None else "without a tag"
        raise BrokenError(f"{parts[-1].name} has no interval {tag} with values")
    return histogram(
        (
            Bin(max(value + (width - 1) / 2, 0.5), width, count)
            for (value, width), count in counts.items()
        ),
        source=source,
    )


def _intervals(wanted: HdrFile, part: Part) -> Iterator[str]:
    """Yield the texts of the histograms of the intervals that count."""
    if part.text and not part.text.endswith("\n"):
        raise BrokenError(f"{part.name}: its last line has no end, so it may be cut")
    for line in part.text.splitlines():
        if not line or line.startswith(("#", '"StartTimestamp"')):
            continue
        fields = line.split(",")
        tag = fields.pop(0)[len("Tag=") :] if line.startswith("Tag=") else None
        if len(fields) != 4:
            raise BrokenError(f"{part.name}: expected an interval, found {line[:80]!r}")
        if tag == wanted.tag:
            yield fields[3]


def _payload(text: str, most: int) -> bytes:
    data = base64.b64decode(text, validate=True)
    cookie, length = struct.unpack_from(">ii", data)
    if cookie & ~_WORD != _COMPRESSED or length != len(data) - 8:
        raise ValueError("its begin is another's, or it is cut")
    unpacker = zlib.decompressobj()
    payload = unpacker.decompress(data[8:], max(1, most))
    if not unpacker.eof:
        raise ValueError(f"it is cut, or all are larger than {MOST_BYTES >> 20} MiB")
    return payload


def _bins(payload: bytes) -> Counter[tuple[int, int]]:
    """Return counts by each bin's least value and width."""
    cookie, length, offset, digits, lowest, _, ratio = _HEADER.unpack_from(payload)
    counts = payload[_HEADER.size :]
    if cookie & ~_WORD != _V2 or length != len(counts) or offset or ratio != 1.0:
        raise ValueError("its header is another's")
    if not 0 <= digits <= _MOST_DIGITS or lowest < 1:
        raise ValueError(f"{digits} digits, lowest value {lowest}")
    half_bits = max(1, math.ceil(math.log2(2 * 10**digits))) - 1
    half = 1 << half_bits
    unit_bits = lowest.bit_length() - 1
    found: Counter[tuple[int, int]] = Counter()
    index = 0
    for count in _zigzag(counts):
        if count < 0:
            index -= count
            continue
        if count:
            bucket = (index >> half_bits) - 1
            place = (index & (half - 1)) + (half if bucket >= 0 else 0)
            bits = max(bucket, 0) + unit_bits
            if bits > 63:
                raise ValueError("a bin beyond 64 bits")
            found[place << bits, 1 << bits] += count
        index += 1
    return found


def _zigzag(data: bytes) -> Iterator[int]:
    """Yield signed numbers of 7 bits a byte, 8 in the ninth; a negative one is a run of zeros."""
    at = 0
    while at < len(data):
        number = 0
        for place in range(9):
            if at >= len(data):
                raise ValueError("its last number is cut")
            byte = data[at]
            at += 1
            if place == 8:
                number |= byte << 56
                break
            number |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                break
        yield (number >> 1) ^ -(number & 1)
