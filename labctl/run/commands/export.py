"""Copy a run's folder for others: as it is, or without what identifies its host."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from labctl import __version__
from labctl.base.errors import BrokenError, FileError, HostError, UsageError
from labctl.base.json import parse_json
from labctl.base.paths import RUN_ARCHIVE, StatePaths, lab, shipped_data
from labctl.base.trust import open_regular
from labctl.host.facts import (
    GROUP,
    HOST_NAME,
    INTERFACE,
    SERIAL,
    USER,
    is_no_name,
    is_usual_interface,
    read_groups,
    read_identity,
    read_users,
)
from labctl.run.commands.scrub import (
    BOOT_VALUE,
    KERNEL_VALUE,
    MAC,
    MAC_FORM,
    Scrubber,
    is_json,
    other_macs,
)
from labctl.store.archive import pack
from labctl.store.digests import RECORD, SAMPLES, Digests
from labctl.store.jsonfile import (
    canonical,
    folder_begun,
    is_unfinished,
    output_file,
    put,
    write_bytes,
    write_json,
)
from labctl.store.records.plan_record import ExtensionRecord, PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.records.tolerant import known_keys
from labctl.store.run_folder import RunFolder
from labctl.store.samples import SampleRecord
from labctl.store.trial import RedactedTrial, TrialFolder, TrialRecord

# Find names that only a run itself knows: of its host, its users, their VMs and networks. Pure.


VM_NAME = "vm-name"

_NAMES = (
    (rb"<(?:name|title)>\s*([^<>\n]{3,200}?)\s*</", VM_NAME),
    (rb"<description>\s*([^<>]{3,2000}?)\s*</", VM_NAME),
    (rb"<(?:serial|wwn)>\s*([^<>\n]{3,200}?)\s*</", SERIAL),
    (rb"<source\b[^<>]{0,400}?\b(?:bridge|network|pool|volume|portgroup|name)="
     rb"(?:'([^'<>]{3,200})'|\"([^\"<>]{3,200})\")", VM_NAME),
    (rb"<(?:host|auth)\b[^<>]{0,400}?\b(?:name|username)="
     rb"(?:'([^'<>]{3,200})'|\"([^\"<>]{3,200})\")", HOST_NAME),
    (rb"<entry name=['\"](?:serial|asset|sku|location)['\"]>\s*([^<>\n]{3,200}?)\s*</", SERIAL),
    (rb"(?im)^[\s\"'#-]*(?:hostname|nodename|host_name)[\"']?\s*[:=]\s*[\"']?([\w.-]{3,100})",
     HOST_NAME),
    (rb"(?m)(?:^|\n)([A-Za-z][\w.-]{2,62}) login: ", HOST_NAME),
    (rb"Hostname set to <([\w.-]{3,100})>", HOST_NAME),
    (rb"\bLinux ([A-Za-z][\w.-]{2,62}) [0-9]+\.[0-9]+\.[0-9]+\S* #[0-9]", HOST_NAME),
    (rb"\bqemu\+\w+://(?:[^@/\s\"']{1,64}@)?([\w.-]{3,100})", HOST_NAME),
    (rb"\bqemu\+\w+://([\w.-]{3,64})@", USER),
    (rb"(?im)^[\s\"'-]*(?:run-by|user_?name|logname)[\"']?\s*[:=]\s*[\"']?([A-Za-z][\w.-]{2,62})"
     rb"[\"']?,?\s*$", USER),
    (rb"/(?:home|Users)/([^/\s\"'<>&;,:|()\[\]{}\\]{3,64})", USER),
    (rb"--domain[= ]'?([\w.+-]{3,100})", VM_NAME),
    (rb"(?m)^[ \t]*[0-9]{1,4}: ([\w.-]{3,15})(?:@[\w.-]+)?: <[A-Z]", INTERFACE),
    (rb"(?m)^[ \t]*(?!cpu[0-9])([a-z][\w.-]{2,14}):(?:[ \t]+[0-9]+){16}[ \t]*$", INTERFACE),
    (rb"/(?:class|virtual)/net/([\w.-]{3,15})", INTERFACE),
    (rb"<target\b[^<>]{0,400}?\bdev=['\"]([\w.-]{3,15})['\"]", INTERFACE),
    (rb"(?m)^([a-z_][\w.-]{2,31}):x:[1-9][0-9]{3,8}:", USER),
    (rb"(?m)^[a-z_][\w.-]{2,31}:x:[1-9][0-9]{3,8}:[0-9]+:([^:,\n]{3,60})", USER),
    (rb"\bmaster ([\w.-]{3,15}) state ", INTERFACE),
    (rb"\b(?:br|bridge|ifname)=['\"]?([A-Za-z][\w.-]{2,14})(?![\w.-])", INTERFACE),
    (rb"<source\b[^<>]{0,400}?\bdev=['\"]([\w.-]{3,15})['\"]", INTERFACE),
    (rb"\b[ug]id=[1-9][0-9]{3,8}\(([\w.-]{3,64})\)", USER),
    (rb"(?:\bgroups=|(?<=\)),)[1-9][0-9]{3,8}\(([\w.-]{3,64})\)", GROUP),
)  # fmt: skip
"""Names that only the run itself knows: of its host, if the copy is made elsewhere, and of VMs."""

_COMPILED = (
    *((re.compile(pattern), kind) for pattern, kind in _NAMES),
    (KERNEL_VALUE, BOOT_VALUE),
)
_OWN_NAME = re.compile(
    r"labctl\b.*|[-+]?[0-9.]+|on|off|any|none|both|auto6?|dhcp6?|ibft|default|virbr[0-9]+|user|(?:UUID=|/).*",
    re.DOTALL,
)
"""Names that identify nothing on the host: labctl's guests, numbers, and kernel parameters."""


