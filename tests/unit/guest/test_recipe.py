from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.guest.recipe import Recipe, RecipeFile, load_recipe, recipe_names

RECIPE = """\
description: A test image
suite: bookworm
kernel: linux-image-cloud-amd64
packages: [udev, fio]
size_mib: 1024
command_line: rw quiet
user: lab
binaries: {fio: /usr/bin/fio}
mask: [e2scrub_all.timer]
files:
  /etc/motd: hello
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    (tmp_path / "guest-images").mkdir()
    return tmp_path


def recipe(lab: Path, text: str) -> Recipe:
    (lab / "guest-images" / "mine.yaml").write_text(text)
    return load_recipe("mine")


def test_every_recipe_that_labctl_brings_is_valid() -> None:
    names = recipe_names()
    assert "debian-13" in names
    for name in names:
        assert load_recipe(name).name == name


def test_the_shipped_recipe_has_every_tool_that_trials_run() -> None:
    spec = load_recipe("debian-13").spec
    assert {"cloud-init", "qemu-guest-agent", "linux-perf", "rt-tests"} <= set(spec.packages)
    assert {"sysbench", "fio", "cyclictest", "stress-ng", "valgrind"} <= set(spec.binaries)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fio]", "fio, sysbench]"),
        ("hello", "hello there"),
        ("e2scrub_all.timer", "fstrim.timer"),
        ("size_mib: 1024", "size_mib: 2048"),
        ("rw quiet", "rw"),
    ],
)
def test_what_changes_the_image_changes_the_digest(lab: Path, old: str, new: str) -> None:
    assert old in RECIPE
    assert recipe(lab, RECIPE).digest != recipe(lab, RECIPE.replace(old, new)).digest


def test_words_about_the_image_do_not_change_the_digest(lab: Path) -> None:
    described = RECIPE.replace("A test image", "Another text") + "# a comment\n"
    assert recipe(lab, RECIPE).digest == recipe(lab, described).digest


def test_a_default_that_is_written_out_does_not_change_the_digest(lab: Path) -> None:
    assert recipe(lab, RECIPE).digest == recipe(lab, RECIPE + "exclude: []\n").digest


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("packages:", "pakages:", 4, "unknown key 'pakages'. Did you mean 'packages'?"),
        ("fio]", "'fio; reboot']", 4, "'packages.1'"),
        ("size_mib: 1024", "size_mib: 12", 5, "'size_mib' is 12"),
        ("size_mib: 1024", "size_mib: '1024'", 5, "'size_mib'"),
        ("e2scrub_all.timer", "../evil.timer", 9, "'mask.0'"),
        ("/etc/motd", "etc/motd", 11, "'files.etc/motd"),
        ("/etc/motd", "/../../etc/motd", 11, "'files./../../etc/motd"),
    ],
)
def test_a_wrong_recipe_is_refused_with_its_line_and_key(
    lab: Path, old: str, new: str, line: int, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        recipe(lab, RECIPE.replace(old, new))
    assert f"mine.yaml:{line}: " in caught.value.message
    assert said in caught.value.message


def test_an_unknown_recipe_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe("debian13")
    assert "Did you mean 'debian-13'?" in (caught.value.hint or "")


def test_a_key_that_the_model_lacks_never_passes() -> None:
    assert RecipeFile.model_config["extra"] == "forbid"


def test_a_recipe_is_another_one_with_its_own_keys_in_front(lab: Path) -> None:
    base = recipe(lab, RECIPE)
    (lab / "guest-images" / "theirs.yaml").write_text(
        "extends: mine\nkernel: linux-image-amd64\nfiles: {/etc/issue: hi}\n"
    )
    found = load_recipe("theirs").spec
    assert found.kernel == "linux-image-amd64"
    assert found.files == {"/etc/issue": "hi", "/etc/motd": "hello"}
    same = {"kernel", "files"}
    assert found.model_dump(exclude=same) == base.spec.model_dump(exclude=same)
    assert load_recipe("theirs").digest != base.digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: nobody", "no other image recipe 'nobody'"),
        ("extends: mine", "no other image recipe 'mine'"),
        ("extends: theirs", "no other image recipe 'mine'"),
        ("extends: debian-13\nkernal: x", "kernal"),
    ],
)
def test_a_recipe_that_extends_what_it_cannot_is_refused(lab: Path, text: str, said: str) -> None:
    (lab / "guest-images" / "theirs.yaml").write_text("extends: mine")
    with pytest.raises(UsageError, match=r"(mine|theirs)\.yaml") as caught:
        recipe(lab, text)
    assert said in caught.value.message


def test_releases_differ_by_their_suite_python_and_cloud_image_alone() -> None:
    for name in ("debian-{}", "debian-{}-rt", "debian-{}-stock", "debian-{}-cloud"):
        old, new = (load_recipe(name.format(release)).spec for release in (12, 13))
        assert old.binaries.keys() == new.binaries.keys()
        differ = {"description", "suite", "binaries", "cloud_image"}
        assert old.model_dump(exclude=differ) == new.model_dump(exclude=differ)


def test_the_stock_kernels_image_has_the_same_programs() -> None:
    stock, cloud = load_recipe("debian-13-stock").spec, load_recipe("debian-13").spec
    assert (stock.packages, stock.binaries) == (cloud.packages, cloud.binaries)
    assert stock.kernel != cloud.kernel
