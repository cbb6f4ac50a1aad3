"""Read declarations of workloads: files in `benchmarks/workloads/`, or a study's definitions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from labctl.base.errors import UsageError, nearest
from labctl.base.paths import brought_folder
from labctl.base.templates import fill_in, names_in
from labctl.base.tuning import Policy
from labctl.base.units import LARGEST, Better, Unit
from labctl.base.yaml import Placing, line_of, load_mapping, validate
from labctl.base.yamltext import YamlMapping
from labctl.workloads.commands import TIMEOUT
from labctl.workloads.loops import SHELL
from labctl.workloads.metric_file import metric_names
from labctl.workloads.readers.names import names_of
from labctl.workloads.setting import (
    BooleanParameter,
    ChoiceParameter,
    IntegerParameter,
    NumberParameter,
    Parameter,
)
from labctl.workloads.workload import Workload
from labctl.workloads.workload_file import (
    ConditionalFile,
    DeclaredFile,
    ParameterFile,
    declared_content,
    path_of,
    read_brought,
)

# Check in a workload's declaration what its types alone do not cover: names, combinations.


OWN_VARIABLES = frozenset(
    {
        *("vcpus", "threads", "cpus", "first_cpu", "duration", "operations", "window"),
        *("work", "cwd", "files", "data_path", "data_paths", "server", "peer", "skip_s"),
        "competitor_address",
    }
)
"""Names that labctl fills in."""

OWN_METRICS = ("elapsed", "user_s", "system_s", "cpu_use", "work_per_s")
"""Metrics that labctl itself measures for any declared workload, and that may be primary."""

_MOST_INTEGER = 2**62


class Checked(Placing):
    """Check in a declaration what its types alone do not cover."""

    def __init__(
        self, path: Path, mapping: Mapping[str, object], file: DeclaredFile, name: str
    ) -> None:
        self.path, self.mapping, self._file, self._name = path, mapping, file, name

    def check(self) -> None:
        file = self._file
        for name in file.parameters:
            if name in OWN_VARIABLES:
                self._fail(f"'{name}' is labctl's own name", "parameters", name)
        self._check_variables()
        self._check_serve()
        self._check_kind()
        self._check_surroundings()
        self._check_path()
        for key, patterns in (("absent", file.absent), ("explain", file.explain)):
            for pattern in patterns:
                self._check_pattern(pattern, key)
        known = metric_names(file.metrics)
        choices = {*known, *(OWN_METRICS if file.times else ())}
        self._known(file.primary, choices, "primary")
        if file.rate is not None:
            self._known(file.rate, choices, "rate")
        if "work_per_s" in (file.primary, file.rate) and file.trial.work is None:
            self._fail("'work_per_s' needs 'work', the number of operations of a run", "trial")
        is_latency = any(
            metric.as_ == "percentiles" and file.primary in names_of(name, metric)
            for name, metric in file.metrics.items()
        )
        if is_latency and file.trial.loop == "closed":
            self._fail(
                f"'{file.primary}' is a closed loop's latency, which leaves out the periods "
                "that a stall hides",
                "primary",
                hint="Use a rate or, if the program keeps a schedule, set 'loop: open' or "
                "'loop: paced' in 'trial'.",
            )

    def parameters(self) -> Iterator[Parameter]:
        """Yield the declared parameters. Raises UsageError, also for a warm-up with others."""
        declared = {name: self._declared(name, one) for name, one in self._file.parameters.items()}
        for name, value in self._file.trial.warm_up.parameters.items():
            place = ("trial", "warm_up", "parameters", name)
            if name not in declared:
                self._fail(f"no parameter '{name}'", *place, hint=nearest(name, declared))
            if not isinstance(value, str):
                with self._placed(*place):
                    declared[name].check(self._name, value)
        yield from declared.values()

    def _declared(self, name: str, one: ParameterFile) -> Parameter:
        kinds = [
            kind
            for kind in ("integer", "number", "choice", "boolean")
            if getattr(one, kind) is not None
        ]
        place = ("parameters", name)
        if len(kinds) != 1:
            self._fail(
                f"'{name}' needs exactly one of 'integer', 'number', 'choice' and 'boolean', its "
                "default",
                *place,
            )
        found = self._parameter(name, one, *place)
        with self._placed(*place):
            default = getattr(one, kinds[0])
            found.check(self._name, default)
        return found

    def _parameter(self, name: str, one: ParameterFile, *place: str) -> Parameter:
        about = one.description
        if one.boolean is not None:
            return BooleanParameter(name=name, default=one.boolean, description=about)
        if one.choice is not None:
            if one.of is None:
                self._fail(f"'{name}' needs 'of', the values of the choice", *place)
            assert one.of is not None
            return ChoiceParameter(
                name=name, default=one.choice, choices=tuple(one.of), description=about
            )
        if one.least is None or one.most is None:
            self._fail(f"'{name}' needs 'from' and 'to', its limits", *place)
        assert one.least is not None
        assert one.most is not None
        if one.integer is not None:
            return IntegerParameter(
                name=name,
                default=one.integer,
                minimum=int(max(one.least, -_MOST_INTEGER)),
                maximum=int(min(one.most, _MOST_INTEGER)),
                description=about,
                power_of_two=one.power_of_two,
            )
        assert one.number is not None
        return NumberParameter(
            name=name, default=one.number, minimum=one.least, maximum=one.most, description=about
        )

    def _check_variables(self) -> None:
        file = self._file
        known = {*file.parameters, *OWN_VARIABLES}
        for keys, text in _templates(file):
            self._names(names_in_text(text, self._place(*keys)), known, keys)
        for keys, text in _expressions(file):
            self._names(names_in_text(text, self._place(*keys), bare=True), known, keys)
        for keys, text in _conditions(file):
            used = names_in_text(text, self._place(*keys), bare=True)
            self._names(used, file.parameters, keys)
        for name, metric in file.metrics.items():
            keys = ("metrics", name, "arguments")
            for value in metric.arguments.values():
                if isinstance(value, str):
                    used = names_in_text(value, self._place(*keys))
                    self._names(used, file.parameters, keys)

    def _names(self, used: Iterable[str], known: Collection[str], keys: tuple[Any, ...]) -> None:
        for name in sorted(used):
            if name not in known:
                key = ".".join(str(k) for k in keys)
                self._fail(f"'{key}': no '{name}'", *keys, hint=nearest(name, known))

    def _check_serve(self) -> None:
        peers = {"peer": 0, "competitor": 0}
        for number, one in enumerate(self._file.serve):
            ready = one.ready
            kinds = ("tcp", "udp", "unix", "log", "command")
            given = [kind for kind in kinds if getattr(ready, kind) is not None]
            if len(given) != 1:
                self._fail(
                    f"'serve.{number}.ready' needs exactly one of tcp, udp, unix, log and command",
                    *("serve", number, "ready"),
                )
            if one.on != "machine":
                peers[one.on] += one.when is None
                if given[0] not in ("tcp", "udp"):
                    self._fail(f"a {one.on}'s server is ready by 'tcp' or 'udp'", "serve", number)
        for on, count in peers.items():
            if count > 1:
                self._fail(f"only one server may run on the {on}", "serve")
        self._check_link()

    def _check_link(self) -> None:
        places = {one.on for one in self._file.serve}
        if self._file.link is None and "competitor" in places:
            self._fail("a competitor needs 'link', the bottleneck that it shares", "serve")
        if self._file.link is not None and "peer" not in places:
            self._fail("'link' limits the path to a peer, but no server is 'on: peer'", "link")

    def _check_kind(self) -> None:
        trial = self._file.trial
        if trial.kind == "repeat" and (self._file.setup or self._file.after):
            self._fail(
                "'setup' and 'after' run once a trial, not for each run of a repeated program",
                *("trial", "kind"),
                hint="Use 'kind: once', or leave them out.",
            )
        if trial.kind == "repeat" and self._file.exit_status != [0]:
            self._fail(
                "a repeated program must end with status 0, or it is not run again",
                "exit_status",
                hint="Use 'kind: once', or sh -c '… || true'.",
            )
        disk = self._file.data_disk
        if self._file.prepare and (disk is None or disk.use != "filesystem"):
            self._fail(
                "'prepare' fills a file system, but there is none",
                "prepare",
                hint="Add 'data_disk: {use: filesystem}'.",
            )

    def _check_surroundings(self) -> None:
        """Check the settings that the command runs under: its policy and its cgroup."""
        sched, cgroup, parameters = self._file.sched, self._file.cgroup, self._file.parameters
        if sched is not None:
            used = names_in_text(sched.policy, self._place("sched", "policy"))
            self._names(used, parameters, ("sched", "policy"))
            if not used and sched.policy not in [*Policy]:
                policies = ", ".join(Policy)
                self._fail(
                    f"'sched.policy': expected one of {policies}, got '{sched.policy}'",
                    "sched",
                    "policy",
                )
            if self._file.schedules_itself:
                self._fail(
                    "'schedules_itself' and 'sched' both set the policy",
                    "sched",
                    hint="Leave one of them out.",
                )
        if cgroup is not None:
            limits = (cgroup.weight, cgroup.quota_percent, cgroup.memory_mib, cgroup.cpus)
            if all(limit is None for limit in limits):
                self._fail(
                    "a cgroup without a limit has no effect",
                    "cgroup",
                    hint="Add weight, quota_percent, memory_mib or cpus.",
                )

    def _check_path(self) -> None:
        if "PATH" not in self._file.env:
            return
        for name in binaries_of(self._file, self._name):
            if "/" not in name:
                self._fail(
                    f"'env' sets PATH, and '{name}' has no path: its file is unknown and "
                    "may differ between the two sides",
                    *("env", "PATH"),
                    hint=f"Write its path, such as '/usr/bin/{name}'.",
                )

    def _check_pattern(self, pattern: str, key: str) -> None:
        try:
            re.compile(pattern, re.M)
        except re.error as error:
            self._fail(f"'{key}': '{pattern}' is not a regular expression: {error}", key)

    def _known(self, name: str, choices: Collection[str], key: str) -> None:
        if name not in choices:
            self._fail(f"'{key}': no metric '{name}'", key, hint=nearest(name, choices))


def names_in_text(text: str, place: str, *, bare: bool = False) -> set[str]:
    """Return the variables that a text uses; raises UsageError that begins with `place`."""
    try:
        return names_in(text, bare=bare)
    except UsageError as error:
        raise UsageError(f"{place}: {error.message}", hint=error.hint) from error


def _templates(file: DeclaredFile) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield the place and the text of all templates."""
    for number, item in enumerate(file.command):
        if isinstance(item, ConditionalFile):
            for text in item.argv:
                yield ("command", number), text
        else:
            yield ("command", number), item
    for key in ("prepare", "setup", "after"):
        for number, argv in enumerate(getattr(file, key)):
            for text in argv:
                yield (key, number), text
    for number, server in enumerate(file.serve):
        for text in server.argv:
            yield ("serve", number, "argv"), text
        for text in [
            *(server.ready.command or ()),
            server.ready.unix or "",
            server.ready.log or "",
        ]:
            yield ("serve", number, "ready"), text
    for name, text in file.env.items():
        yield ("env", name), text
    if file.cgroup is not None and file.cgroup.cpus is not None:
        yield ("cgroup", "cpus"), file.cgroup.cpus
    for name, value in file.trial.warm_up.parameters.items():
        if isinstance(value, str):
            yield ("trial", "warm_up", "parameters", name), value
    for number, refusal in enumerate(file.refuse):
        yield ("refuse", number, "message"), refusal.message


