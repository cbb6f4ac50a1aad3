"""A kernel of the user's own in a real guest, and the first boot that it begins with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from labctl.base.paths import StatePaths, data_folders
from labctl.guest.images import Image, list_images
from tests.guest.conftest import LATENCY, QUIET, TWO, Sandbox, changed_study


def lab_with_user_data(folder: Path, run: str) -> Path:
    """A lab folder whose first boots run one more command at their end."""
    templates = folder / "templates" / "cloud-init"
    templates.mkdir(parents=True)
    (shipped,) = (found / "cloud-init" for found in data_folders("templates"))
    text = (shipped / "user-data.j2").read_text()
    assert text.rstrip().splitlines()[-4] == "runcmd:"
    (templates / "user-data.j2").write_text(f"{text.rstrip()}\n  - {json.dumps(['sh', '-c', run])}")
    return folder


def test_a_run_of_a_kernel_of_ones_own_outlives_a_first_boot_that_fails_and_no_other_kernel(
    sandbox: Sandbox, image: Image, tmp_path: Path
) -> None:
    sandbox.shadow_image(image)
    kernel, initrd = tmp_path / "my-kernel", tmp_path / "my-initrd"
    shutil.copyfile(image.kernel, kernel)
    assert image.initrd is not None
    shutil.copyfile(image.initrd, initrd)
    own = ("--kernel", str(kernel), "--initrd", str(initrd))
    lab = lab_with_user_data(tmp_path / "lab", "echo this went wrong; exit 3")
    study = changed_study(tmp_path, LATENCY | TWO)
    failed = sandbox.labctl("sweep", study, *QUIET, *own, lab=lab)
    assert failed.returncode == 4
    assert "cloud-init failed" in failed.stderr
    assert "this went wrong" in failed.stderr
    assert "templates/cloud-init" in failed.stderr
    (image_of_it,) = [i for i in list_images(StatePaths(sandbox.state)) if i.given_kernel]
    assert list(image_of_it.prepared_dir.iterdir()) == []
    assert sandbox.leftovers() == []
    (folder,) = sandbox.runs()
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"

    mended = sandbox.labctl("sweep", "--resume", folder.name, "--json")
    assert mended.returncode == 0, mended.stderr
    assert json.loads(mended.stdout)["trials"]["done"] == 2
    run = json.loads((folder / "run.json").read_text())
    assert run["kernel"]["file"] == str(kernel)
    assert run["kernel"]["sha256"]["file"] == image.manifest["files"]["vmlinuz"]["sha256"]
    assert run["kernel"]["release"] == run["guest"]["kernel_release"]
    # What was prepared for the image's own kernel is not taken for this one's.
    assert run["image"]["digest"] == image_of_it.digest != image.digest
    assert list(image_of_it.prepared_dir.iterdir())
    assert sandbox.prepared(image) == []
    assert sandbox.leftovers() == []

    kernel.write_bytes(kernel.read_bytes() + b"patched")
    again = sandbox.labctl("sweep", "--resume", folder.name)
    assert again.returncode == 2
    assert "but the kernel itself changed since" in again.stderr
    # Their paths are in the run: they end with the test.
    shutil.rmtree(image_of_it.dir)
