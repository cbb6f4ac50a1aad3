"""Load tunings from `domains/*.yaml`: validated, `extends:` resolved, combined, frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, GetPydanticSchema, StringConstraints

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.errors import UsageError, nearest
from labctl.base.paths import data_files
from labctl.base.tuning import (
    PLAN,
    Kind,
    Pin,
    Policy,
    Requires,
    Sched,
    Strategy,
    Tuning,
)
from labctl.base.yaml import FileModel, keys_of, line_of, load_mapping, validate
from labctl.base.yamltext import YamlMapping
from labctl.store.jsonfile import canonical
from labctl.study.changes import GROUP_TYPES, GROUPS, changes, dotted, group, word
from labctl.study.combine import JOINT, combined, split
from labctl.study.contradictions import contradictions

# Check tuning files as they are written: keys and types, before `extends:` is followed.


def _cpus(value: object) -> object:
    """Return a CPU list as YAML gives it: `2` is a number there, `2-3` a text."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("give a CPU list, such as 2 or '2-3,6'")
    cpus = parse_cpus(str(value))
    if not cpus:
        raise ValueError("give at least one CPU")
    return cpus


def _one_pin(value: object) -> object:
    return value if value is None or value == PLAN else _cpus(value)


def _numbered_pins(value: object) -> object:
    if value is None or value == PLAN:
        return value
    if not isinstance(value, Mapping) or not all(type(key) is int for key in value):
        raise ValueError("give 'plan', or a mapping of numbers to CPU lists, such as {0: '2-3'}")
    return {number: None if cpus is None else _cpus(cpus) for number, cpus in value.items()}


def _knob_value(value: object) -> object:
    """Return a knob's value as text: `swappiness: 10` is a number in YAML, and a program a mapping
    of its keys to commands."""
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return str(value) if type(value) is int else value


_File = Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f]{1,1000}$")]
"""Absolute path."""


class PinFile(FileModel):
    vcpus: Annotated[Any, BeforeValidator(_numbered_pins)] = None
    emulator: Annotated[Any, BeforeValidator(_one_pin)] = None
    vhost: Annotated[Any, BeforeValidator(_one_pin)] = None
    iothreads: Annotated[Any, BeforeValidator(_numbered_pins)] = None
    partition: Literal["isolated"] | None = None
    strategy: Literal["compact", "spread", "node", "siblings"] | None = None


class SchedFile(FileModel):
    policy: Literal["other", "fifo", "rr", "batch", "idle"] | None = None
    priority: Annotated[int, Field(ge=0, le=99)] | None = None


RequiresFile = Annotated[Any, GetPydanticSchema(lambda _, handler: handler(keys_of(Requires)))]
"""Keys of a `requires` in a file."""

_Text = Annotated[str, Field(min_length=1)]
_KnobValue = Annotated[
    str | None,
    BeforeValidator(_knob_value, json_schema_input_type=str | int | dict[str, str] | None),
]

TuningFile = keys_of(
    Tuning,
    omit=("name",),
    extends=(str | None, None),
    description=(_Text, ...),
    kind=(Literal["guest", "native"] | None, None),
    pin=(PinFile | None, None),
    vcpu_sched=(SchedFile | None, None),
    emulator_sched=(SchedFile | None, None),
    iothread_sched=(SchedFile | None, None),
    host=(dict[str, _KnobValue] | None, None),
    emulator=(_File | None, None),
    kernel=(_File | None, None),
    initrd=(_File | None, None),
)
"""A file before its `extends` is merged in: every key may be absent, null resets it."""


FOLDER = "domains"
BASELINE = "baseline"
"""Start of every combination."""

_NATIVE = "native"
"""Prefix of native tunings' names."""

_T = TypeVar("_T")

_READ = frozenset(
    ("name", "description", "kind", "sources", "needs", "risks", "exercised_by", "requires")
    + ("restore", "twin", "pin", "vcpu_sched", "emulator_sched", "iothread_sched", "iothreads")
    + ("timers", "host", "handicap_percent")
)
"""Keys that `_frozen` reads one by one: they have other defaults, or are not taken as they
stand."""

GUEST_ONLY = (
    *("twin", "emulator_sched", "iothread_sched", "iothreads", "cpu", "kvm", "hyperv", "timers"),
    *("memory", "disk", "network", "guest", "handicap_percent", "emulator", "kernel", "initrd"),
)
"""Keys that mean nothing without a guest."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Hold a file of an `extends:` chain, or a tuning that a study defines, for errors that name
    the place."""

    path: Path
    mapping: YamlMapping

    def error(self, keys: tuple[str, ...], text: str, hint: str | None = None) -> UsageError:
        line = line_of(self.mapping, keys)
        place = f"{self.path}:{line}" if line else str(self.path)
        return UsageError(f"{place}: {text}", hint=hint)


