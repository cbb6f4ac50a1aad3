"""Programs and packages that don't exist are found by the plan."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest

from labctl.base import process
from labctl.base.errors import UsageError
from labctl.base.paths import StatePaths
from labctl.base.yamltext import YamlMapping
from labctl.guest import images
from labctl.guest.layer import Brought, Layer
from labctl.guest.recipe import Recipe, load_recipe
from labctl.run.planning import programs_there
from labctl.run.planning.programs_there import check_programs
from labctl.workloads.declarations import declare
from labctl.workloads.registry import workload
from labctl.workloads.workload import Workload
from tests.unit.elf_files import elf_file

RECIPE = load_recipe("debian-13")
APT = """\
case $1 in
  pkgnames) printf 'redis-tools\\nredis-server\\n';;
  show) printf 'Package: redis-tools\\nVersion: 1\\n\\nPackage: gcc\\n'; exit 100;;
esac
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StatePaths:
    monkeypatch.setattr(programs_there, "LISTS", tmp_path / "lists")
    return StatePaths(tmp_path / "state")


def program(*command: str, packages: tuple[str, ...] = ()) -> Workload:
    keys = {"description": "mine", "primary": "elapsed", "trial": {"kind": "once"}}
    given = {**keys, "command": list(command), "packages": list(packages)}
    return declare("mine", YamlMapping(given), Path("mine.yaml"))


def built(recipe: Recipe, places: StatePaths, *programs: str) -> None:
    """An image with these programs, and no more than a plan reads of one."""
    folder = images.image_dir(recipe, places)
    for name in programs:
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        # Links of a tree lead to places that this host may not have.
        (folder / "tree" / name).symlink_to("/nowhere/at/all")
    manifest = {"name": recipe.name, "digest": recipe.digest, "command_line": ""}
    (folder / "manifest.json").write_text(
        json.dumps({**manifest, "files": {}, "binaries": {}, "packages": {}})
    )


def test_a_program_that_the_image_has_is_nothing_to_say(places: StatePaths) -> None:
    built(RECIPE, places, "usr/bin/openssl", "opt/bench")
    for command in ("openssl", "/usr/bin/openssl", "/opt/bench"):
        assert check_programs({"mine": program(command)}, RECIPE, places) == ()


def test_a_program_that_the_image_lacks_is_refused_by_the_plan(places: StatePaths) -> None:
    built(RECIPE, places, "usr/bin/openssl")
    with pytest.raises(UsageError, match="'opensl' was not found in the image 'debian-13'") as why:
        check_programs({"mine": program("opensl", "speed")}, RECIPE, places)
    assert "--package NAME" in str(why.value.hint)


