"""Find and fill in templates, whatever they become: domain XML, pages, scripts, seeds, profiles of
tuned.

Those of pages and of scripts are labctl's own. Those that a lab folder may shadow (domain XML,
seeds, profiles) are filled in by Jinja's sandbox, which calls nothing but methods of plain values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labctl.base.paths import data_folders, shipped_data

if TYPE_CHECKING:
    from jinja2 import Environment

_USUAL: dict[str, Any] = {
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
}


def template_environment(kind: str, *, escapes: bool, **options: Any) -> Environment:
    """Return an environment for labctl's own templates in the folder `kind` of `templates/`, or in
    all of it (""). Names that a template isn't given are errors. `escapes`: whether values are text
    in XML or HTML; `options`: others of Jinja's."""
    # Loaded here: commands that fill in none must not take as long to start as a report.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(shipped_data() / "templates" / kind),
        autoescape=escapes,  # noqa: S701  # what isn't markup has escapes of its own
        undefined=StrictUndefined,
        **(_USUAL | options),
    )


def lab_template_environment(kind: str, *, escapes: bool) -> Environment:
    """Return the same for templates that a lab folder's shadow, in a sandbox. Raises UsageError for
    a lab folder that can't be believed."""
    from jinja2 import FileSystemLoader, StrictUndefined

    from labctl.base.sandbox import Sandbox

    return Sandbox(
        loader=FileSystemLoader([folder / kind for folder in data_folders("templates")]),
        autoescape=escapes,
        undefined=StrictUndefined,
        **_USUAL,
    )
