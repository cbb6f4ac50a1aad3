from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .publisher import Server, Signer, serving


@pytest.fixture(scope="session")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signer]:
    made = Signer.make(tmp_path_factory.mktemp("gpg") / "signer")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signer]:
    """Signs as well as anybody, and is in no keyring of ours."""
    made = Signer.make(tmp_path_factory.mktemp("gpg") / "stranger")
    yield made
    made.stop()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def keyring(tmp_path: Path, signer: Signer) -> Path:
    path = tmp_path / "keyring.gpg"
    path.write_bytes(signer.keyring())
    return path