def test_the_remedy_names_the_package_or_the_file_that_this_host_has(
    places: StatePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(RECIPE, places, "usr/bin/openssl")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench").touch()
    with pytest.raises(UsageError) as why:
        check_programs({"mine": program("./bench")}, RECIPE, places)
    assert "files: {bench: ./bench}, command: ['{{ files }}/bench']" in str(why.value.hint)
    monkeypatch.setattr(programs_there.shutil, "which", lambda name: f"/usr/bin/{name}")
    real = process.run
    script = 'echo "wrk: /usr/bin/wrk"'
    monkeypatch.setattr(
        process, "run", lambda argv, **given: real(["sh", "-c", script, *argv], **given)
    )
    with pytest.raises(UsageError) as why:
        check_programs({"mine": program("wrk")}, RECIPE, places)
    assert "--package wrk " in str(why.value.hint)


def test_a_program_for_newer_libraries_is_refused_with_the_image_that_has_them(
    places: StatePaths,
) -> None:
    newer, older = RECIPE, load_recipe("debian-12")
    for recipe, version in ((newer, "GLIBC_2.41"), (older, "GLIBC_2.36")):
        built(recipe, places, "usr/bin/openssl")
        libc = images.image_dir(recipe, places) / "tree/usr/lib/x86_64-linux-gnu/libc.so.6"
        libc.parent.mkdir(parents=True)
        libc.write_bytes(elf_file(soname="libc.so.6", defines=("GLIBC_2.34", version)))
    data = elf_file(needed=("libc.so.6",), needs={"libc.so.6": ("GLIBC_2.41", "WEAK")})
    keys = {"description": "mine", "primary": "elapsed", "trial": {"kind": "once"}}
    given = {**keys, "files": {"w": {"base64": b64encode(data).decode()}}}
    mine = declare("mine", YamlMapping({**given, "command": ["{{ files }}/w"]}), Path("mine.yaml"))
    assert check_programs({"mine": mine}, newer, places) == ()
    with pytest.raises(UsageError, match=r"w needs GLIBC_2\.41 of libc\.so\.6") as why:
        check_programs({"mine": mine}, older, places)
    assert "The image 'debian-13' has it" in str(why.value.hint)
    images.remove(images.get("debian-13", places), places)
    with pytest.raises(UsageError, match="is older") as why:
        check_programs({"mine": mine}, older, places)
    assert "link it statically" in str(why.value.hint)


def test_what_a_package_may_bring_is_looked_for_once_it_is_there(places: StatePaths) -> None:
    built(RECIPE, places, "usr/bin/openssl")
    mine = {"mine": program("wrk", packages=("wrk",))}
    layered = RECIPE.with_layer(Layer(packages=("wrk",)))
    (said,) = check_programs(mine, layered, places)
    assert said.startswith(
        "'wrk': checked in the image 'debian-13' after the sweep has built it with wrk"
    )
    built(layered, places, "usr/bin/other")
    with pytest.raises(UsageError, match="'wrk' was not found"):
        check_programs(mine, layered, places)


def test_without_an_image_only_strangers_are_told(places: StatePaths) -> None:
    ours = workload("sysbench-cpu")
    assert check_programs({"sysbench-cpu": ours}, RECIPE, places) == ()
    layered = RECIPE.with_layer(Layer(packages=("sysbench",)))
    built(RECIPE, places, "usr/bin/openssl")
    assert check_programs({"sysbench-cpu": ours}, layered, places) == ()
    assert check_programs({"redis-get": workload("redis-get")}, layered, places) == ()
    (images.image_dir(RECIPE, places) / "manifest.json").unlink()
    (said,) = check_programs({"mine": program("foo"), "sysbench-cpu": ours}, RECIPE, places)
    assert said.startswith("'foo': checked in the image 'debian-13' after the sweep has built it")


def test_a_program_of_the_workload_s_own_files_is_not_looked_for(places: StatePaths) -> None:
    built(RECIPE, places, "usr/bin/openssl")
    assert check_programs({"mine": program("{{ files }}/bench")}, RECIPE, places) == ()


def own_script(packages: tuple[str, ...] = ()) -> Workload:
    keys = {"description": "mine", "primary": "elapsed", "trial": {"kind": "once"}}
    given = {**keys, "command": ["{{ files }}/w"], "packages": list(packages)}
    mapping = YamlMapping({**given, "files": {"w": "#!/usr/bin/ruby\n"}})
    mapping.lines = {}
    return declare("mine", mapping, Path("mine.yaml"))


def test_what_a_brought_file_needs_is_looked_for_in_the_image_below_its_layer(
    places: StatePaths,
) -> None:
    layered = RECIPE.with_layer(Layer(brought=(Brought(workload="mine", files={"w": b""}),)))
    built(RECIPE, places, "usr/bin/openssl")
    missing = "missing in the image 'debian-13' and among its files: the interpreter /usr/bin/ruby"
    with pytest.raises(UsageError, match=missing) as why:
        check_programs({"mine": own_script()}, layered, places)
    assert "--package" in str(why.value.hint)
    assert "'packages' or 'files'" in str(why.value.hint)
    with pytest.raises(UsageError, match=missing) as why:
        check_programs({"mine": own_script()}, layered, places, {"w": Path("/home/me/w")})
    assert "'files'" not in str(why.value.hint), "a command line has no file"
    built(RECIPE, places, "usr/bin/ruby")
    assert check_programs({"mine": own_script()}, layered, places) == ()


def test_what_a_package_may_bring_for_a_file_is_noted(places: StatePaths) -> None:
    layered = RECIPE.with_layer(
        Layer(packages=("ruby",), brought=(Brought(workload="mine", files={"w": b""}),))
    )
    (said,) = check_programs({"mine": own_script(("ruby",))}, layered, places)
    assert said.startswith("'w': checked in the image 'debian-13' after the sweep has built it")
    built(RECIPE, places, "usr/bin/openssl")
    (said,) = check_programs({"mine": own_script(("ruby",))}, layered, places)
    assert said.startswith("the interpreter /usr/bin/ruby of w: checked in the image 'debian-13'")


@pytest.fixture
def apt(tmp_path: Path, places: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of the image's suite whose apt knows two packages."""
    assert places.images != tmp_path
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/mirror.example_debian_dists_trixie_main_binary-amd64_Packages").touch()
    monkeypatch.setattr(programs_there, "host_sources", lambda suite: [f"deb x {suite} main"])
    real = process.run
    monkeypatch.setattr(
        process, "run", lambda argv, **given: real(["sh", "-c", APT, *argv], **given)
    )


@pytest.mark.usefixtures("apt")
def test_a_package_that_apt_does_not_know_is_refused_with_the_nearest(places: StatePaths) -> None:
    mine = program("redis-benchmark", packages=("redis-tols", "gcc"))
    with pytest.raises(UsageError, match="no package 'redis-tols'") as why:
        check_programs({"mine": mine}, RECIPE, places)
    assert why.value.hint == "Did you mean 'redis-tools'?"
    known = program("redis-benchmark", packages=("redis-tools",))
    assert check_programs({"mine": known}, RECIPE, places)


@pytest.mark.usefixtures("apt")
def test_a_package_that_only_the_image_s_release_may_have_is_named(
    places: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has another release than the image."""
    monkeypatch.setattr(programs_there, "host_sources", lambda suite: [])
    mine = program("redis-benchmark", packages=("redis-tols",))
    first, *_ = check_programs({"mine": mine}, RECIPE, places)
    assert first.startswith("package 'redis-tols' is not in this host's package lists; those of")
    assert first.endswith("Did you mean 'redis-tools'?")
    built(RECIPE, places, "usr/bin/redis-benchmark")
    assert check_programs({"mine": mine}, RECIPE, places) == ()


@pytest.mark.usefixtures("apt")
def test_without_apt_s_lists_nothing_is_said_of_packages(
    tmp_path: Path, places: StatePaths
) -> None:
    for path in (tmp_path / "lists").iterdir():
        path.unlink()
    assert check_programs({"mine": program("x", packages=("redis-tols",))}, RECIPE, places)
