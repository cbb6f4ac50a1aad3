"""Each command in a block of README and docs is executed, or a row here says why not; output that
a page shows below a command is what the command prints."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from glob import glob
from itertools import product
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from labctl.host import guest_memory
from labctl.host import topology as topology_module
from labctl.store.density_record import DensityFolder
from tests.unit.density_records import record
from tests.unit.domain import hosts
from tests.unit.fleet.fleets import hosts as fleet_hosts
from tests.unit.fleet.fleets import make_fleet, with_rollout
from tests.unit.run.asked import plan_on
from tests.unit.synthetic import synthetic_run, write_run

from .conftest import Labctl, own_files
from .test_documented_commands import PAGES as GUIDES
from .test_documented_commands import ROOT, STAND_INS

# The lessons' own test executes their commands, with those that fail on purpose.
PAGES = [*(page for page in GUIDES if page.parent.name != "lessons"), ROOT / "CONTRIBUTING.md"]
EXAMPLES = ROOT / "docs" / "examples"
NAMES = {**STAND_INS, "FILE": "policy.yaml", "/tmp/fleet": "FLEET"}

_YAML = re.compile(r"[\w-]+:( |$)")
_SYNOPSIS = re.compile(r"…|\.\.\.|\[[-A-Z]")

WHY_NOT = [
    (
        r"make |\.venv/bin/(pytest|labctl|python -m (build|pip))|pipx? install",
        "sets up, or runs for minutes",
    ),
    (r"\./gate\.sh", "measures; its lines are executed below"),
    (r"printf .* \| make shell-kvm", "boots an emulated machine"),
    (r"python -m tools\.(boot_designs|fleet_scale)", "runs for minutes, or is of an older commit"),
    (r"/usr/bin/time ", "measures labctl itself"),
    (r"(\.venv/bin/)?python -m tools\.man_pages|man -l ", "tests/unit/test_man_pages.py"),
    (r"cp server|git bisect", "needs a server's source; tests/unit/cli/test_ab.py"),
    (r"virsh|sed -i", "needs a libvirt daemon with a VM; tests/guest/test_own_vm.py"),
    (r"mmdebstrap |cd /opt|ln -s|patchelf |bin/qemu", "unpacks another release's QEMU"),
    (
        r"dpkg-build|apt-get|buildah|podman|gpg|sha256sum|python3 tools/sbom",
        "builds or checks a release",
    ),
    (r"kubectl |sed 's/NODE", "needs a cluster; tests/unit/rollout/test_job.py"),
    (r"export |ansible-(doc|playbook)", "needs hosts; tests/fleet"),
    (r"labctl fleet (sweep|rollout|wheelhouse)", "needs hosts; tests/fleet"),
    (
        r"labctl fleet (add year|report year|compare)",
        "needs runs of months; tests/unit/fleet/test_archives.py",
    ),
    (r"tar cf - .*sysfs|tar cf - .*/sys/", "copies the host's /sys"),
    (r"kernelshark|trace-cmd", "opens another program; tests/unit/report/test_trace_cmd.py"),
    (r"labctl (setup|selftest|doctor|host )", "reads or changes the host; tests/guest"),
    (r"labctl image |.* --guest", "builds or boots an image; tests/guest"),
    (r"labctl exits price|labctl advise .*--verify", "boots guests; tests/guest"),
    (r"labctl (advise .*--domain web1|.*--connect)", "needs a libvirt daemon with a VM"),
    (r"labctl sweep pinning --domain", "needs a VM's disks; tests/guest/test_own_vm.py"),
    (r"labctl (sweep|ab) .*--(kernel|qemu) ", "needs builds; tests/guest/test_kernel.py"),
    (r"labctl workload try --command", "boots a guest; tests/guest/test_own_program.py"),
    (r"labctl report RUN .*--factors", "needs such a run; tests/unit/report/test_factors.py"),
]
"""Commands that are not executed, each with the reason or the test that executes its like."""

PLANNED = re.compile(r"labctl (sweep|ab|density) (?!.*--(resume|extend|show))")
"""Commands that boot guests: their plan is printed."""


def blocks(page: Path) -> Iterator[Token]:
    yield from MarkdownIt("commonmark").enable("table").parse(page.read_text())


def commands(block: Token) -> Iterator[str]:
    """Yield the commands of an indented block, without their comments."""
    if block.type != "code_block" or _YAML.match(block.content):
        return
    for line in re.sub(r"\\\n\s*", "", block.content).splitlines():
        command = re.sub(r"(^|\s+)# .*|\s{2,}[a-z].*", "", line)
        if command and not _SYNOPSIS.search(command):
            yield command


def is_executed(command: str) -> bool:
    return not any(re.match(pattern, command) for pattern, _ in WHY_NOT)


ALL = {page: [one for block in blocks(page) for one in commands(block)] for page in PAGES}
WITH_COMMANDS = [page for page in PAGES if any(map(is_executed, ALL[page]))]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs, fleets and files that the pages' readers have."""
    place = tmp_path_factory.mktemp("world")
    own_files(place)
    results = place / "results"
    DensityFolder.create(results / "20261124T100000Z-density-frame-loop").write(
        record({"baseline": [2], "vcpupin": ["3+"]}, host={"cpus_online": "0-1"})
    )
    for name in ("on-c5", "on-c6a", "fleet"):
        shutil.copy(ROOT / "results" / "example.tar.xz", results / f"{name}.tar.xz")
    tunings = ("native", "baseline", "control", "handicap", "pinned", "pinned+fifo")
    make_fleet(results / "FLEET", fleet_hosts(4), tunings=tunings, primary_only=False)
    for host in fleet_hosts(4):
        with_rollout(results / "FLEET", host.name)
    for name in ("fleet-20261124T105915Z-6036", "spring"):
        shutil.copytree(results / "FLEET", results / name)
    for name in ("h1", "h2"):
        archive = results / "FLEET" / "hosts" / name / "run.tar.xz"
        (place / "fetched" / f"more-{name}").mkdir(parents=True)
        shutil.copy(archive, place / "fetched" / f"more-{name}")
    shutil.copy(archive, place / "node9.tar.xz")
    domain = hosts.FIXTURES / "virt-install-4.1.0-own-direct.xml"
    for name in ("web.xml", "win.xml"):
        shutil.copy(domain, place / name)
    shutil.copy(
        ROOT / "tests/unit/fixtures/platforms/vms/proxmox-01-plain.conf", place / "web.conf"
    )
    (place / "mine.yaml").write_text(_fence("conditions.md", "description: two batch jobs"))
    (place / "benchmarks" / "conditions").mkdir(parents=True)
    shutil.copy(place / "mine.yaml", place / "benchmarks" / "conditions")
    (place / "policy.yaml").write_text(_fence("gate.md", "undecided: open"))
    (place / "recorded.csv").write_text('"test","rps","p99_latency_ms"\n"GET","50220.00","1.2"\n')
    cells = product((1, 2), ("other", "fifo", "rr"), (10, 20), ("old", "new"))
    rows = (f"baseline,m,{b},{b},{p},{n},{k},ops,{100 + b + n},1/s,higher" for b, p, n, k in cells)
    head = _fence("import.md", "policy,processes,kernel").splitlines()[0]
    (place / "matrix.csv").write_text("\n".join((head, *rows, "")))
    hosts.machine("epyc-7451-2s", place / "copy")
    return place


