import re

import pytest

from labctl.trace.exit_names import SVM, VMX, exit_name, qemu_exit_name
from tests.unit.collect.trials import recorded

_NAMED = re.compile(r'\{\s*([-+ 0-9a-fA-Fx]+?)\s*,\s*((?:"[^"]*"\s*)+)\}')


def _kernels_names(format_file: str) -> list[dict[int, str]]:
    """A list for each __print_symbolic of a tracepoint's format, in order."""
    parts = recorded(format_file).split("__print_symbolic(")[1:]
    return [
        {
            sum(int(n, 0) for n in code.split("+")) & 0xFFFFFFFF: re.sub(
                r'"\s*"|"', "", said
            ).strip()
            for code, said in _NAMED.findall(part.partition("__print_flags")[0])
        }
        for part in parts
    ]


def test_every_exit_is_called_what_the_kernel_calls_it() -> None:
    vmx, svm = _kernels_names("format-kvm_exit-linux-6.18.txt")
    assert len(vmx) > 60
    assert {code: exit_name(VMX, code) for code in vmx} == vmx
    assert len(svm) > 100
    assert {code: exit_name(SVM, code) for code in svm} == svm


def test_returns_to_qemu_are_called_what_the_kernel_calls_them() -> None:
    (names,) = _kernels_names("format-kvm_userspace_exit-linux-6.18.txt")
    x86 = {
        code: name.removeprefix("KVM_EXIT_")
        for code, name in names.items()
        if not re.search("S390|DCR|OSI|PAPR|WATCHDOG|EPR|ARM", name)
    }
    assert {code: qemu_exit_name(code) for code in x86} == x86


@pytest.mark.parametrize(
    ("code", "errno", "name"),
    [(33, 0, "X86_BUS_LOCK"), (999, 0, "reason 999"), (2, -4, "restart"), (39, -14, "error")],
)
def test_a_return_for_a_signal_or_an_error_is_named_so(code: int, errno: int, name: str) -> None:
    assert qemu_exit_name(code, errno) == name
