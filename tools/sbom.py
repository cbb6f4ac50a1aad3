"""Write the software bill of materials of the locked Python packages, as CycloneDX 1.6 JSON.

With --requirements, write the lines of the lock that a user's labctl needs, for pip's
--require-hashes. Needs nothing but Python, because packages are built where nothing is installed.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK, BUILD_LOCK = "requirements.lock", "requirements-build.lock"
SCOPES = ("required", "optional", "excluded")
"""Scopes of CycloneDX: labctl itself; its extras; development and building."""
_EXTRAS = ("parquet", "fleet")
"""Extras for users. `dev` is for a checkout."""
_BLOCK = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+) \\\n(?P<rest>(?: {4}.*\n?)+)", re.M)


@dataclass(frozen=True)
class Locked:
    """Hold a package of a lock. `needed_by`: names of packages; `text`: its lines in the lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    needed_by: frozenset[str]
    text: str

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def canonical(name: str) -> str:
    """Return a package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str) -> dict[str, Locked]:
    """Return the packages of a lock that pip-compile wrote, by canonical name."""
    found = {}
    for block in _BLOCK.finditer(text):
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", block["rest"])
        _, _, via = block["rest"].partition("# via")
        words = (line.strip(" #\t") for line in via.splitlines())
        found[canonical(block["name"])] = Locked(
            name=canonical(block["name"]),
            version=block["version"],
            hashes=tuple(hashes),
            needed_by=frozenset(canonical(word) for word in words if word and " " not in word),
            text=block[0].rstrip("\n"),
        )
    return found


def closure(roots: Iterable[str], locked: Mapping[str, Locked]) -> set[str]:
    """Return the packages that the roots need, and the roots themselves. Raises KeyError for a root
    that is not locked."""
    found: set[str] = set()
    todo = list(roots)
    while todo:
        name = locked[todo.pop()].name
        if name not in found:
            found.add(name)
            todo += [one.name for one in locked.values() if name in one.needed_by]
    return found


def roots(requirements: Sequence[str]) -> list[str]:
    """Return the names in requirements: "click" of "click>=8.1"."""
    return [canonical(re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0]) for line in requirements]


def scopes(folder: Path = ROOT) -> dict[str, tuple[Locked, ...]]:
    """Return the packages of both locks by scope, sorted by name."""
    project = _project(folder)
    locked = read_lock((folder / LOCK).read_text())
    every = {**read_lock((folder / BUILD_LOCK).read_text()), **locked}
    required = closure(roots(project["dependencies"]), locked)
    extras = [line for name in _EXTRAS for line in project["optional-dependencies"][name]]
    optional = closure(roots(extras), locked) - required
    parts = (required, optional, every.keys() - required - optional)
    return {
        scope: tuple(every[name] for name in sorted(names))
        for scope, names in zip(SCOPES, parts, strict=True)
    }


def _project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def requirements(folder: Path = ROOT) -> str:
    """Return the lines of the lock that labctl without extras needs."""
    return "".join(f"{one.text}\n" for one in scopes(folder)["required"])


def sbom(folder: Path = ROOT) -> dict[str, object]:
    """Return the bill of materials. It depends on the locks and on labctl's version alone."""
    version = re.findall(r'__version__ = "(.+)"', (folder / "labctl/__init__.py").read_text())[0]
    own = {"type": "application", "name": "labctl", "version": version}
    own |= {"bom-ref": f"pkg:pypi/labctl@{version}", "purl": f"pkg:pypi/labctl@{version}"}
    found = scopes(folder)
    every = [one for part in found.values() for one in part]
    direct = roots(_project(folder)["dependencies"])
    locks = "".join((folder / name).read_text() for name in (LOCK, BUILD_LOCK))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"{own['purl']} {locks}").urn,
        "version": 1,
        "metadata": {"component": {**own, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": [_component(one, scope) for scope, part in found.items() for one in part],
        "dependencies": [
            {"ref": own["purl"], "dependsOn": [x.purl for x in every if x.name in direct]},
            *(
                {"ref": one.purl, "dependsOn": [x.purl for x in every if one.name in x.needed_by]}
                for one in every
            ),
        ],
    }


def _component(one: Locked, scope: str) -> dict[str, object]:
    return {
        "type": "library",
        "bom-ref": one.purl,
        "name": one.name,
        "version": one.version,
        "scope": scope,
        "purl": one.purl,
        # Of each file that the lock accepts: wheels for several Pythons, and the source.
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in one.hashes],
    }


if __name__ == "__main__":
    text = json.dumps(sbom(), indent=1) + "\n"
    sys.stdout.write(requirements() if sys.argv[1:] == ["--requirements"] else text)
