"""The host's latency QoS, on files that stand for its device."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from labctl.base.errors import HostError
from labctl.base.kernel import DEVICE, NO_LIMIT_US, in_words, limit_us, limited


def device(root: Path, content: bytes) -> Path:
    path = root / DEVICE
    path.parent.mkdir()
    path.write_bytes(content)
    return path


def test_the_device_speaks_in_32_bits(tmp_path: Path) -> None:
    path = device(tmp_path, struct.pack("=i", NO_LIMIT_US))
    assert limit_us(tmp_path) == NO_LIMIT_US
    with limited(20, tmp_path) as held:
        assert path.read_bytes() == struct.pack("=i", 20)
        assert (held.name, held.before, held.now) == (str(path), "no limit", "20")


def test_a_limit_of_somebody_else_that_is_lower_is_told(tmp_path: Path) -> None:
    # Whatever is written to it, it reads as 0.
    (tmp_path / DEVICE).parent.mkdir()
    (tmp_path / DEVICE).symlink_to("/dev/zero")
    with limited(0, tmp_path) as held:
        assert (held.before, held.now) == ("0", "0")
    another = pytest.raises(HostError, match="was set to 5 but reads 0: another program")
    with another, limited(5, tmp_path):
        pytest.fail("it is not in force")


def test_a_host_without_the_device_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        limit_us(tmp_path)
    with pytest.raises(HostError, match="No such file"), limited(0, tmp_path):
        pytest.fail("there is nothing to hold")


def test_a_device_that_says_less_than_a_limit_is_an_error(tmp_path: Path) -> None:
    device(tmp_path, b"\0\0")
    with pytest.raises(OSError, match="expected 4 bytes, got 2"):
        limit_us(tmp_path)


def test_the_kernels_default_is_no_limit() -> None:
    assert (in_words(NO_LIMIT_US), in_words(0)) == ("no limit", "0")
