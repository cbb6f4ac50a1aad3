"""Load image recipes, `guest-images/NAME.yaml`, and compute the digest of their results."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from labctl.base import paths, yaml
from labctl.base.errors import UsageError, nearest
from labctl.base.quantities import SIZE
from labctl.base.yamltext import YamlMapping
from labctl.guest.kernels import GivenKernel, read_kernel
from labctl.guest.layer import Layer
from labctl.store.jsonfile import canonical

BUILDER = 1
"""Version of `build`: raise it when the same recipe makes another image."""


def _inside_the_tree(path: str) -> str:
    if ".." in path.split("/"):
        raise ValueError("must not leave the image with '..'")
    return path


def url_problem(url: str) -> str | None:
    """Return why the URL is refused for downloads; None if it is allowed.

    With plain HTTP, anyone on the path can see and change the data; on this machine there is
    nobody.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        return f"is not a URL ({error})"
    if parts.scheme == "https" and host:
        return None
    if parts.scheme == "http" and host in ("127.0.0.1", "::1", "localhost"):
        return None
    return "must begin with https:// (http:// only for this machine itself)"


def _downloadable(url: str) -> str:
    if problem := url_problem(url):
        raise ValueError(problem)
    return url


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
Url = Annotated[str, StringConstraints(pattern=r"^\S+$"), AfterValidator(_downloadable)]
Digest = Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$")]
Fingerprint = Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{40}$")]
UserName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]*$")]


class CloudImage(yaml.FileModel):
    """Identify an official cloud image.

    Either `digest`, or `checksums` signed by a key in the keyring file `signed_by` (by the key of
    `fingerprint` if one is given): with the detached `signature`, or clear-signed without one.
    `keyring_from`: the source of the keyring, in words.
    """

    url: Url
    digest: Digest | None = None
    checksums: Url | None = None
    signature: Url | None = None
    signed_by: Annotated[str, StringConstraints(min_length=1)] | None = None
    fingerprint: Fingerprint | None = None
    keyring_from: str | None = None
    format: Literal["qcow2", "raw"] = "qcow2"
    packages_by: Literal["apt", "dnf"] = "apt"
    """Tool that installs packages in it."""


class RecipeFile(yaml.FileModel):
    """Hold the contents of a recipe file: an image made from a suite's packages (`suite`,
    `kernel`), or a `cloud_image` with packages added; `kernel_file` in place of either's kernel."""

    description: str
    suite: Annotated[str, StringConstraints(pattern=r"^[a-z]+$")] | None = None
    kernel: Package | None = None
    cloud_image: CloudImage | None = None
    kernel_file: AbsolutePath | None = None
    initrd_file: AbsolutePath | None = None
    packages: list[Package]
    size_mib: Annotated[int, Field(ge=512, le=65536), SIZE]
    command_line: str
    user: UserName
    binaries: dict[str, AbsolutePath]
    exclude: list[AbsolutePath] = []
    mask: list[UnitName] = []
    mask_generators: list[FileName] = []
    files: dict[AbsolutePath, str] = {}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hold a recipe by its name, with the kernel that replaces its own. `digest` (SHA-256, hex)
    changes with every input of the image except the versions of packages and of a cloud image,
    which the built image's manifest records."""

    name: str
    spec: RecipeFile
    kernel: GivenKernel | None = None
    layer: Layer | None = None

    @property
    def digest(self) -> str:
        # A keyring only verifies an image, and is not part of it.
        apart = {"signed_by", "keyring_from"}
        recipe = self.spec.model_dump(
            exclude={"description": True, "kernel_file": True, "initrd_file": True}
            | {"cloud_image": apart},
            exclude_none=True,
        )
        parts = {"recipe": recipe, "builder": BUILDER, "architecture": platform.machine()}
        if self.kernel is not None:
            # By contents, because the same kernel elsewhere makes the same image.
            parts["kernel"] = dict(self.kernel.digests)
        if self.layer:
            parts["layer"] = self.layer.to_json()
        return hashlib.sha256(canonical(parts).encode()).hexdigest()

    def with_kernel(self, kernel: GivenKernel | None) -> Recipe:
        return replace(self, kernel=kernel)

    def with_layer(self, layer: Layer) -> Recipe:
        return replace(self, layer=layer or None)

    @property
    def below(self) -> Recipe | None:
        """Return the recipe of its base image: without the user's own kernel, which is on top, or
        without the layer; None if it has no base."""
        if self.kernel is not None:
            return replace(self, kernel=None)
        return replace(self, layer=None) if self.layer else None