def names_in(texts: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """Return names of a run, found in the name and text of its files, mapped to their kind."""
    found: dict[str, str] = {}
    for name, text in texts:
        looked = [text]
        if is_json(name, text):
            looked += _nested(text)
        for one in looked:
            for pattern, kind in _COMPILED:
                for match in pattern.finditer(one):
                    value = next(filter(None, match.groups())).decode(errors="replace")
                    if not (is_no_name(value) or _is_usual(value, kind)):
                        found.setdefault(value, kind)
            for mac in set(MAC_FORM.findall(one)):
                found |= dict.fromkeys(other_macs(mac.decode()), MAC)
        if name == "run.json":
            found |= _domain_of(text)
    return found


def _nested(text: bytes) -> Iterator[bytes]:
    """Return strings of a JSON text that hold lines themselves: the output of tools."""
    for found in re.finditer(rb'"[^"\\]*(?:\\.[^"\\]*)*"', text, re.DOTALL):
        if b"\\" in found.group():
            try:
                yield str(json.loads(found.group())).encode(errors="surrogatepass")
            except ValueError:
                continue


def _domain_of(run: bytes) -> dict[str, str]:
    """Return the VM's name as given to `--domain`."""
    try:
        domain = parse_json(run).get("domain")
    except (ValueError, AttributeError):
        return {}
    names = domain.values() if isinstance(domain, dict) else ()
    texts = {name for name in names if isinstance(name, str) and not name.startswith("/")}
    is_digest = re.compile("[0-9a-f]{64}").fullmatch
    return {text: VM_NAME for text in texts if not (is_no_name(text) or is_digest(text))}


_DISK = re.compile("(?:[svhf]d|xvd|nvme)[a-z0-9]*")
"""Names of disks in libvirt's XML that are also names of interfaces."""


def _is_usual(value: str, kind: str) -> bool:
    if kind == INTERFACE and (is_usual_interface(value) or _DISK.fullmatch(value)):
        return True
    return _OWN_NAME.fullmatch(value) is not None


# Copy a run's folder without what identifies the host, its users and their VMs.
#
# Texts keep their form, so that every reader of a run can read the copy. Binary files (recordings
# of perf and trace-cmd) can hold names that cannot be found: they are left out, and listed.


_DERIVED = re.compile(r".*\.(?:parquet|html?)")
"""Files that can be generated from the rest at any time; a page contains all of it."""
DERIVED = "it is derived from the rest"
"""Reason why a generated file is not copied."""

_MOST_BYTES = 256 << 20
"""Limit on one file, which is read into memory completely."""

_PLAN = re.compile(r"plan(?:\.[0-9]+)?\.json")


@dataclass(frozen=True, slots=True)
class Identity:
    """Hold what is known of the host: text to kind, and folder to its placeholder."""

    known: Mapping[str, str]
    paths: Mapping[str, str]


@dataclass(slots=True)
class Redacted:
    """Report on a redacted copy. `name`: the run's new name; `taken_out`: how many texts of each
    kind were removed; `left_out`: files that are not in the copy, and why; `kept`: names that are
    words of the run itself as well."""

    name: str = ""
    files: int = 0
    taken_out: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)


