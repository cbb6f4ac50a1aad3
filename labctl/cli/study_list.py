"""List the studies that `labctl sweep` knows."""

from __future__ import annotations

import click
from rich.text import Text

from labctl.cli.common import console, print_json
from labctl.report.parts import bare_table
from labctl.study.studies import study_titles


def list_studies(*, as_json: bool) -> None:
    """Print each study's name and question."""
    titles = study_titles()
    if as_json:
        print_json(
            {"schema": 1, "studies": [{"name": name, "title": title} for name, title in titles]}
        )
        return
    table = bare_table("", "study", "the question that it asks")
    for name, title in titles:
        table.add_row(Text(name), Text(title, overflow="fold"))
    console(listing=True).print(table)
    click.echo(
        "\n'labctl sweep STUDY --plan-only' shows what one measures, and for how long."
        "\n'labctl sweep pinning --quick' is the one to begin with."
    )
