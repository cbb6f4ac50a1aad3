"""Run `labctl image`: fetch, build, list, show, verify and remove guest images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.base.errors import ExitCode, LabctlError, UsageError
from labctl.cli.parts.common import Group, console, print_json, state_paths

if TYPE_CHECKING:
    from labctl.base.events import Event
    from labctl.guest.images import Image

DEFAULT = "debian-13"

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("image", cls=Group)
def command() -> None:
    """Fetch, build, list, verify or remove guest images."""


@command.command()
@click.argument("name", default=DEFAULT)
@_json
@click.pass_context
def build(context: click.Context, name: str, as_json: bool) -> None:
    """Build the image of the recipe NAME (debian-13), unless it is there already."""
    from labctl.guest.build import build as build_image
    from labctl.guest.recipe import load_recipe

    image = build_image(load_recipe(name), state_paths(context), _say)
    if as_json:
        print_json(_summary(image))
    else:
        click.echo(f"{image.dir.name} is at {image.dir}")


@command.command()
@click.argument("name")
@_json
@click.pass_context
def fetch(context: click.Context, name: str, as_json: bool) -> None:
    """Download the cloud image of the recipe NAME, and verify it."""
    from labctl.guest.fetch import fetch as fetch_image
    from labctl.guest.images import images_lock
    from labctl.guest.recipe import load_recipe

    places = state_paths(context)
    cloud_image = load_recipe(name).spec.cloud_image
    if cloud_image is None:
        raise UsageError(
            f"the recipe '{name}' has no cloud image: it is built from packages",
            hint=f"Build it with 'labctl image build {name}'.",
        )
    with images_lock(places):
        fetched = fetch_image(cloud_image, places, _say)
    if as_json:
        print_json({"path": str(fetched.path), **fetched.to_json()})
    else:
        signer = f"signed by {fetched.signed_by}" if fetched.signed_by else "as the recipe says"
        click.echo(f"{fetched.path}: {fetched.checksum}, {signer}")


@command.command("list")
@_json
@click.pass_context
def list_(context: click.Context, as_json: bool) -> None:
    """List the built images, and the recipes without a built image."""
    from labctl.guest import images
    from labctl.guest.recipe import load_recipe, recipe_names
    from labctl.report.parts import bare_table

    places = state_paths(context)
    recipes = recipe_names()
    current: dict[str, Path] = {}
    broken: dict[str, str] = {}
    for name in recipes:
        try:
            current[name] = images.image_dir(load_recipe(name), places)
        except LabctlError as error:
            broken[name] = error.message
    built = images.list_images(places)
    rows = [
        {
            **_summary(image),
            "current": image.dir in current.values(),
            "recipe": image.name in recipes,
        }
        for image in built
    ]
    missing = [name for name, folder in current.items() if folder not in {i.dir for i in built}]
    if as_json:
        print_json({"images": rows, "not_built": missing, "broken": broken})
        return
    table = bare_table("", "image", "built", "disk", "tree", "recipe")
    table.columns[0].overflow = "fold"
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(
            row["folder"],
            row["built_at"][:10],
            _mib(row["disk_bytes"]),
            _mib(row["tree_bytes"]),
            _state(row),
        )
    for name in missing:
        table.add_row(name, "not built", "", "", "")
    console(listing=True).print(table)
    if any(image.layer.get("workloads") for image in built):
        click.echo(f"Of images with files, the {images.LAYERS_KEPT} used last are kept.")
    for message in broken.values():
        click.echo(message, err=True)


@command.command()
@click.argument("name", default=DEFAULT)
@_json
@click.pass_context
def show(context: click.Context, name: str, as_json: bool) -> None:
    """Show the contents of the image NAME: an image's folder, or the name of its recipe."""
    from labctl.guest import images

    image = images.get(name, state_paths(context))
    if as_json:
        print_json({"path": str(image.dir), **image.manifest})
        return
    manifest = image.manifest
    lines = {
        "image": image.dir.name,
        "what": manifest["description"],
        "path": str(image.dir),
        "digest": image.digest,
        "built": f"{manifest['built_at']} in {manifest['build_s']:g} s",
        "disk": _mib(manifest["files"]["disk.qcow2"]["bytes"]),
        "tree": _mib(manifest["tree_bytes"]),
        "kernel": _kernel(image),
        "command line": image.command_line,
        "packages": f"{len(manifest['packages'])} (--json lists them with their versions)",
    }
    if image.layer:
        lines["layer on"] = f"{manifest['made_of']}: {', '.join(_added(image))}"
        lines["masked"] = ", ".join(image.layer["masked"]) or "nothing: the layer has no services"
    if cloud_image := manifest.get("cloud_image"):
        lines["made of"] = f"{cloud_image['url']} ({cloud_image['checksum'][:23]}…)"
        lines["signed by"] = cloud_image["signed_by"] or "nobody: the recipe has its checksum"
    for key, value in lines.items():
        click.echo(f"{key:13} {value}")
    for program, record in image.binaries.items():
        click.echo(f"{program:13} {record['path']}  sha256 {record['sha256'][:16]}…")


