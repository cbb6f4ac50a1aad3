"""Image recipes: `guest-images/NAME.yaml`, and the digest that stands for what they make."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from labctl.base import places, yamlfile
from labctl.base.errors import UsageError
from labctl.store.jsonfile import canonical

BUILDER = 1
"""Version of what `build` does with a recipe: raise it when the same recipe makes another image."""


def _inside_the_tree(path: str) -> str:
    if ".." in path.split("/"):
        raise ValueError("must not lead out of the image with '..'")
    return path


Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
AbsolutePath = Annotated[
    str, StringConstraints(pattern=r"^/[^\s]+$"), AfterValidator(_inside_the_tree)
]
FileName = Annotated[str, StringConstraints(pattern=r"^[\w@:-][\w@:.-]*$")]
UnitName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[\w@:-][\w@:.-]*\.(service|socket|timer|mount|automount|target|path)$"
    ),
]
UserName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]*$")]


class RecipeFile(yamlfile.FileModel):
    """What a recipe file may say."""

    description: str
    suite: Annotated[str, StringConstraints(pattern=r"^[a-z]+$")]
    kernel: Package
    packages: list[Package]
    size_mib: Annotated[int, Field(ge=512, le=65536)]
    command_line: str
    user: UserName
    binaries: dict[str, AbsolutePath]
    exclude: list[AbsolutePath] = []
    mask: list[UnitName] = []
    mask_generators: list[FileName] = []
    files: dict[AbsolutePath, str] = {}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe by its name. `digest` (SHA-256, hex) changes with all that goes into the image
    but the versions of packages, which the built image's manifest records."""

    name: str
    spec: RecipeFile

    @property
    def digest(self) -> str:
        parts = {
            "recipe": self.spec.model_dump(exclude={"description"}),
            "builder": BUILDER,
            "architecture": platform.machine(),
        }
        return hashlib.sha256(canonical(parts).encode()).hexdigest()


def recipe_names() -> list[str]:
    """The names of all recipes, labctl's and the lab folder's."""
    return list(places.data_files("guest-images"))


def load_recipe(name: str) -> Recipe:
    """The recipe of that name; raises UsageError naming the file, line and key of what is wrong."""
    files = places.data_files("guest-images")
    if name not in files:
        raise UsageError(f"no image recipe '{name}'", hint=yamlfile.nearest(name, files))
    return Recipe(name, yamlfile.load(RecipeFile, files[name]))
