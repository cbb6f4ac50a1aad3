"""scipy's special functions, loaded without their package."""

import subprocess
import sys

import pytest
import scipy.special

from labctl.analysis import special

NAMES = ("bdtr", "chdtr", "chdtri", "ndtr", "ndtri", "stdtr", "stdtrit")


@pytest.mark.parametrize("name", NAMES)
def test_each_function_is_scipys_own(name: str) -> None:
    assert getattr(special, name) is getattr(scipy.special, name)


def test_what_takes_long_is_not_loaded_and_can_be_later() -> None:
    script = (
        "import sys; from labctl.analysis import special; print(*sys.modules); "
        "import scipy.special; assert scipy.special.stdtr is special.stdtr; "
        "assert scipy.special.gamma(5) == 24"
    )
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "scipy.special._ufuncs" in loaded
    assert not loaded & {"scipy.special", "scipy._lib._array_api", "numpy.f2py"}


def test_a_scipy_without_that_module_is_loaded_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scipy.special", "scipy.special._ufuncs"):
        monkeypatch.delitem(sys.modules, name)
    asked = []

    def imported(name: str) -> object:
        asked.append(name)
        if name.endswith("._ufuncs"):
            raise ImportError(name)
        return scipy.special

    monkeypatch.setattr(special, "import_module", imported)
    assert special._compiled() is scipy.special
    assert asked == ["scipy.special._ufuncs", "scipy.special"]
    assert "scipy.special" not in sys.modules