_Files = Mapping[str, Path | _Source]
"""Name to file, or definition, of every tuning."""


@dataclass(frozen=True, slots=True)
class Defined:
    """Hold the tunings that a study defines itself. `path`: of its file."""

    path: Path
    mappings: Mapping[str, Mapping[str, Any]]

    @property
    def sources(self) -> dict[str, _Source]:
        return {
            name: _Source(self.path, one if isinstance(one, YamlMapping) else YamlMapping(one))
            for name, one in self.mappings.items()
        }


NOTHING_DEFINED = Defined(Path(), {})


def _files(defined: Defined) -> _Files:
    return {**data_files(FOLDER), **defined.sources}


def tuning_names() -> list[str]:
    """Return the names of all tunings, sorted."""
    return list(data_files(FOLDER))


def tuning_file(name: str) -> Path:
    """Return the file of a tuning; raises UsageError with the nearest name when there is none."""
    return _known(name, data_files(FOLDER))


def load_tunings(names: Iterable[str], defined: Defined = NOTHING_DEFINED) -> dict[str, Tuning]:
    """Return tunings by name: those of files, and those that a study defines."""
    files = _files(defined)
    return {name: _named(name, files) for name in names}


def load_tuning(name: str) -> Tuning:
    """Return the tuning of that name with all that it extends, or, for `a+b` where no file has that
    name, the tunings `a` and `b` together.

    Raises UsageError naming file, line and key for anything that is wrong with the files, and
    both tunings where two can't be combined.
    """
    return _named(name, data_files(FOLDER))


def tuning_in(path: Path) -> Tuning:
    """Return the tuning in a file, wherever it lies; raises UsageError as `load_tuning`."""
    name = path.name.rpartition(".")[0]
    return _loaded(name, {**data_files(FOLDER), name: path})


def _named(name: str, files: _Files) -> Tuning:
    if name in files or JOINT not in name:
        return _loaded(name, files)
    parts = [_loaded(part, files) for part in split(name, files)]
    natives = [_loaded(other, files) for other in files if other.startswith(_NATIVE)]
    return combined(name, parts, _loaded(BASELINE, files), natives)


def tuning_files(name: str) -> list[Path]:
    """Return the file of a tuning, or the files of those that it combines."""
    known = tuning_names()
    parts = (name,) if name in known or JOINT not in name else split(name, known)
    return [tuning_file(part) for part in parts]


_Place = TypeVar("_Place")


def _known(name: str, files: Mapping[str, _Place]) -> _Place:
    if name not in files:
        raise UsageError(f"no tuning '{name}'", hint=nearest(name, files))
    return files[name]


def _loaded(name: str, files: _Files) -> Tuning:
    source, values = _merged(name, files)
    return _frozen(name, source, values, files)


def _merged(
    name: str, files: _Files, below: tuple[Path | _Source, ...] = ()
) -> tuple[_Source, dict[str, Any]]:
    """Return the values of a file over those that it extends. `below`: the files that extend it."""
    path = _known(name, files)
    if path in below:
        circle = (*below[below.index(path) :], path)
        chain = " extends ".join(str(p.path if isinstance(p, _Source) else p) for p in circle)
        raise UsageError(f"tunings extend each other in a circle: {chain}")
    source, checked = _read(path)
    parent = checked.get("extends")
    checked = {key: value for key, value in checked.items() if key != "extends"}
    if parent is None:
        for key, value in checked.items():
            if value is None:
                raise source.error(
                    (key,),
                    f"'{key}' is empty, which removes an inherited value, but this tuning "
                    "extends nothing.",
                    "Give it a value, or remove the key.",
                )
        return source, _merge({}, checked)
    if parent not in files:
        raise source.error(
            ("extends",),
            f"'extends' is '{parent}', which does not exist.",
            nearest(parent, files),
        )
    _, inherited = _merged(parent, files, (*below, path))
    return source, _merge(inherited, checked)


