"""Layers of packages and files on images that are there, with tools that only pretend. No guest is
started."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.events import Event, Note, silent
from labctl.base.paths import StatePaths
from labctl.guest import build, images
from labctl.guest.build import layer_plan
from labctl.guest.images import Image
from labctl.guest.kernels import read_kernel
from labctl.guest.layer import Brought, Build, Large, Layer, joined
from labctl.guest.layers import refuse_what_cannot_be_layered
from labctl.guest.recipe import Recipe

from .kernels import write_kernel
from .test_build import FAKES, MMDEBSTRAP, RECIPE, fake

TREE = f"""\
{MMDEBSTRAP}
cat "$KERNEL" > "$tree/boot/vmlinuz-6.1"
mkdir -p "$tree/usr/lib/systemd/system"
echo > "$tree/usr/lib/systemd/system/fio.service"
echo VERSION_CODENAME=bookworm > "$tree/usr/lib/os-release"
"""

# What apt, and a build's commands, do to a tree; the arguments are those of install_root.sh.
UNSHARE = """\
printf '%s\\n' "$*" >> "$LOG/unshare"
while [ "$1" != sh ]; do shift; done
shift 2; tree=$1; shift
case "$*" in
*"apt-cache pkgnames"*) printf '%s\\n' redis-server redis-tools gcc ;;
*"install --yes gcc"*) echo gcc > "$tree/usr/bin/gcc" ;;
*"install --yes"*)
    units=$tree/usr/lib/systemd/system
    for unit in redis.service redis@.service redis.timer; do echo > "$units/$unit"; done
    mkdir -p "$tree/etc/init.d" "$tree/usr/lib/sysctl.d" "$tree/usr/lib/systemd/system-generators"
    echo > "$tree/usr/share/man/man1/redis.1.gz"
    echo > "$tree/etc/init.d/old-style"
    echo vm.overcommit_memory=1 > "$tree/usr/lib/sysctl.d/30-redis.conf"
    echo > "$tree/usr/lib/systemd/system-generators/redis-generator"
    echo this-machine > "$tree/etc/machine-id" ;;
*setpriv*)
    cd "$tree$4"
    while [ "$1" != --no-new-privs ]; do shift; done
    shift; exec "$@" ;;
esac
"""

COMPILED = Brought(
    workload="frames",
    files={"frames.c": b"int main;", "go.sh": b"#!/bin/sh\n", "elf": b"\x7fELF\xff"},
    build=Build(
        argv=(("sh", "-c", "mkdir out; cp frames.c out/data; cp frames.c frames; echo > junk"),),
        outputs=("frames", "o*"),
        packages=("gcc",),
    ),
)
REDIS = Layer(packages=("redis-tools", "redis-server"))
WHERE = "usr/local/lib/labctl/workloads"


@pytest.fixture
def base(places: StatePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    for folder in ("bin", "log"):
        (tmp_path / folder).mkdir()
    pretended = {"mmdebstrap": TREE, "unshare": UNSHARE, "chown": 'echo "$@" > "$LOG/chown"'}
    for name, script in (FAKES | pretended).items():
        fake(tmp_path, name, script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("KERNEL", str(write_kernel(tmp_path / "packaged", "6.1")))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return build.build(RECIPE, places, silent)


def failing(*argv: str, outputs: tuple[str, ...] = ("a",)) -> Layer:
    made = Build(argv=(argv,), outputs=outputs)
    return Layer(brought=(Brought(workload="frames", files={}, build=made),))


def test_only_a_layer_changes_the_digest_and_only_by_what_is_in_it() -> None:
    assert RECIPE.with_layer(Layer()).digest == RECIPE.digest
    assert RECIPE.with_layer(REDIS).digest != RECIPE.digest
    turned = Layer(packages=tuple(reversed(REDIS.packages)))
    assert RECIPE.with_layer(turned).digest == RECIPE.with_layer(REDIS).digest
    assert COMPILED.build is not None
    digests = [
        RECIPE.with_layer(Layer(brought=(one,))).digest
        for one in (
            COMPILED,
            replace(COMPILED, workload="other"),
            replace(COMPILED, files={"frames.c": b"int main; "}),
            replace(COMPILED, build=None),
            replace(COMPILED, build=replace(COMPILED.build, outputs=("frames",))),
            replace(COMPILED, build=replace(COMPILED.build, argv=(("true",),))),
            replace(COMPILED, build=replace(COMPILED.build, packages=())),
        )
    ]
    assert len(set(digests)) == len(digests)


def test_workloads_share_one_layer_whatever_their_order() -> None:
    parts = [(("redis-tools",), COMPILED), (("redis-tools", "nginx"), None)]
    assert joined(parts) == joined(reversed(parts))
    assert joined(parts).packages == ("nginx", "redis-tools")
    assert not joined([((), None)])


def test_what_packages_would_start_is_masked_and_what_was_there_is_not(
    places: StatePaths, base: Image
) -> None:
    image = build.build(RECIPE.with_layer(REDIS), places, silent)
    units = image.tree / "etc/systemd/system"
    for unit in ("redis.service", "redis@.service", "redis.timer", "old-style.service"):
        assert os.readlink(units / unit) == "/dev/null"
    assert os.readlink(image.tree / "etc/sysctl.d/30-redis.conf") == "/dev/null"
    generators = image.tree / "etc/systemd/system-generators"
    assert os.readlink(generators / "redis-generator") == "/dev/null"
    assert not (units / "fio.service").is_symlink()
    assert image.layer["masked"] == [
        "sysctl.d/30-redis.conf",
        "systemd/system-generators/redis-generator",
        "old-style.service",
        "redis.service",
        "redis.timer",
        "redis@.service",
    ]


def test_a_script_finds_folders_of_manual_pages(places: StatePaths, base: Image) -> None:
    """Java's links its pages there, and the image is made without any."""
    assert not (base.tree / "usr/share/man").exists()
    image = build.build(RECIPE.with_layer(REDIS), places, silent)
    assert (image.tree / "usr/share/man/man1/redis.1.gz").exists()


