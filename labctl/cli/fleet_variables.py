"""Read the variables of roles that `labctl fleet` takes with --set."""

from __future__ import annotations

from labctl.base.errors import UsageError


def named_variables(given: tuple[str, ...]) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping. Raises UsageError for one that isn't."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--set: '{text}' is not NAME=VALUE", hint="--set labctl_hosts=rack7")
        found[name] = value
    return found