def _fence(page: str, part: str) -> str:
    return next(
        one.content
        for one in blocks(ROOT / "docs" / page)
        if one.type == "fence" and part in one.content
    )


@pytest.fixture
def here(world: Path, labctl: Labctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "here"
    assert labctl("init", str(here)).code == 0
    shutil.copytree(world, here, dirs_exist_ok=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("LABCTL_RESULTS", str(here / "results"))
    plan_on(monkeypatch, hosts.TWO_CPUS)
    read, eight = topology_module.read_topology, hosts.topology([[n] for n in range(8)])
    monkeypatch.setattr(
        topology_module, "read_topology", lambda *of, **how: read(*of, **how) if of else eight
    )
    monkeypatch.setattr(guest_memory, "memory_available", lambda root: 10 << 30)
    return here


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_a_pages_commands_work_in_their_order(
    labctl: Labctl, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = []
    for token in blocks(page):
        if name := re.match(r"# ([\w/]+\.yaml)\n", token.content):
            Path(name[1]).write_text(token.content)
        for command in filter(is_executed, commands(token)):
            if command.startswith("cd "):
                monkeypatch.chdir(command.removeprefix("cd "))
                continue
            said = labctl(*words(command))
            if said.code not in ((0, 1) if command.startswith("labctl gate") else (0,)):
                failed.append(f"{command}\n{said.code} {said.err}")
    assert not failed, "\n".join(failed)


def test_the_recipe_for_ci_works(
    labctl: Labctl, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, given = EXAMPLES / "gate.sh", {"$study": "pinning", "$policy": "policy.yaml", "$@": ""}
    lines = re.findall(r"^labctl .*", recipe.read_text(), re.MULTILINE)
    Path("report").mkdir()
    # Redacting a whole run takes a quarter of a minute; one of two blocks decides nothing.
    monkeypatch.setenv("LABCTL_RESULTS", str(here / "ci"))
    write_run(here / "ci" / "20261128T100000Z-pinning", synthetic_run(blocks=2))
    rule = "{name: no loss, metric: events_per_s, against: baseline, worse_by_at_most: 5 %}"
    Path("policy.yaml").write_text(f"undecided: pass\nrules: [{rule}]\n")
    for line in filter(is_executed, lines):
        for variable, value in given.items():
            line = line.replace(f'"{variable}"', value)
        command = re.sub(r" \|\| .*| >\S+$", "", line)
        said = labctl(*words(command))
        assert said.code == 0, f"{command}\n{said.err}"
    assert len(lines) == 5
    assert {path.name for path in Path("report").iterdir()} == {
        *("index.html", "run.tar.xz", "gate.xml")
    }


def test_the_workflow_for_ci_runs_the_recipe(labctl: Labctl) -> None:
    workflow = yaml.safe_load((EXAMPLES / "gate.yml").read_text())
    (job,) = workflow["jobs"].values()
    run = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    assert "./gate.sh pinning policy.yaml --quick --within 45m" in run
    assert "./gate.sh pinning policy.yaml --quick --within 45m" in ALL[ROOT / "docs/gate.md"]
    kept = [step["with"]["path"] for step in job["steps"] if "artifact" in step.get("uses", "")]
    assert kept == ["report"]
    for line in run:
        if line.startswith("labctl "):
            assert labctl(*words(line), "--help").code == 0


def shown() -> Iterator[tuple[str, str]]:
    """Yield each output of a recorded run on a page, after its command."""
    for page in PAGES:
        command = ""
        for token in blocks(page):
            if token.type == "fence" and token.info == "text" and command:
                yield command, token.content
            if token.type in ("code_block", "inline"):
                found = re.findall(r"(?:`|^)(labctl \w+ example[^`\n]*)", token.content)
                command = found[-1] if found else ""


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("command", "output"), [*shown()], ids=lambda text: text[:40])
def test_output_is_as_the_page_shows_it(
    labctl: Labctl, command: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parts = re.split(r"^(?:…|\[\.\.\.\])\n", output, flags=re.MULTILINE)
    said = labctl(*words(command)).out
    lines = "\n".join(line.rstrip() for line in said.splitlines()) + "\n"
    places = [lines.find(part) for part in parts]
    assert -1 not in places, f"{parts[places.index(-1)]}\n{said}"
    assert places == sorted(places)


def test_every_reason_is_of_a_command_and_its_tests_exist() -> None:
    commands = [command for found in ALL.values() for command in found]
    for pattern, reason in WHY_NOT:
        assert any(re.match(pattern, command) for command in commands), pattern
        for named in re.findall(r"tests/[\w/.]+", reason):
            assert (ROOT / named).exists(), named


def test_targets_of_make_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [c.split()[1] for found in ALL.values() for c in found if c.startswith("make ")]
    assert len(made) > 10
    assert {*made} <= {*targets}


def words(command: str) -> list[str]:
    """Return a command's arguments, with a reader's own names and folders as in the world."""
    command = re.sub(r" >>? .*", "", command)
    command = re.sub(r"(?<= )/(var|etc|usr/share)/\S*/", "", command)
    named = (NAMES.get(one, one) for one in shlex.split(command)[1:])
    found = [one for name in named for one in (sorted(glob(name)) if "/*/" in name else [name])]
    if found[:2] == ["timeline", "example"]:
        found[1] = "example-traced"
    if PLANNED.match(command) and "--plan-only" not in found:
        found.append("--plan-only")
    return found
