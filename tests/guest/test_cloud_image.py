"""A cloud image from its publisher's server to trials in a guest that booted it.

The official ones can't be had everywhere. This one is made for the test, as they are: an ext4 root
on a disk with partitions, named in a checksum file that its publisher signed.
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.guest.images import Image
from tests.guest.conftest import LATENCY, QUIET, TWO, Sandbox, changed_study
from tests.unit.guest.publisher import Signer, serving

MIB = 2**20
NAME = "test-cloud-amd64.qcow2"

RECIPE = """\
extends: debian-13-cloud
cloud_image:
  url: {url}/{name}
  checksums: {url}/SUMS
  signature: {url}/SUMS.sign
  signed_by: {keyring}
# The image has them: apt is asked all the same.
packages: [fio, sysbench]
size_mib: 2048
"""


def cloud_image(tree: Path, folder: Path) -> Path:
    """A disk with an MBR (four entries of 16 bytes at 446), whose second partition is an ext4 of
    the tree."""
    raw, image = folder / "cloud.raw", folder / NAME
    with raw.open("wb") as file:
        file.truncate(1600 * MIB)
        file.seek(446)
        for kind, start, size in ((0xDA, 1, 1), (0x83, 2, 1500)):
            file.write(struct.pack("<4xB3xII", kind, start * MIB // 512, size * MIB // 512))
        file.seek(510)
        file.write(b"\x55\xaa")
    options = ["-q", "-t", "ext4", "-d", str(tree), "-E", f"offset={2 * MIB}"]
    subprocess.run(["mke2fs", *options, str(raw), "1500M"], check=True)
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", str(raw), str(image)], check=True)
    raw.unlink()
    return image


@pytest.fixture
def signer(tmp_path: Path) -> Iterator[Signer]:
    made = Signer.make(tmp_path / "signer")
    yield made
    made.stop()


def test_a_signed_cloud_image_is_built_booted_and_measured_in_and_a_changed_one_refused(
    sandbox: Sandbox, image: Image, tmp_path: Path, signer: Signer
) -> None:
    (sandbox.state / "images").unlink()
    lab = tmp_path / "lab"
    (lab / "guest-images").mkdir(parents=True)
    keyring = tmp_path / "keyring.gpg"
    keyring.write_bytes(signer.keyring())
    made = cloud_image(image.tree.resolve(), tmp_path)
    with serving() as server:
        server.publish(NAME, made.read_bytes(), signer)
        made.unlink()
        recipe = lab / "guest-images" / "test-cloud.yaml"
        recipe.write_text(RECIPE.format(url=server.url, name=NAME, keyring=keyring))
        whole = server.files[f"/{NAME}"]
        server.files[f"/{NAME}"] = whole[:-1] + bytes([whole[-1] ^ 1])
        refused = sandbox.labctl("image", "build", "test-cloud", lab=lab)
        assert refused.returncode == 4
        assert "is not the published file" in refused.stderr
        assert not list((sandbox.state / "images").glob("test-cloud-*"))
        server.files[f"/{NAME}"] = whole
        built = sandbox.labctl("image", "build", "test-cloud", lab=lab)
        assert built.returncode == 0, built.stderr
    study = changed_study(tmp_path, LATENCY | TWO | {"image: debian-13": "image: test-cloud"})
    done = sandbox.labctl("sweep", study, *QUIET, "--json", lab=lab)
    assert done.returncode == 0, done.stderr
    (run,) = sandbox.runs()
    record = json.loads((run / "run.json").read_text())
    assert record["image"]["name"] == "test-cloud"
    assert {trial["status"] for trial in sandbox.trials(run)} == {"done"}
    assert record["guest"]["kernel_release"] != record["host"]["kernel_release"]
    removed = sandbox.labctl("image", "rm", "test-cloud", "--yes", lab=lab)
    assert removed.returncode == 0, removed.stderr
    assert list((sandbox.state / "images").glob("test-cloud-*")) == []
    assert sandbox.leftovers() == []
