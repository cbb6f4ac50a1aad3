"""Write the JSON Schemas that the first lines of YAML files name (`make docs`)."""

from __future__ import annotations

from pathlib import Path

from labctl.cli.lint import KINDS
from labctl.cli.parts.common import json_text

FOLDER = Path(__file__).parents[1] / "templates/schemas"


def texts() -> dict[str, str]:
    """Return the text of each file, by its name."""
    return {f"{kind}.json": json_text(made()) + "\n" for kind, (made, _) in KINDS.items()}


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
