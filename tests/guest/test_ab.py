"""`labctl ab` of two programs, one slower by construction, of builds and of images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from labctl.base.errors import ExitCode
from labctl.base.paths import MARKER, StatePaths
from labctl.guest.images import DIGEST_LENGTH, MANIFEST, Image, list_images
from labctl.guest.recipe import recipe_in
from tests.guest.conftest import Sandbox

BLOCKS = 3


def counting(to: int) -> str:
    return f"sh -c 'i=0; while [ $i -lt {to} ]; do i=$((i+1)); done'"


def test_the_slower_of_two_programs_is_slower_on_both_sides(sandbox: Sandbox) -> None:
    done = sandbox.labctl(
        *("ab", "--command", counting(50_000), "--command", counting(150_000)),
        *("--once", "--accel=tcg", f"--blocks={BLOCKS}", f"--blocks-per-boot={BLOCKS}"),
        *("--spare-blocks=0", "--other-cpu=1000", "--quiet", "--json"),
        seconds=1200,
    )
    assert done.returncode == ExitCode.OPEN, f"fewer than ten blocks decide nothing: {done.stderr}"
    report = json.loads(done.stdout)
    trials = BLOCKS * len(("native", "native+B", "baseline", "control", "handicap", "B"))
    assert report["trials"]["done"] == trials
    (place,) = report["ab"]["places"]
    assert (place["metric"], place["better"]) == ("elapsed", "lower")
    assert place["verdict"] == "demonstration, no verdict"
    for side in ("guest", "native"):
        assert place[side]["ratio"] > 1.3, "three times the work"
        assert place[side]["blocks"] == BLOCKS
    ratio = place["guest"]["ratio"] / place["native"]["ratio"]
    assert abs(place["interaction"]["ratio"] / ratio - 1) < 1e-9
    assert place["depends_on_virtualization"] == "open"

    shown = sandbox.labctl("report", report["run"], seconds=60)
    assert "B against A" in " ".join(shown.stdout.split())
    assert sandbox.leftovers() == []


QEMU = "/usr/bin/qemu-system-x86_64"


def test_each_guest_runs_in_its_own_qemu_and_boots_for_itself(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    # QEMU finds its modules and firmware from its own folder.
    copy = tmp_path / "usr" / "bin" / "qemu-system-x86_64"
    copy.parent.mkdir(parents=True)
    shutil.copy2(QEMU, copy)
    for name in ("lib", "share"):
        (tmp_path / "usr" / name).symlink_to(f"/usr/{name}")
    done = sandbox.labctl(
        *("ab", "--qemu", QEMU, "--qemu", str(copy), "sysbench-cpu", "--accel=tcg"),
        *("--blocks=1", "--spare-blocks=0", "--duration=1", "--other-cpu=1000"),
        *("--quiet", "--json"),
        seconds=1800,
    )
    assert done.returncode == ExitCode.OPEN, done.stderr
    (run,) = sandbox.runs()
    expected = {"A": QEMU, "A+control": QEMU, "A+handicap": QEMU, "B": str(copy)}
    found = {}
    for path in run.glob("trials/*/build.json"):
        trial = json.loads((path.parent / "trial.json").read_text())
        assert trial["status"] == "done", trial["reasons"]
        found[trial["cell"]["tuning"]] = json.loads(path.read_text())
    assert {"A", "B"} <= found.keys()
    assert all(one["emulator"] == expected[name] for name, one in found.items())
    plan, recorded = (json.loads((run / f"{name}.json").read_text()) for name in ("plan", "run"))
    assert {*plan["builds"]} == {QEMU, str(copy)}
    assert recorded["builds"] == plan["builds"]
    assert {one["emulator_sha256"] for one in found.values()} == {
        one["sha256"] for one in plan["builds"].values()
    }
    place = json.loads(done.stdout)["ab"]["places"][0]
    assert (place["native"], place["interaction"]) == (None, None)
    assert sandbox.leftovers() == []


def test_each_guest_boots_its_own_kernel(sandbox: Sandbox, image: Image, tmp_path: Path) -> None:
    sandbox.shadow_image(image)
    assert image.initrd is not None
    old, new, initrd = (tmp_path / name for name in ("old", "new", "initrd"))
    shutil.copyfile(image.initrd, initrd)
    old.write_bytes(image.kernel.read_bytes())
    new.write_bytes(image.kernel.read_bytes() + b"patched")
    done = sandbox.labctl(
        *("ab", "--kernel", str(old), "--kernel", str(new), "--initrd", str(initrd)),
        *("sysbench-cpu", "--accel=tcg", "--blocks=1", "--spare-blocks=0", "--duration=1"),
        *("--other-cpu=1000", "--quiet", "--json"),
        seconds=3000,
    )
    assert done.returncode == ExitCode.OPEN, done.stderr
    (run,) = sandbox.runs()
    plan, recorded = (json.loads((run / f"{name}.json").read_text()) for name in ("plan", "run"))
    assert {*plan["builds"]} == {str(old), str(new), str(initrd)}
    release = plan["builds"][str(new)]["version"]
    assert recorded["guest"]["kernel_release"] == release
    assert recorded["kernel"]["file"] == str(old)
    arms = []
    for path in run.glob("trials/*/build.json"):
        trial = json.loads((path.parent / "trial.json").read_text())
        assert trial["status"] == "done", trial["reasons"]
        assert json.loads(path.read_text()) == {"kernel_release": release}
        arms.append(trial["cell"]["tuning"])
    assert {"A", "B"} <= {*arms}
    made = [one for one in list_images(StatePaths(sandbox.state)) if one.given_kernel]
    assert {one.given_kernel["file"] for one in made if one.given_kernel} == {str(old), str(new)}
    assert all([*one.prepared_dir.iterdir()] for one in made)
    assert sandbox.leftovers() == []
    # Their paths are in the run: they end with the test.
    for one in made:
        shutil.rmtree(one.dir)


def test_each_arm_runs_in_its_own_image_on_both_sides(
    sandbox: Sandbox, image: Image, tmp_path: Path
) -> None:
    # Another image of the same files under another name, so that none must be built.
    sandbox.shadow_image(image)
    (tmp_path / "lab" / "guest-images").mkdir(parents=True)
    (tmp_path / "lab" / MARKER).touch()
    recipe = tmp_path / "lab" / "guest-images" / "other.yaml"
    recipe.write_text(f"extends: {image.name}\nuser: somebody\n")
    digest = recipe_in(recipe).digest
    own = sandbox.state / "images" / f"other-{digest[:DIGEST_LENGTH]}"
    (own / "prepared").mkdir(parents=True)
    for path in image.dir.iterdir():
        if path.name not in (MANIFEST, "prepared"):
            (own / path.name).symlink_to(path)
    manifest = {**image.manifest, "name": "other", "digest": digest, "user": "somebody"}
    (own / MANIFEST).write_text(json.dumps(manifest))
    done = sandbox.labctl(
        *("ab", "--image", image.name, "--image", "other", "hackbench", "--accel=tcg"),
        *("--blocks=1", "--spare-blocks=0", "--duration=1", "--other-cpu=1000"),
        *("--quiet", "--json"),
        seconds=3000,
        lab=tmp_path / "lab",
    )
    assert done.returncode == ExitCode.OPEN, done.stderr
    (run,) = sandbox.runs()
    recorded = json.loads((run / "run.json").read_text())
    trials = [trial for trial in sandbox.trials(run) if trial["status"] == "done"]
    arms = ["A", "A+control", "A+handicap", "B", "native", "native+B"]
    assert sorted(trial["cell"]["tuning"] for trial in trials) == arms
    assert recorded["image"]["name"] == image.name
    assert {name: one["name"] for name, one in recorded["images"].items()} == {
        "B": "other",
        "native+B": "other",
    }
    hashed = recorded["hashed"]
    other = hashed["images"]["other"]
    for side in ("native", "guest"):
        assert "/usr/bin/hackbench" in hashed[side]["files"]
        assert "/usr/bin/hackbench" in other[side]["files"]
    assert [*(own / "prepared").iterdir()], "its first boot was its own"
    (place,) = json.loads(done.stdout)["ab"]["places"]
    assert None not in (place["native"], place["interaction"])
    assert sandbox.leftovers() == []
