"""Print docs/workload-keys.md: every key of a workload's file, from its models (`make docs`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from labctl.workloads import workload_file
from labctl.workloads.readers import declaration
from tools.key_tables import sections

_EXAMPLE = Path(__file__).parents[1] / "benchmarks/workloads/nginx-wrk.yaml"
PARTS = (
    ("A workload", workload_file.DeclaredFile),
    ("`parameters.NAME`", workload_file.ParameterFile),
    ("An item of `refuse`", workload_file.RefusalFile),
    ("`files.NAME`, where it is neither a path nor text", workload_file.BinaryFile),
    ("`files.NAME` in a run, of a file above 1 MiB", workload_file.HostFile),
    ("`wheels.NAME`", workload_file.WheelFile),
    ("`build`", workload_file.BuildFile),
    ("`data_disk`", workload_file.DataDiskFile),
    ("An item of `serve`", workload_file.ServeFile),
    ("`serve.ready`", workload_file.ReadyFile),
    ("`trial`", workload_file.TrialFile),
    ("`trial.warm_up`", workload_file.WarmUpFile),
    ("An item of `command` that isn't always there", workload_file.ConditionalFile),
    ("`needs`", workload_file.NeedsFile),
    ("An item of `sides`", workload_file.SideFile),
    ("`metrics.NAME`", declaration.MetricFile),
    ("`csv`", declaration.CsvFile),
    ("`hdr`", declaration.HdrFile),
    ("`operations` and `windows`", declaration.ReadingFile),
)
VARIABLES: Mapping[str, str] = {
    "vcpus": "number of the guest's vCPUs; natively as many of the host's CPUs count",
    "threads": "the same, but 1 where instructions are counted for calibration",
    "cpus": "as many CPUs as there are vCPUs, as a list: `0-3`",
    "first_cpu": "the first of them",
    "duration": "seconds of the run, 0 where `operations` limits it",
    "operations": "operations of the run, 0 where `duration` limits it",
    "window": "seconds of a window of the warm-up, 0 in a trial",
    "skip_s": "seconds that `trial.skip_s` leaves out",
    "work": "folder that servers and the command share; servers begin there",
    "cwd": "folder of the run, empty, below `work`; the command begins there",
    "files": "folder of `files` and of what `build` made of them",
    "data_path": "the data disk, its file, or the folder of its file system",
    "data_paths": "the same of each, where a study gives its guests several",
    "server": "address of the server: the peer's where one serves there, else 127.0.0.1",
    "peer": "address of the peer, empty where there is none",
    "competitor_address": "address of the competitor, where `link` makes one",
}
"""Meaning of each `{{ NAME }}`, beside the parameters."""

_HEAD = """\
# The keys of a workload

This page is for anyone who measures a program of their own and needs more than a command line \
says. Afterwards you can write a workload as a file, `benchmarks/workloads/NAME.yaml` of a lab \
folder; `labctl workload validate NAME` and `labctl workload try NAME` then show what is wrong \
with it. [Your own program](own-program.md) says what a program meets on either \
side, [How a metric is read](own-program.md#how-a-metric-is-read) what the readers take.

<!-- Written by 'make docs' from labctl/workloads/workload_file.py: change the texts there. -->

A key in **bold** must be there. A key that isn't here is refused, with the nearest that is. This \
is a whole workload, a server with its client:

"""


def page() -> str:
    """Return the page as Markdown."""
    lines = _EXAMPLE.read_text(encoding="utf-8").splitlines()[1:]
    example = "\n".join(f"    {line}".rstrip() for line in lines)
    names = "\n".join(f"| `{name}` | {text} |" for name, text in VARIABLES.items())
    filled = (
        "\n## What is filled in\n\n`{{ NAME }}` in a command, in `env` and in `serve.ready`, and a "
        "bare NAME in an expression (`when`, `work`): a parameter, or one of these.\n\n"
        f"| name | stands for |\n|---|---|\n{names}\n"
    )
    return "\n".join([f"{_HEAD}{example}", filled, *sections(PARTS)])


if __name__ == "__main__":
    sys.stdout.write(page())