def _expressions(file: DeclaredFile) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield the place and the text of bare expressions over parameters and filled-in variables."""
    for number, item in enumerate(file.command):
        if isinstance(item, ConditionalFile):
            yield ("command", number, "when"), item.when
    if file.cgroup is not None:
        for key in ("weight", "quota_percent", "memory_mib"):
            if isinstance(found := getattr(file.cgroup, key), str):
                yield ("cgroup", key), found
    if isinstance(file.trial.first_operations, str):
        yield ("trial", "first_operations"), file.trial.first_operations


def _conditions(file: DeclaredFile) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield the place and the text of bare expressions over parameters alone, which are evaluated
    before a machine exists."""
    for number, refusal in enumerate(file.refuse):
        yield ("refuse", number, "when"), refusal.when
    for number, server in enumerate(file.serve):
        if server.when is not None:
            yield ("serve", number, "when"), server.when
    for number, side in enumerate(file.sides):
        if side.when is not None:
            yield ("sides", number, "when"), side.when
    if file.cgroup is not None and file.cgroup.when is not None:
        yield ("cgroup", "when"), file.cgroup.when
    if isinstance(file.trial.work, str):
        yield ("trial", "work"), file.trial.work
    if file.data_disk is not None and isinstance(file.data_disk.writes, str):
        yield ("data_disk", "writes"), file.data_disk.writes
    if file.needs.congestion_control is not None:
        yield ("needs", "congestion_control"), file.needs.congestion_control
    for key in ("rate_mbit", "queue_bdp", "delay_ms"):
        if isinstance(found := getattr(file.link, key, None), str):
            yield ("link", key), found