@command.command()
@click.argument("name", default=DEFAULT)
@_json
@click.pass_context
def verify(context: click.Context, name: str, as_json: bool) -> int:
    """Check that the image NAME has not changed since it was built; exit with 1 if it has."""
    from labctl.guest import images

    image = images.get(name, state_paths(context))
    problems = images.verify(image)
    if as_json:
        print_json({"image": image.dir.name, "problems": problems})
    elif problems:
        for problem in problems:
            click.echo(problem)
        again = f"labctl image build {image.name}"
        if image.layer or image.given_kernel:
            again = "the next run that needs it builds it"
        click.echo(f"Build it again: labctl image rm {image.dir.name}; {again}")
    else:
        click.echo(f"{image.dir.name} has not changed since it was built")
    return ExitCode.FOUND if problems else ExitCode.DONE


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_json
@click.pass_context
def rm(context: click.Context, name: str, yes: bool, as_json: bool) -> None:
    """Remove the image NAME, its tree and its prepared boots."""
    from labctl.guest import images

    places = state_paths(context)
    image = images.get(name, places)
    if not yes:
        click.confirm(f"Remove {image.dir}?", abort=True)
    images.remove(image, places)
    if as_json:
        print_json({"schema": 1, "removed": image.dir.name, "path": str(image.dir)})
    else:
        click.echo(f"{image.dir.name} is removed")


def _say(event: Event) -> None:
    from labctl.base.events import Note, Warned

    match event:
        case Note(text=text):
            click.echo(text, err=True)
        case Warned(text=text):
            click.echo(f"Warning: {text}", err=True)


def _state(row: dict[str, Any]) -> str:
    added = [row["kernel"]["file"]] if row["kernel"] is not None else []
    added += row["layer"]
    if added:
        return f"{row['made_of']} with {', '.join(added)}"
    if row["current"]:
        return "as it is now"
    return "has changed" if row["recipe"] else "not here"


def _kernel(image: Image) -> str:
    if (given := image.given_kernel) is not None:
        return f"{given['release']}, from {given['file']}"
    return next((p for p in image.manifest["packages"] if p.startswith("linux-image-6")), "?")


def _added(image: Image) -> list[str]:
    """Return a layer's packages, as they were asked for, and whose files and wheels it brings."""
    layer = image.layer
    brought = layer.get("workloads", {})
    files = [f"files of {workload}" for workload in brought]
    wheels = [f"wheel {name}" for told in brought.values() for name in told.get("wheels", {})]
    return [*layer.get("packages", []), *wheels, *files]


def _summary(image: Image) -> dict[str, Any]:
    return {
        "name": image.name,
        "folder": image.dir.name,
        "path": str(image.dir),
        "digest": image.digest,
        "built_at": image.manifest["built_at"],
        "disk_bytes": image.manifest["files"][image.disk.name]["bytes"],
        "tree_bytes": image.manifest["tree_bytes"],
        "kernel": image.given_kernel,
        "layer": _added(image),
        "made_of": image.manifest.get("made_of"),
    }


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"
