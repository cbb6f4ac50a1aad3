"""Say whether pyarrow is installed, which reads and writes Parquet: no other library is as
large, and measuring needs none of it."""

from __future__ import annotations

from importlib.util import find_spec

from labctl.base.errors import HostError
from labctl.base.paths import shipped_data


def need_pyarrow(what: str) -> None:
    """Raise HostError if pyarrow isn't installed. `what`: the command or option that needs it."""
    if find_spec("pyarrow") is not None:
        return
    is_checkout = (shipped_data() / "pyproject.toml").is_file()
    raise HostError(
        f"'{what}' needs pyarrow, which is not installed",
        hint="Run 'make setup'." if is_checkout else "Install it: pip install 'labctl[parquet]'.",
    )
