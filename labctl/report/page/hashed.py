"""Show the files that ran, for a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.wording import counted
from labctl.store.run_folder import LoadedRun

_SIDES = {"native": "natively", "guest": "in the guest"}
_AS_RUN = (
    "Programs and the libraries that their loader found for them, hashed as they were about to "
    "run: {times}."
)
_AS_BUILT = (
    "An older labctl hashed the guest's programs in its first boot, and the native ones when the "
    "image was built; libraries it did not hash."
)
_MOST = 1000
_LONGEST = 500
"""A guest is hostile, and both come from it."""


@dataclass(frozen=True, slots=True)
class HashedFile:
    """Show a file by its SHA-256. `where`: the sides on which it ran."""

    name: str
    where: str
    digest: str


@dataclass(frozen=True, slots=True)
class Hashed:
    """Show all hashed files. `proof`: when they were hashed, in a sentence."""

    proof: str
    files: tuple[HashedFile, ...]


def hashed(run: LoadedRun) -> Hashed:
    """Return what run.json says of the files that ran; of an older labctl's, its programs alone."""
    found = run.run.hashed
    if not found:
        return Hashed(_AS_BUILT, _files(_of_programs(run.run.binaries)))
    by_side = {_SIDES["native"]: found.native, _SIDES["guest"]: found.guest}
    sides = {words: side for words, side in by_side.items() if side}
    times = [f"{words} {counted(side.checks, 'time')}" for words, side in sides.items()]
    proof = _AS_RUN.format(times=" and ".join(times))
    return Hashed(
        proof,
        _files(
            (name, words, digest)
            for words, side in sides.items()
            for name, digest in side.files.items()
        ),
    )


def _of_programs(
    binaries: Mapping[str, Mapping[str, str | None]],
) -> Iterator[tuple[str, str, str]]:
    for name, digests in binaries.items():
        for side, digest in digests.items():
            yield name, _SIDES.get(side, side), str(digest)


def _files(found: Iterator[tuple[str, str, str]]) -> tuple[HashedFile, ...]:
    where: dict[tuple[str, str], list[str]] = {}
    for name, words, digest in found:
        where.setdefault((name, digest), []).append(words)
    return tuple(
        HashedFile(name[:_LONGEST], " and ".join(sides)[:_LONGEST], digest[:_LONGEST])
        for (name, digest), sides in sorted(where.items())[:_MOST]
    )