def redact(folder: RunFolder, target: Path, identity: Identity) -> Redacted:
    """Write the copy to `target`, which must not exist yet.

    Raises HostError if it cannot be written, UsageError for a run of a newer labctl, BrokenError if
    the copy still holds identifying texts, or cannot be read as the run can.
    """
    before = folder.load()
    files, done = run_files(folder.path), Redacted()
    known = {**names_in(_texts(files)), **identity.known}
    vocabulary = _vocabulary(before.plan)
    words = {part for word in vocabulary for part in re.split(r"[^0-9a-z]+", word)} | vocabulary
    done.kept = {text: kind for text, kind in known.items() if text.lower() in words}
    scrubber = Scrubber(
        {text: kind for text, kind in known.items() if text not in done.kept},
        identity.paths,
        thorough=True,
        vocabulary=vocabulary,
    )
    at = datetime.now(UTC).isoformat(timespec="seconds")
    _Copy(folder.path, target, scrubber, files, at, done).make()
    done.name = scrubber.scrubbed(folder.name.encode()).decode()
    done.taken_out = dict(sorted(scrubber.taken_out.items()))
    _check_nothing_left(target, scrubber)
    after = RunFolder(target).load()
    if (len(after.trials), len(after.problems)) != (len(before.trials), len(before.problems)):
        if before.problems:
            raise FileError(
                f"the run '{folder.name}' is damaged, so its copy would differ: "
                f"{before.problems[0]}",
                hint="Copy the run again from its host. Nothing was written.",
            )
        raise BrokenError(
            f"the copy of run '{folder.name}' differs from the run: "
            f"{len(after.trials)} trials instead of {len(before.trials)}"
            + "".join(f"; {text}" for text in after.problems[:3]),
            hint="A user or host name may also be a word of the run. Nothing was written.",
        )
    return done


def run_files(folder: Path) -> dict[str, Path]:
    """Return every regular file by its path in the folder, in order, without what a killed labctl
    left half written; links are named later."""
    found = {}
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if is_unfinished(name):
                continue
            path = Path(place, name)
            found[str(path.relative_to(folder))] = path
    return found


def is_derived(name: str) -> bool:
    """Return whether labctl generates a file of that name from the others."""
    return _DERIVED.fullmatch(name) is not None


def _read(path: Path) -> bytes | None:
    """Return the file's bytes; None for a file that is not regular or is too large. Raises
    HostError."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode) or path.stat().st_size > _MOST_BYTES:
            return None
        with open(open_regular(path), "rb") as file:
            return file.read()
    except OSError as error:
        raise HostError(f"{path} cannot be read: {error.strerror}") from error


def _text(path: Path) -> bytes | str:
    """Return the file's text, or why it is not copied."""
    if is_derived(path.name):
        return DERIVED
    data = _read(path)
    if data is None:
        return "it is a link, not a regular file, or larger than 256 MiB"
    try:
        data.decode()
    except UnicodeDecodeError:
        return "it is not text"
    return "it is not text" if b"\0" in data else data


def _texts(files: Mapping[str, Path]) -> Iterator[tuple[str, bytes]]:
    for name, path in files.items():
        if isinstance(text := _text(path), bytes):
            yield name, text