def test_the_base_is_neither_changed_nor_built_again(places: StatePaths, base: Image) -> None:
    before = images.content_sha256(base.dir)
    image = build.build(RECIPE.with_layer(REDIS), places, silent)
    assert images.content_sha256(base.dir) == before
    assert image.manifest["made_of"] == base.dir.name
    assert image.kernel.samefile(base.kernel)
    assert not (image.tree / "usr/bin/fio").samefile(base.tree / "usr/bin/fio")
    assert image.command_line.split()[1:] == base.command_line.split()[1:]
    assert image.command_line != base.command_line
    assert (image.tree / "etc/machine-id").read_bytes() == b""
    assert not (image.tree / "usr/sbin/policy-rc.d").exists()
    assert not (image.tree / "etc/postgresql-common").exists()


def files_alone(text: bytes) -> Recipe:
    return RECIPE.with_layer(Layer(brought=(Brought(workload="w", files={"w.sh": text}),)))


def test_a_layer_of_files_alone_shares_the_bases_files(places: StatePaths, base: Image) -> None:
    before = images.content_sha256(base.dir)
    image = build.build(files_alone(b"#!/bin/sh\n"), places, silent)
    assert (image.tree / "usr/bin/fio").samefile(base.tree / "usr/bin/fio")
    assert (image.tree / WHERE / "w/w.sh").read_bytes() == b"#!/bin/sh\n"
    assert images.content_sha256(base.dir) == before


def test_of_layers_with_files_those_used_last_are_kept(places: StatePaths, base: Image) -> None:
    packages = build.build(RECIPE.with_layer(REDIS), places, silent)
    made = [
        build.build(files_alone(b"%d" % number), places, silent)
        for number in range(images.LAYERS_KEPT)
    ]
    for age, image in enumerate([packages, *made]):
        os.utime(image.dir / images.MANIFEST, (age, age))
    images.mark_used(made[0])
    heard: list[Event] = []
    last = build.build(files_alone(b"last"), places, heard.append)
    kept = {base.dir, packages.dir, last.dir, made[0].dir, *(one.dir for one in made[2:])}
    assert {one.dir for one in images.list_images(places)} == kept
    said = [event.text for event in heard if isinstance(event, Note)]
    assert any(made[1].dir.name in text for text in said)


def test_a_layer_is_made_once_and_can_be_removed(places: StatePaths, base: Image) -> None:
    recipe = RECIPE.with_layer(REDIS)
    plan = layer_plan(recipe, places)
    assert plan is not None
    assert plan.says == "the image 'small' with redis-server, redis-tools: built first."
    heard: list[Event] = []
    image = build.build(recipe, places, heard.append)
    assert [e.text for e in heard if isinstance(e, Note) and e.text.startswith("Installing")] == [
        "Installing 2 packages (redis-server, redis-tools) and what they need"
    ]
    plan = layer_plan(recipe, places)
    assert plan is not None
    assert plan.says.endswith("built already.")
    assert layer_plan(RECIPE, places) is None
    heard.clear()
    assert build.build(recipe, places, heard.append) == image
    assert heard == []
    images.remove(image, places)
    assert [image.dir for image in images.list_images(places)] == [base.dir]
    assert images.verify(base) == []


