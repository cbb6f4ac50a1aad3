"""Make an image's tree of a Debian suite's packages, with mmdebstrap."""

from __future__ import annotations

import shutil
from pathlib import Path

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.events import Listener, Note
from labctl.guest import apt
from labctl.guest.recipe import Recipe
from labctl.guest.tree import write_file


def make_tree(
    tree: Path, suite: str, kernel: str, recipe: Recipe, deadline: Deadline, listener: Listener
) -> None:
    """Install a kernel's package and the recipe's into a new folder, with what they need."""
    spec = recipe.spec
    listener(Note(text=f"Installing {len(spec.packages) + 1} packages and what they need"))
    options = [f"--aptopt={option}" for option in apt.host_options(deadline)]
    options += [f"--dpkgopt=path-exclude={pattern}" for pattern in spec.exclude]
    # Before the kernel's package makes its initrd, which follows these files.
    staged = tree.with_name("files")
    staged.mkdir(exist_ok=True)
    write_files(staged, recipe)
    mmdebstrap = [
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        f"--include={','.join([kernel, *spec.packages])}",
        "--aptopt=APT::Install-Recommends false",
        # What is unpacked twice after a crash is thrown away anyway.
        "--dpkgopt=force-unsafe-io",
        *options,
        f"--essential-hook=sync-in '{staged}' /",
        suite,
        str(tree),
    ]
    sources = apt.sources_of(suite)
    process.run(
        [*mmdebstrap, "-"] if sources else mmdebstrap,
        stdin="\n".join(sources) + "\n" if sources else None,
        deadline=deadline,
        hint="Try 'apt-get update': the image is made from the package sources of this host.",
    )
    shutil.rmtree(staged, ignore_errors=True)


def write_files(root: Path, recipe: Recipe) -> None:
    """Write the recipe's own files below `root`."""
    for name, text in recipe.spec.files.items():
        write_file(root, name, text)
