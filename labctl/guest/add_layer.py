"""Add a layer to an image: packages and files for a study's workloads, on a copy of its tree.

Copied, not linked: packages' scripts change files in place (/etc/passwd, logs, dpkg's lists), and
the base's own tree must stay what its digest says.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path, PurePosixPath
from typing import Any

from labctl.base.deadline import Deadline
from labctl.base.errors import UsageError
from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths
from labctl.guest import images, inventory
from labctl.guest.bring import bring
from labctl.guest.disk import fitting_mib, make_disk
from labctl.guest.images import Image
from labctl.guest.layer import Layer
from labctl.guest.packages import counted, install
from labctl.guest.recipe import Recipe
from labctl.guest.starters import mask_added, starters
from labctl.guest.tree import copy_tree

_DEADLINE_S = 1800.0
_NAMESPACE = uuid.UUID("1f7ac7a4-6a0e-4c63-8f7d-3f4f4f0c9a55")
"""UUIDs of root file systems are version 5 of the image's digest in this namespace."""


def add_layer_in(
    folder: Path, base: Image, recipe: Recipe, places: StatePaths, listener: Listener
) -> dict[str, Any]:
    """Make everything of the layered image in a folder; return its manifest. Raises UsageError for
    a package that there is none of, BrokenError for files that can't be built."""
    layer = recipe.layer
    assert layer is not None
    deadline = Deadline.after(_DEADLINE_S, f"adding {layer.says} to the image '{base.name}'")
    tree = folder / images.TREE
    listener(Note(text=f"Copying the files of the image '{base.name}'"))
    copy_tree(base.tree, tree, deadline)
    tree.chmod(0o755)  # the root folder of the disk that is made of it
    before = starters(tree)
    packages = dict(base.manifest["packages"])
    if layer.packages:
        listener(Note(text=f"Installing {counted(layer.packages)} and what they need"))
        install(tree, layer.packages, recipe, deadline)
        packages = inventory.installed_packages(tree, deadline)
    masked = mask_added(tree, before)
    contents = {
        one.workload: bring(tree, one, recipe, places, deadline, listener) for one in layer.brought
    }
    listener(Note(text="Making the disk"))
    tree_bytes = inventory.tree_bytes(tree)
    root = str(uuid.uuid5(_NAMESPACE, recipe.digest))
    size_mib = fitting_mib(tree_bytes, recipe.spec.size_mib)
    make_disk(tree, folder / images.DISK, size_mib, root, deadline)
    for file in filter(None, (base.kernel, base.initrd)):
        os.link(file.resolve(), folder / file.name)
    was = base.manifest["packages"]
    return {
        **base.manifest,
        "digest": recipe.digest,
        "command_line": _command_line(base.command_line, root),
        "files": images.file_records(folder),
        "tree_bytes": tree_bytes,
        # What a layer needs may be newer than what the base has.
        "binaries": inventory.programs(tree, recipe.spec.binaries),
        "packages": packages,
        "made_of": base.dir.name,
        "layer": {
            **layer.to_json(),
            "added": {name: v for name, v in packages.items() if was.get(name) != v},
            "masked": masked,
            "contents": contents,
        },
    }


def refuse_what_cannot_be_layered(recipe: Recipe, layer: Layer) -> None:
    """Raise UsageError for an image whose packages labctl can't add to, and for files that would
    not lie in their workload's folder."""
    cloud = recipe.spec.cloud_image
    if layer.packages and cloud is not None and cloud.packages_by != "apt":
        raise UsageError(
            f"the image '{recipe.name}' gets no packages: {layer.says} can't be added",
            hint="Choose an image of Debian or Ubuntu.",
        )
    for one in layer.brought:
        for name in (one.workload, *one.files, *(one.build.outputs if one.build else ())):
            path = PurePosixPath(name)
            if path.is_absolute() or not path.parts or ".." in path.parts:
                raise UsageError(
                    f"workload '{one.workload}': '{name}' does not lie in the workload's folder",
                    hint="Give a path relative to it, without '..'.",
                )


def _command_line(line: str, root: str) -> str:
    _, *rest = line.split()
    return " ".join([f"root=UUID={root}", *rest])