def test_of_a_build_the_outputs_stay_and_no_compiler(
    places: StatePaths, base: Image, tmp_path: Path
) -> None:
    image = build.build(RECIPE.with_layer(Layer(brought=(COMPILED,))), places, silent)
    folder = image.tree / WHERE / "frames"
    assert sorted(path.name for path in folder.iterdir()) == [
        "elf",
        "frames",
        "frames.c",
        "go.sh",
        "out",
    ]
    assert (folder / "out/data").read_bytes() == b"int main;"
    for program in ("go.sh", "elf"):
        assert (folder / program).stat().st_mode & 0o777 == 0o555
    assert (folder / "frames.c").stat().st_mode & 0o777 == 0o444
    assert not (image.tree / "usr/bin/gcc").exists()
    assert not (image.dir / "build").exists()
    (step,) = [x for x in (tmp_path / "log/unshare").read_text().splitlines() if "setpriv" in x]
    assert "--net" in step
    assert "--reuid=64917" in step
    assert images.verify(image) == []
    (folder / "out/data").write_bytes(b"other")
    assert "'frames'" in " ".join(images.verify(image))


def test_an_unknown_package_is_told_with_the_nearest(places: StatePaths, base: Image) -> None:
    recipe = RECIPE.with_layer(Layer(packages=("redis-tool", "redis-server-")))
    with pytest.raises(UsageError) as caught:
        build.build(recipe, places, silent)
    assert caught.value.message.splitlines() == [
        "no package 'redis-server-' in bookworm; did you mean 'redis-server'?",
        "no package 'redis-tool' in bookworm; did you mean 'redis-tools'?",
    ]
    assert [path.name for path in places.images.iterdir() if path.is_dir()] == [base.dir.name]


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (
            failing("sh", "-c", "echo no such header >&2; exit 3"),
            "workload 'frames': build: sh ended with status 3: no such header",
        ),
        (
            failing("sh", "-c", "yes | head -c 1000000; printf '\\033[2Jall\\tgone'; exit 2"),
            "ended with status 2: y; y; y; y; \N{REPLACEMENT CHARACTER}[2Jall\tgone",
        ),
        (failing("no-such-program"), "build: no-such-program ended with status 127: "),
        (failing("true"), "workload 'frames': build: it did not create 'a'"),
        (failing("ln", "-s", "/etc/passwd", "a"), "build: 'a' is a link"),
        (failing("sh", "-c", "ln -s /etc a", outputs=("a/passwd",)), "is a link"),
        (failing("mkfifo", "a"), "build: 'a' can't be copied"),
        (failing("sh", "-c", "mkdir a; mkfifo a/b"), "build: 'a' can't be copied"),
    ],
)
def test_a_build_that_goes_wrong_is_told_and_leaves_nothing(
    places: StatePaths, base: Image, layer: Layer, said: str
) -> None:
    with pytest.raises(BrokenError) as caught:
        build.build(RECIPE.with_layer(layer), places, silent)
    assert said in caught.value.message
    assert [path.name for path in places.images.iterdir() if path.is_dir()] == [base.dir.name]


def test_a_build_gives_no_rights_away(places: StatePaths, base: Image) -> None:
    layer = failing("sh", "-c", "mkdir a; echo > a/b; chmod 6755 a a/b", outputs=("a", "a/b"))
    image = build.build(RECIPE.with_layer(layer), places, silent)
    for name in ("a", "a/b"):
        assert (image.tree / WHERE / "frames" / name).stat().st_mode & 0o7000 == 0


def test_files_belong_into_their_workloads_folder() -> None:
    for name in ("../other", "/etc/passwd", ""):
        for one in (
            Brought(workload="a", files={name: b""}),
            Brought(workload="a", files={}, build=Build(argv=(), outputs=(name,))),
        ):
            with pytest.raises(UsageError, match="is not in"):
                refuse_what_cannot_be_layered(RECIPE, Layer(brought=(one,)))


def test_a_kernel_of_ones_own_goes_on_top_of_the_layer(
    places: StatePaths, base: Image, tmp_path: Path
) -> None:
    kernel = read_kernel(write_kernel(tmp_path / "k/kernel"), None, tmp_path)
    image = build.build(RECIPE.with_layer(REDIS).with_kernel(kernel), places, silent)
    layered = images.find(RECIPE.with_layer(REDIS), places)
    assert layered is not None
    assert image.manifest["made_of"] == layered.dir.name
    assert layered.manifest["made_of"] == base.dir.name
    assert image.layer == layered.layer
    assert image.given_kernel is not None
    assert len({base.digest, layered.digest, image.digest}) == 3


def test_a_large_file_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bench"
    path.write_bytes(b"one")
    large = Large(path=path, sha256=hashlib.sha256(b"one").hexdigest())
    assert large.read() == b"one"
    assert Brought(workload="a", files={"bench": large}).to_json() == {
        "files": {"bench": large.sha256}
    }
    path.write_bytes(b"two")
    with pytest.raises(HostError, match="changed since the run was planned"):
        large.read()
    path.unlink()
    with pytest.raises(HostError, match="No such file"):
        large.read()
