"""Read declarations of workloads: files in `benchmarks/workloads/`, or what a study defines."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labctl.base.errors import UsageError
from labctl.base.latencies import LARGEST
from labctl.base.units import Better, Unit
from labctl.base.yamlfile import line_of, load_mapping, validate
from labctl.base.yamltext import YamlMapping
from labctl.workloads.declaration_checks import OWN_METRICS, Checked, binaries_of
from labctl.workloads.metric_file import metric_names
from labctl.workloads.readers.names import names_of
from labctl.workloads.workload import Workload
from labctl.workloads.workload_file import (
    MOST_TEXT,
    DeclaredFile,
    path_of,
)


def load_declaration(path: Path, name: str | None = None) -> Workload:
    """Return the workload that a file declares. Raises UsageError naming file, line and key."""
    return declare(name or path.name.removesuffix(".yaml"), load_mapping(path), path)


def declare(name: str, mapping: YamlMapping, path: Path) -> Workload:
    """Return the workload of a mapping read from `path`, with the contents of files that it names
    beside it. Raises UsageError naming file, line and key."""
    return _declared(name, _with_contents(mapping, path), path, mapping)


def of_definition(name: str, definition: Mapping[str, Any]) -> Workload:
    """Return the workload that a run's plan holds. Raises UsageError for one that isn't whole."""
    return _declared(name, definition, Path(f"the run's workload '{name}'"), definition)


def _declared(
    name: str, definition: Mapping[str, Any], path: Path, mapping: Mapping[str, Any]
) -> Workload:
    # Validated as it was written, whose keys have lines.
    as_written = YamlMapping(definition)
    as_written.lines = getattr(mapping, "lines", {})
    file = validate(DeclaredFile, as_written, path)
    checked = Checked(path, mapping, file, name)
    checked.check()
    return Workload(
        name=name,
        file=file,
        definition=_with_directions(_plain(definition), file),
        parameters=tuple(checked.parameters()),
        binaries=tuple(dict.fromkeys(binaries_of(file, name))),
        rate_metric=_rate(file),
        deciding=tuple(dict.fromkeys(_deciding(file))),
    )


def _with_contents(mapping: YamlMapping, path: Path) -> dict[str, Any]:
    """Return the mapping with the content of each file that it names in place of its path."""
    brought = mapping.get("files")
    if not isinstance(brought, dict):
        return dict(mapping)
    contents = {
        name: given
        if (found := path_of(given, path.parent)) is None
        else _content_of(found, mapping, path, name)
        for name, given in brought.items()
    }
    return {**mapping, "files": contents}


def _content_of(found: Path, mapping: YamlMapping, path: Path, name: str) -> str | dict[str, str]:
    """Return the text of a file; of one that isn't text what a declaration holds in its place."""
    line = line_of(mapping, ("files", name))
    place = f"{path}:{line}" if line else str(path)
    if not found.resolve().is_relative_to(path.parent.resolve()):
        raise UsageError(
            f"{place}: 'files.{name}' leads out of the workload's folder",
            hint="Put the file beside the workload.",
        )
    try:
        with found.open("rb") as file:
            data = file.read(MOST_TEXT + 1)
        if len(data) > MOST_TEXT:
            raise UsageError(
                f"{place}: 'files.{name}' has more than {MOST_TEXT} bytes",
                hint="Strip it ('strip FILE'), compile it in the image ('build'), or install it "
                "from a package ('packages') or a wheel ('wheels').",
            )
        return data.decode()
    except OSError as error:
        raise UsageError(f"{place}: 'files.{name}': {found}: {error.strerror}") from error
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _rate(file: DeclaredFile) -> str | None:
    """Return the metric of operations per second: the one that is named, else the primary one where
    it is such a rate."""
    if file.rate is not None:
        return file.rate
    if file.primary == "work_per_s":
        return file.primary
    known = metric_names(file.metrics).get(file.primary)
    if known is not None and known.unit in (Unit.PER_SECOND, Unit.BYTES_PER_SECOND):
        return file.primary if known.better is Better.HIGHER else None
    return None


def _deciding(file: DeclaredFile) -> Iterator[str]:
    """Yield the metrics that may be primary: those of the file, and of a reader's those that are
    better in one direction and no maximum, which grows with the trial's length."""
    for name, metric in file.metrics.items():
        for made, known in names_of(name, metric).items():
            is_ours = metric.reader is None
            if is_ours or (known.better is not Better.NEITHER and made != LARGEST):
                yield made
    if file.times:
        yield from OWN_METRICS


def _with_directions(definition: dict[str, Any], file: DeclaredFile) -> dict[str, Any]:
    """Return a definition that says which direction of each metric is better, so that a run's
    report doesn't change with labctl's rule."""
    for name, metric in file.metrics.items():
        if metric.better is not None:
            definition["metrics"][name].setdefault("better", metric.better)
    return definition


def _plain(value: Any) -> Any:
    """Return a value without lines, as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