def _read(path: Path | _Source) -> tuple[_Source, Mapping[str, Any]]:
    if isinstance(path, _Source):
        checked = validate(TuningFile, path.mapping, path.path).model_dump(exclude_unset=True)
        if checked.get("host"):
            # Root carries it out, and a study or a plan may come from anywhere.
            raise path.error(
                ("host",),
                "'host' is given in a tuning that a study defines.",
                "Write the tuning to a file in domains/ of your lab folder, and extend that.",
            )
        return path, checked
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    return _parsed(path, (status.st_ino, status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=256)
def _parsed(path: Path, stamp: tuple[int, ...]) -> tuple[_Source, Mapping[str, Any]]:
    """Return a file's checked keys. Most files extend others, and parsing is what loading costs."""
    mapping = load_mapping(path)
    checked = validate(TuningFile, mapping, path).model_dump(exclude_unset=True)
    return _Source(path, mapping), checked


def _merge(base: Mapping[Any, Any], over: Mapping[Any, Any]) -> dict[Any, Any]:
    """Merge `over` on top of `base`: mappings merge, all else replaces, None takes away."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = _merge(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def _frozen(name: str, source: _Source, values: Mapping[str, Any], files: _Files) -> Tuning:
    kind = Kind(values.get("kind", "guest"))
    pin = values.get("pin", {})
    tuning = Tuning(
        name=name,
        description=" ".join(values["description"].split()),
        kind=kind,
        sources=tuple(values.get("sources", ())),
        needs=tuple(values.get("needs", ())),
        risks=tuple(values.get("risks", ())),
        exercised_by=tuple(values.get("exercised_by", ())),
        restore=values.get("restore", True),
        twin=values.get("twin"),
        pin=Pin(
            vcpus=_without_none(pin.get("vcpus")),
            emulator=pin.get("emulator"),
            vhost=pin.get("vhost"),
            iothreads=_without_none(pin.get("iothreads")),
            partition=pin.get("partition"),
            strategy=Strategy(pin.get("strategy", Strategy.COMPACT)),
        ),
        vcpu_sched=_sched(source, "vcpu_sched", values.get("vcpu_sched")),
        emulator_sched=_sched(source, "emulator_sched", values.get("emulator_sched")),
        iothread_sched=_sched(source, "iothread_sched", values.get("iothread_sched")),
        iothreads=values.get("iothreads", 0),
        requires=required(values.get("requires", {})),
        timers=values.get("timers", {}),
        host={knob: value for knob, value in values.get("host", {}).items() if value is not None},
        handicap_percent=float(values.get("handicap_percent", 0)),
        **_as_they_stand(values),
    )
    if kind is Kind.NATIVE:
        _check_native(source, values)
    elif tuning.twin is not None:
        _check_twin(source, tuning, tuning.twin, files)
    for found in contradictions(tuning):
        raise source.error(found.keys[0], found.text, found.hint)
    return tuning


def required(values: Mapping[str, Any]) -> Requires:
    """Return what the keys of a `requires` ask for."""
    return _value(Requires, values)


def _value(type_: type[_T], values: Mapping[str, Any] | None) -> _T:
    """Return a group of keys as its frozen value; what isn't given keeps the value's default."""
    given = {key: value for key, value in (values or {}).items() if value is not None}
    return type_(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


def _as_they_stand(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that are taken as they stand: groups, and those that nothing else reads."""
    groups = {
        name: _value(type_, values.get(name))
        for name, type_ in GROUP_TYPES.items()
        if name not in _READ
    }
    plain = {
        own.name: values[own.name]
        for own in fields(Tuning)
        if own.name in values and own.name not in _READ and own.name not in groups
    }
    return {**groups, **plain}


def _without_none(pins: Any) -> str | Mapping[int, CpuSet] | None:
    if not isinstance(pins, Mapping):
        return pins if pins is None else str(pins)
    return {number: cpus for number, cpus in pins.items() if cpus is not None}


def _sched(source: _Source, key: str, value: Mapping[str, Any] | None) -> Sched | None:
    """Return a checked policy with its priority (sched(7): 1 to 99 for fifo and rr, else 0)."""
    if not value:
        return None
    if "policy" not in value:
        raise source.error((key,), f"key '{key}.policy' is missing.")
    policy, priority = Policy(value["policy"]), value.get("priority", 0)
    if policy.realtime and priority == 0:
        raise source.error(
            (key, "policy"),
            f"'{key}.priority' is missing: policy '{policy}' needs a priority from 1 to 99.",
        )
    if not policy.realtime and priority != 0:
        raise source.error(
            (key, "priority"),
            f"'{key}.priority' is {priority}, but policy '{policy}' has no priorities.",
            f"Remove the key, or write '{key}: {{policy: {policy}, priority: null}}'.",
        )
    return Sched(policy=policy, priority=priority)


def _check_native(source: _Source, values: Mapping[str, Any]) -> None:
    for key in GUEST_ONLY:
        if values.get(key):
            raise source.error((key,), f"'{key}' has no effect in a native tuning.")
    for key in ("emulator", "vhost", "iothreads", "partition"):
        if values.get("pin", {}).get(key):
            raise source.error(("pin", key), f"'pin.{key}' has no effect in a native tuning.")


def _check_twin(source: _Source, tuning: Tuning, twin: str, files: _Files) -> None:
    if twin not in files:
        raise source.error(
            ("twin",), f"'twin' is '{twin}', which does not exist.", nearest(twin, files)
        )
    values = _merged(twin, files)[1]
    if values.get("kind") != Kind.NATIVE:
        raise source.error(("twin",), f"'twin' is '{twin}', which is not a native tuning.")
    if values.get("image") != tuning.image:
        raise source.error(
            ("twin",),
            f"'twin' is '{twin}', which runs in another image.",
            "Give both the same 'image', or write 'twin: null'.",
        )


# Write a tuning as JSON, and as digests that show whether two of them do the same. Pure.


def tuning_json(tuning: Tuning) -> dict[str, object]:
    """Return a whole tuning in JSON's types: what run.json keeps of it, for advice years later."""
    recorded: dict[str, object] = listed(asdict(tuning))
    return recorded


def tuning_digest(tuning: Tuning) -> str:
    """Return SHA-256 of what a tuning does; its name, its words and its needs stay out.

    So does what it leaves as it is: a labctl that knows more settings gives the same digest, and
    its runs can be compared with older ones.
    """
    plain = Tuning(name="", description="", kind=tuning.kind)
    done = _set(replace(does(tuning), restore=tuning.restore), plain)
    return hashlib.sha256(canonical({"kind": tuning.kind, **listed(done)}).encode()).hexdigest()


def _set(value: Any, plain: Any) -> dict[str, object]:
    """Return the fields of a dataclass that differ from those of `plain`, level by level."""
    found: dict[str, object] = {}
    for name in (own.name for own in fields(value)):
        ours, theirs = getattr(value, name), getattr(plain, name)
        if ours == theirs:
            continue
        nested = is_dataclass(ours) and type(ours) is type(theirs)
        found[name] = _set(ours, theirs) if nested else _plain(ours)
    return found


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def does(tuning: Tuning) -> Tuning:
    """Return what a tuning does, without its name, its words, its needs and how its guest comes
    about."""
    return replace(
        tuning,
        name="",
        description="",
        sources=(),
        needs=(),
        risks=(),
        exercised_by=(),
        requires=Requires(),
        restore=True,
        twin=None,
    )


def listed(value: Any) -> Any:
    """Return the same in JSON's types; a CPU set becomes its list format."""
    if isinstance(value, Mapping):
        return {str(key): listed(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return format_cpus(value)
    if isinstance(value, (list, tuple)):
        return [listed(item) for item in value]
    return value


# Write the reference of all tunings as Markdown, for `docs/tunings.md`.


COMMAND = "labctl tuning list --markdown > docs/tunings.md"
"""Command that writes the file again."""

_HEAD = f"""\
# Tunings

Each tuning is a file in `domains/`, listed here with the keys that differ from the baseline.

<!-- Written by '{COMMAND}': change the files in domains/ instead. -->

Combine tunings with `+` (`vcpupin+cache-none`). A sweep skips a tuning that the host does not \
support and says why; naming it with `--tuning` is an error. With [workloads](workloads.md) other \
than those in *Exercised by* a tuning may be equivalent to the baseline.

A *restored* tuning starts from the boot that its block shares. A *booted* one boots in each \
block, because a restored guest would differ from a booted one; compare it with `booted`, the \
baseline that boots too.
"""


def reference(tunings: Mapping[str, Tuning], baseline: Tuning) -> str:
    """Return all of `tunings`, by group."""
    parts = [_HEAD]
    for heading in GROUPS:
        members = [t for t in tunings.values() if group(t, baseline) == heading]
        if members:
            parts.append(f"\n## {heading}\n\n")
            parts += [f"{line}\n" for tuning in members for line in _lines(tuning, baseline)]
    return "".join(parts)


def _lines(tuning: Tuning, baseline: Tuning) -> Iterator[str]:
    changed = changes(tuning, baseline).items()
    keys = ", ".join(f"`{dotted(key)}: {word(value)}`" for key, value in changed)
    start = "" if tuning.kind is Kind.NATIVE else "restored" if tuning.restore else "booted"
    marks = "; ".join(filter(None, (start, keys)))
    yield f"- **`{tuning.name}`**{f' ({marks})' if marks else ''}: {tuning.description}"
    for heading, texts in (
        ("Needs", tuning.needs),
        ("Risks", tuning.risks),
        ("Exercised by", tuning.exercised_by),
        ("Sources", tuning.sources),
    ):
        if texts:
            yield f"  - {heading}: {'; '.join(texts)}."