@dataclass(frozen=True, slots=True)
class _Copy:
    source: Path
    target: Path
    scrubber: Scrubber
    files: Mapping[str, Path]
    at: str
    done: Redacted

    def make(self) -> None:
        try:
            self.target.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise HostError(f"cannot make {self.target}: {error.strerror}") from error
        (self.target / "trials").mkdir()
        plans = self._plans()
        for name, path in self.files.items():
            if name in plans or PurePosixPath(name).name == RECORD:
                continue
            text = _text(path)
            if isinstance(text, str):
                self.done.left_out[name] = text
                continue
            self._write(name, self._renamed(name, self._scrubbed(name, text), plans))
        for name, (_, _, data) in plans.items():
            self._write(name, data)
        for folder in RunFolder(self.source).trial_folders():
            if folder.has_record:
                self._write_record(folder)
        self._write_run()

    def _scrubbed(self, name: str, data: bytes) -> bytes:
        return self.scrubber.scrubbed(data, is_json=is_json(name, data))

    def _renamed(
        self, name: str, data: bytes, plans: Mapping[str, tuple[str, str, bytes]]
    ) -> bytes:
        """Replace the old digests of plans by the new ones, everywhere."""
        for old, new, _ in plans.values():
            if old and old != new:
                data = data.replace(old.encode(), new.encode())
        return data

    def _plans(self) -> dict[str, tuple[str, str, bytes]]:
        """Return, for the plan and each extension, the old digest, the new one, and the text. A
        digest that was wrong stays wrong."""
        plans: dict[str, tuple[str, str, bytes]] = {}
        names = [name for name in self.files if _PLAN.fullmatch(name)]
        for name in sorted(names, key=lambda name: (len(name), name)):
            text = _text(self.files[name])
            if isinstance(text, str):
                continue
            data = self._renamed(name, self._scrubbed(name, text), plans)
            try:
                before, now = parse_json(text), parse_json(data)
                old, was = before.get("digest"), _digest_of(before)
                new = _digest_of(now)
            except (ValueError, AttributeError, TypeError):
                continue  # not a plan: it is copied as any other file
            if isinstance(old, str) and old == was and new != old:
                data = data.replace(old.encode(), new.encode())
                plans[name] = (old, new, data)
            else:
                plans[name] = ("", "", data)
        return plans

    def _write(self, name: str, data: bytes) -> None:
        write_bytes(self.target / self._called(name), data, below=self.target)
        self.done.files += 1

    def _called(self, name: str) -> str:
        """Return the file's name in the copy."""
        parts = (part.encode(errors="surrogateescape") for part in PurePosixPath(name).parts)
        return "/".join(
            self.scrubber.scrubbed(part).decode(errors="surrogateescape") for part in parts
        )

    def _write_record(self, folder: TrialFolder) -> None:
        """Write trial.json with digests of the copy's files where the run's own were right; a file
        that was changed before counts as changed in the copy as well."""
        name = str((folder.path / RECORD).relative_to(self.source))
        text = _text(folder.path / RECORD)
        if isinstance(text, str):
            self.done.left_out[name] = text
            return
        self._write(name, self._scrubbed(name, text))
        copy = TrialFolder(self.target / folder.path.relative_to(self.source))
        try:
            record = copy.read_record()
        except BrokenError:
            return  # as in the run
        then, copied = folder.read_record().digests, copy.digests()
        now = self._digests(folder)
        then = then and self._as_called(then)
        left_out = [
            self._called(raw)
            for raw in sorted(now.raw)
            if f"trials/{folder.path.name}/{raw}" in self.done.left_out
        ]
        now = self._as_called(now)
        changed = [raw for raw in copied.raw if copied.raw[raw] != now.raw.get(raw)]
        if copied.samples != now.samples:
            changed.append(SAMPLES)
        said = RedactedTrial(
            at=self.at,
            labctl=__version__,
            changed=tuple(sorted(changed)),
            left_out=tuple(left_out),
        )
        digests = then and _carried_over(then, now, copied, left_out)
        copy.write_record(replace(record, digests=digests, redacted=said))

    def _digests(self, folder: TrialFolder) -> Digests:
        """Return the present digests of its regular files."""
        raw = {
            name: hashlib.sha256(data).hexdigest()
            for name, path in run_files(folder.path).items()
            if name != RECORD and (data := _read(path)) is not None
        }
        return Digests(samples=raw.pop(SAMPLES, None), raw=raw)

    def _as_called(self, digests: Digests) -> Digests:
        raw = {self._called(name): digest for name, digest in digests.raw.items()}
        return replace(digests, raw=raw)

    def _write_run(self) -> None:
        path = self.target / "run.json"
        try:
            data = parse_json(path.read_bytes())
        except (OSError, ValueError):
            return  # as in the run
        if isinstance(data, dict):
            data["redacted"] = {
                "at": self.at,
                "labctl": __version__,
                "taken_out": dict(sorted(self.scrubber.taken_out.items())),
                "left_out": len([n for n in self.done.left_out if not is_derived(n)]),
            }
            write_json(path, data, below=self.target)


def _carried_over(then: Digests, now: Digests, copied: Digests, left_out: list[str]) -> Digests:
    raw = {}
    for name, digest in then.raw.items():
        if name in left_out:
            continue
        is_whole = now.raw.get(name) == digest
        raw[name] = copied.raw.get(name, digest) if is_whole else digest
    samples = copied.samples if then.samples == now.samples else then.samples
    return Digests(samples=samples, raw=raw)