def recipe_names() -> list[str]:
    """Return the names of all recipes, labctl's and the lab folder's."""
    return list(paths.data_files("guest-images"))


def load_recipe(name: str) -> Recipe:
    """Return the recipe of that name; raises UsageError naming the file, line and key of a
    mistake."""
    files = paths.data_files("guest-images")
    if name not in files:
        raise UsageError(f"no image recipe '{name}'", hint=nearest(name, files))
    return _loaded(name, files)


def recipe_in(path: Path) -> Recipe:
    """Return the recipe in a file, wherever it lies; raises UsageError as `load_recipe`."""
    name = path.name.rpartition(".")[0]
    return _loaded(name, {**paths.data_files("guest-images"), name: path})


def _loaded(name: str, files: Mapping[str, Path]) -> Recipe:
    path = files[name]
    spec = yaml.validate(RecipeFile, _whole(path, files), path)
    if problems := list(_problems(spec)):
        raise UsageError("\n".join(f"{path}: {problem}" for problem in problems))
    if spec.cloud_image is not None and spec.cloud_image.signed_by is not None:
        # Beside the recipe, unless it is absolute.
        keyring = str(path.parent / spec.cloud_image.signed_by)
        cloud_image = spec.cloud_image.model_copy(update={"signed_by": keyring})
        spec = spec.model_copy(update={"cloud_image": cloud_image})
    recipe = Recipe(name, spec)
    if spec.kernel_file is None:
        return recipe
    initrd = Path(spec.initrd_file) if spec.initrd_file else None
    return recipe.with_kernel(read_kernel(Path(spec.kernel_file), initrd))


def _whole(path: Path, files: Mapping[str, Path], below: tuple[Path, ...] = ()) -> YamlMapping:
    """Return a recipe's mapping with its `extends` filled in: its own keys win, and those of
    `binaries` and `files` one by one. `below`: the recipes that extend it."""
    mapping = yaml.load_mapping(path)
    name = mapping.pop("extends", None)
    if name is None:
        return mapping
    below = (*below, path)
    if not isinstance(name, str) or name not in files or files[name] in below:
        hint = nearest(str(name), set(files) - {one.stem for one in below})
        raise UsageError(f"{path}: 'extends': no other image recipe '{name}'", hint=hint)
    for key, value in _whole(files[name], files, below).items():
        if key in ("binaries", "files") and isinstance(mapping.get(key), YamlMapping):
            for inner, text in value.items():
                mapping[key].setdefault(inner, text)
        else:
            mapping.setdefault(key, value)
    return mapping


def _problems(spec: RecipeFile) -> Iterator[str]:
    """Return keys that contradict or miss each other."""
    cloud = spec.cloud_image
    if cloud is None and not (spec.suite and spec.kernel):
        yield "needs 'suite' and 'kernel', or a 'cloud_image'."
    if cloud is not None and (spec.suite or spec.kernel):
        yield "a 'cloud_image' has its own suite and kernel: leave out 'suite' and 'kernel'."
    if spec.initrd_file and not spec.kernel_file:
        yield "'initrd_file' belongs to a 'kernel_file', which is missing."
    if cloud is None:
        return
    if not (cloud.digest or cloud.checksums):
        yield ("'cloud_image' cannot be verified: give 'checksums' and 'signed_by', or 'digest'.")
    if cloud.digest and (cloud.checksums or cloud.signature or cloud.signed_by):
        yield "'cloud_image' is verified by 'digest' or by 'checksums', not by both."
    if cloud.checksums and not cloud.signed_by:
        yield "'cloud_image.checksums' prove nothing unsigned: give 'signed_by', a keyring file."
    if (cloud.signature or cloud.signed_by or cloud.fingerprint) and not cloud.checksums:
        yield "'cloud_image' has a signer but no 'checksums' that it signed."
