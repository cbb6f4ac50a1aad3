"""A kernel of the user's own in a real guest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from labctl.base.places import StatePlaces
from labctl.guest.images import Image, list_images
from tests.guest.conftest import LATENCY, QUIET, Sandbox, changed_study


def test_a_sweep_boots_the_kernel_that_it_is_given_and_a_resumed_one_no_other(
    sandbox: Sandbox, image: Image, tmp_path: Path
) -> None:
    sandbox.shadow_image(image)
    kernel, initrd = tmp_path / "my-kernel", tmp_path / "my-initrd"
    shutil.copyfile(image.kernel, kernel)
    assert image.initrd is not None
    shutil.copyfile(image.initrd, initrd)
    own = ("--kernel", str(kernel), "--initrd", str(initrd))
    done = sandbox.labctl("sweep", changed_study(tmp_path, LATENCY), *QUIET, *own, "--json")
    assert done.returncode == 0, done.stderr
    (folder,) = sandbox.runs()
    run = json.loads((folder / "run.json").read_text())
    assert run["kernel"]["file"] == str(kernel)
    assert run["kernel"]["sha256"]["file"] == image.manifest["files"]["vmlinuz"]["sha256"]
    assert run["kernel"]["release"] == run["guest"]["kernel_release"]
    # What was prepared for the image's own kernel is not taken for this one's.
    assert run["image"]["digest"] != image.digest
    (image_of_it,) = [i for i in list_images(StatePlaces(sandbox.state)) if i.given_kernel]
    assert image_of_it.digest == run["image"]["digest"]
    assert list(image_of_it.prepared_dir.iterdir())
    assert sandbox.prepared(image) == []
    assert sandbox.leftovers() == []

    kernel.write_bytes(kernel.read_bytes() + b"patched")
    again = sandbox.labctl("sweep", "--resume", folder.name)
    assert again.returncode == 2
    assert "of which the kernel itself changed since" in again.stderr
    # Their paths are in the run: they end with the test.
    shutil.rmtree(image_of_it.dir)