def binaries_of(file: DeclaredFile, workload: str) -> Iterator[str]:
    """Yield the programs that its commands name, as they name them."""
    if file.trial.kind == "repeat":
        yield SHELL
    if file.trial.kind == "until-stopped":
        yield TIMEOUT
    first = file.command[0]
    named = [first if not isinstance(first, ConditionalFile) else ""]
    named += [server.argv[0] for server in file.serve]
    named += [argv[0] for argv in (*file.prepare, *file.setup, *file.after)]
    for name in named:
        if name and names_in(name) <= {"files"}:
            yield fill_in(name, {"files": brought_folder(workload)}, f"workload '{workload}'")
    for name in file.binaries:
        yield fill_in(name, {"files": brought_folder(workload)}, f"workload '{workload}': binaries")


def load_declaration(path: Path, name: str | None = None) -> Workload:
    """Return the workload that a file declares. Raises UsageError naming file, line and key."""
    return declare(name or path.name.removesuffix(".yaml"), load_mapping(path), path)


def declare(name: str, mapping: YamlMapping, path: Path) -> Workload:
    """Return the workload of a mapping read from `path`, with the contents of files that it names
    beside it. Raises UsageError naming file, line and key."""
    return _declared(name, _with_contents(mapping, path), path, mapping)


def of_definition(name: str, definition: Mapping[str, object]) -> Workload:
    """Return the workload in a run's plan. Raises UsageError if it is incomplete."""
    return _declared(name, definition, Path(f"the run's workload '{name}'"), definition)


