"""Load scipy's special functions without the rest of their package.

`scipy.special` imports support for arrays of other libraries: 200 modules, including numpy's
Fortran wrappers, which would take a fifth of the time of `labctl report`. The functions themselves
are numpy ufuncs in one compiled module, which does not need them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_PACKAGE: Final = "scipy.special"


def _compiled() -> Any:
    """Return the compiled module; the package itself if a version of scipy has none."""
    scipy = find_spec("scipy")
    if scipy is None or scipy.origin is None or _PACKAGE in sys.modules:
        return import_module(_PACKAGE)
    # Importing a submodule imports its package first, so an empty package takes its place.
    empty = ModuleType(_PACKAGE)
    empty.__path__ = [str(Path(scipy.origin).with_name("special"))]
    sys.modules[_PACKAGE] = empty
    try:
        return import_module(f"{_PACKAGE}._ufuncs")
    except ImportError:
        pass
    finally:
        del sys.modules[_PACKAGE]
    return import_module(_PACKAGE)


_functions = _compiled()

bdtr = _functions.bdtr
chdtr = _functions.chdtr
chdtri = _functions.chdtri
ndtr = _functions.ndtr
ndtri = _functions.ndtri
stdtr = _functions.stdtr
stdtrit = _functions.stdtrit
