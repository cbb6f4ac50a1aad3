"""The Job of docs/ measures one node once, and its commands are labctl's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from labctl.base.yamltext import parse_yaml
from labctl.cli.main import cli

JOB = Path(__file__).parents[3] / "docs" / "kubernetes-job.yaml"


def test_the_job_is_privileged_on_one_node_and_runs_once() -> None:
    job = parse_yaml(JOB.read_text())
    assert (job["apiVersion"], job["kind"], job["spec"]["backoffLimit"]) == ("batch/v1", "Job", 0)
    pod = job["spec"]["template"]["spec"]
    assert pod["hostPID"] is True
    assert pod["restartPolicy"] == "Never"
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "NODE"}
    [container] = pod["containers"]
    assert container["securityContext"] == {"privileged": True}
    assert container["image"] == "labctl"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


COMMANDS = [
    shlex.split(words)
    for words in re.findall(
        r"^ *(?:\[.*\] \|\| )?(labctl [a-z][^|>\n]*)", JOB.read_text(), re.MULTILINE
    )
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_command_of_the_job_parses(words: list[str]) -> None:
    command: click.Command = cli
    context = click.Context(cli)
    rest = words[1:]
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.make_parser(context).parse_args(list(rest))


def test_the_job_has_all_of_its_steps() -> None:
    assert [" ".join(words[1:3]) for words in COMMANDS] == [
        "doctor",
        "image build",
        "sweep pinning",
        "run export",
        "report latest",
    ]