def _declared(
    name: str, definition: Mapping[str, object], path: Path, mapping: Mapping[str, object]
) -> Workload:
    # Validate it as written, because its keys have line numbers.
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


def _content_of(
    found: Path, mapping: YamlMapping, path: Path, name: str
) -> str | dict[str, object]:
    """Return a file's content as a declaration holds it."""
    line = line_of(mapping, ("files", name))
    place = f"{path}:{line}" if line else str(path)
    if not found.resolve().is_relative_to(path.parent.resolve()):
        raise UsageError(
            f"{place}: 'files.{name}' is outside the workload's folder",
            hint="Put the file beside the workload.",
        )
    try:
        return declared_content(found, read_brought(found))
    except OSError as error:
        raise UsageError(f"{place}: 'files.{name}': {found}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(
            f"{place}: 'files.{name}': {found}: {error}",
            hint="Strip it ('strip FILE'), build it in the image ('build'), or install it "
            "from a package ('packages') or a wheel ('wheels').",
        ) from error


def _rate(file: DeclaredFile) -> str | None:
    """Return the metric of operations per second: the named one, else the primary one if it is such
    a rate."""
    if file.rate is not None:
        return file.rate
    if file.primary == "work_per_s":
        return file.primary
    known = metric_names(file.metrics).get(file.primary)
    if known is not None and known.unit in (Unit.PER_SECOND, Unit.BYTES_PER_SECOND):
        return file.primary if known.better is Better.HIGHER else None
    return None


def _deciding(file: DeclaredFile) -> Iterator[str]:
    """Yield the metrics that may be primary: those of the file, and those of a reader that have a
    better direction and are not maximums, which grow with the trial's length."""
    for name, metric in file.metrics.items():
        for made, known in names_of(name, metric).items():
            is_ours = metric.reader is None
            if is_ours or (known.better is not Better.NEITHER and made != LARGEST):
                yield made
    if file.times:
        yield from OWN_METRICS


def _with_directions(definition: dict[str, Any], file: DeclaredFile) -> dict[str, Any]:
    """Return a definition with the better direction of each metric, so that a run's report does not
    change with labctl's rule."""
    for name, metric in file.metrics.items():
        if metric.better is not None:
            definition["metrics"][name].setdefault("better", metric.better)
    return definition


def _plain(value: Any) -> Any:
    """Return a value without line numbers, in the form of JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
