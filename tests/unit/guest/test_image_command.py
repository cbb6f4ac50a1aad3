from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl.base.errors import UsageError
from labctl.base.paths import StatePaths
from labctl.cli.main import cli
from labctl.store.jsonfile import write_json

from .test_images import make_image


@pytest.fixture
def state(tmp_path: Path) -> Path:
    make_image(StatePaths(tmp_path).images / "debian-13-0123456789ab", "0123456789ab" * 4)
    return tmp_path


def image(state: Path, *arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(
        cli, ["--state-dir", str(state), "image", *arguments], input=answer, standalone_mode=False
    )


def test_the_list_says_which_images_are_of_the_present_recipe(state: Path) -> None:
    listed = json.loads(image(state, "list", "--json").stdout)
    assert [row["folder"] for row in listed["images"]] == ["debian-13-0123456789ab"]
    assert listed["images"][0]["current"] is False
    assert "debian-13" in listed["not_built"]
    assert "has changed" in image(state, "list").stdout


def test_the_list_says_of_an_image_that_its_recipe_is_elsewhere(state: Path) -> None:
    make_image(StatePaths(state).images / "mine-0123456789ab", "0123456789ab" * 4, "mine")
    rows = json.loads(image(state, "list", "--json").stdout)["images"]
    assert {row["name"]: row["recipe"] for row in rows} == {"debian-13": True, "mine": False}
    (line,) = [x for x in image(state, "list").stdout.splitlines() if "mine-" in x]
    assert "not here" in line


def test_show_names_the_programs_and_their_digests(state: Path) -> None:
    assert "/usr/bin/fio" in image(state, "show").stdout
    assert json.loads(image(state, "show", "--json").stdout)["packages"] == {"fio": "3.33-3"}


def test_verify_ends_with_one_when_a_file_has_changed(state: Path) -> None:
    assert image(state, "verify").return_value == 0
    (state / "images/debian-13-0123456789ab/disk.qcow2").write_bytes(b"other")
    found = image(state, "verify", "--json")
    assert found.return_value == 1
    assert "disk.qcow2" in json.loads(found.stdout)["problems"][0]


def test_rm_asks_before_it_removes(state: Path) -> None:
    folder = state / "images/debian-13-0123456789ab"
    image(state, "rm", "debian-13", answer="n\n")
    assert folder.is_dir()
    image(state, "rm", "debian-13", "--yes")
    assert not folder.exists()


def test_an_unknown_image_is_wrong_usage(state: Path) -> None:
    assert isinstance(image(state, "verify", "fedora").exception, UsageError)


def test_a_layer_is_listed_with_what_it_adds_to_which_image(state: Path) -> None:
    folder = StatePaths(state).images / "debian-13-ba9876543210"
    layered = make_image(folder, "ba9876543210" * 4)
    frames = {"wheels": {"java21": "0123"}}
    layer = {
        "packages": ["redis-tools"],
        "workloads": {"frames": frames},
        "masked": ["redis.service"],
    }
    added = {"made_of": "debian-13-0123456789ab", "layer": layer}
    write_json(folder / "manifest.json", {**layered.manifest, **added})
    row, base = json.loads(image(state, "list", "--json").stdout)["images"][::-1]
    assert row["layer"] == ["redis-tools", "wheel java21", "files of frames"]
    assert row["made_of"] == base["folder"]
    assert base["layer"] == []
    said = " ".join(image(state, "list").stdout.split())
    assert "debian-13-0123456789ab with redis-tools" in said
    assert "the 4 used last are kept" in said
    shown = image(state, "show", folder.name).stdout
    assert "debian-13-0123456789ab: redis-tools, wheel java21, files of frames" in shown
    assert "redis.service" in shown
    (folder / "disk.qcow2").write_bytes(b"other")
    assert "the next run that needs it builds it" in image(state, "verify", folder.name).stdout
    image(state, "rm", folder.name, "--yes")
    assert not folder.exists()
    assert (state / "images/debian-13-0123456789ab").is_dir()