def _digest_of(plan: Mapping[str, object]) -> str:
    content = {key: value for key, value in plan.items() if key not in ("schema", "digest")}
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _check_nothing_left(target: Path, scrubber: Scrubber) -> None:
    """Raise BrokenError naming identifying texts that are left, and where."""
    for name, path in run_files(target).items():
        data = _read(path) or b""
        for where, text, json_form in (("name", name.encode(), False), ("text", data, True)):
            for kind, original in scrubber.left_in(text, is_json=json_form and is_json(name, data)):
                shown = original.decode(errors="replace")
                raise BrokenError(
                    f"the copy still holds '{shown}' ({kind}) in the {where} of {name}",
                    hint="Nothing was written. This is a fault in labctl: please report the kind "
                    "of the text and of the file.",
                )


def _vocabulary(plan: PlanRecord) -> set[str]:
    """Return words that readers of the run rely on, in lower case."""
    kinds = (PlanRecord, RunRecord, TrialRecord, ExtensionRecord, SampleRecord)
    words = {word for kind in kinds for word in known_keys(kind)}
    words |= {*plan.tunings, *plan.workloads, *plan.conditions}
    for workload in plan.workloads.values():
        words |= {name for name in (workload.program, workload.primary) if name}
    return {word.lower() for word in words}


_OTHER_ARCHIVES = frozenset({".gz", ".tgz", ".tar", ".xz", ".zip", ".zst"})


def export(
    folder: RunFolder,
    target: Path,
    places: StatePaths,
    *,
    redacting: bool,
    hidden: Collection[str] = (),
) -> Redacted:
    """Write a copy of the run: an archive if the name of `target` ends so, else a folder, which
    must not exist yet. Nothing is left behind if it fails. `hidden`: further texts to remove from a
    redacted copy.

    Raises UsageError, HostError, and BrokenError if a redacted copy would not be one.
    """
    is_packed = target.name.endswith(RUN_ARCHIVE)
    if not is_packed and target.suffix in _OTHER_ARCHIVES:
        raise UsageError(f"{target}: the name of a run's archive must end in {RUN_ARCHIVE}")
    if not is_packed and os.path.lexists(target):
        raise UsageError(f"{target} already exists", hint="Choose another --out.")
    beside = target.absolute().parent
    if not beside.is_dir():
        raise UsageError(f"{beside} is not a folder", hint="Create it, or choose another --out.")
    try:
        with (
            folder.unpacked() as source,
            folder_begun(beside, "export") as made,
        ):
            copy = made / "run"
            if redacting:
                done = redact(source, copy, _with(hidden, host_identity(folder, places)))
            else:
                done = Redacted(name=folder.name)
                files = _regular(source.path, done)
                if is_packed:
                    _pack(files, target, done.name)
                    return done
                _copy(files, copy)
            if is_packed:
                _pack(run_files(copy), target, done.name)
            else:
                put(copy, target)
    except OSError as error:
        raise HostError(f"cannot write {target}: {error.strerror or error}") from error
    return done


def _with(hidden: Collection[str], identity: Identity) -> Identity:
    return replace(identity, known={**identity.known, **dict.fromkeys(hidden, "word")})


def host_identity(folder: RunFolder, places: StatePaths) -> Identity:
    """Return what identifies this host, the run's owner, and the folders that runs name."""
    users = read_users(folder.path.stat().st_uid)
    own = {
        str(folder.path): "/var/lib/labctl/results/run",
        str(folder.path.parent): "/var/lib/labctl/results",
        str(places.root): "/var/lib/labctl",
        str(shipped_data()): "/usr/share/labctl",
        str(Path(__file__).parents[2]): "/usr/share/labctl/labctl",
        **({str(found): "/redacted/lab"} if (found := lab().folder) else {}),
        str(Path.home()): "/root",
    }
    paths = {old: new for old, new in own.items() if old not in ("/", "/var/lib/labctl")}
    return Identity({**read_groups(), **users, **read_identity()}, paths)


def _regular(folder: Path, done: Redacted) -> dict[str, Path]:
    """Return the files of a run to copy: regular files, because a link would lead elsewhere on
    another host, and none that labctl generates from the others."""
    found = {}
    for name, path in run_files(folder).items():
        if "/" not in name and is_derived(name):
            done.left_out[name] = DERIVED
        elif path.is_symlink() or not path.is_file():
            done.left_out[name] = "it is a link or not a regular file"
        else:
            found[name] = path
    done.files = len(found)
    return found


def _copy(files: Mapping[str, Path], target: Path) -> None:
    target.mkdir(mode=0o700)
    for name, path in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with open(open_regular(path), "rb") as source, open(target / name, "xb") as copy:
            shutil.copyfileobj(source, copy)


def _pack(files: Mapping[str, Path], target: Path, root: str) -> None:
    with output_file(target) as file:
        pack(files, file, root)
