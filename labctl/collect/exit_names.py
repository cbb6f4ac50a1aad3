"""What the kernel calls its VM exits: the names are in its tracepoints' formats.

So they are those of the running kernel and of its own CPU vendor, and the same that perf prints
(arch/x86/include/uapi/asm/vmx.h and svm.h, through arch/x86/kvm/trace.h).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.errors import BrokenError

EXIT_FORMAT = "events/kvm/kvm_exit/format"
USERSPACE_FORMAT = "events/kvm/kvm_userspace_exit/format"

VMX, SVM = 1, 2
"""KVM_ISA_VMX and KVM_ISA_SVM of arch/x86/kvm/trace.h."""

_CODE = 0xFFFFFFFF
_VMX_BASIC = 0xFFFF
"""Bits above say more, as that the entry failed (Intel SDM volume 3, "Basic VM-Exit
Information")."""

# {12, "HLT" }, {0x040 + 13, "GP excp" }, { 2, "KVM_EXIT_" "IO" }
_NAMED = re.compile(r'\{\s*([-+ 0-9a-fA-Fx]+?)\s*,\s*((?:"[^"]*"\s*)+)\}')
_QUOTED = re.compile(r'"([^"]*)"')
_SYMBOLIC = "__print_symbolic("
_FLAGS = "__print_flags("

# kvm_userspace_exit's own list ends before these (include/uapi/linux/kvm.h).
_LATER = {
    29: "X86_RDMSR",
    30: "X86_WRMSR",
    31: "DIRTY_RING_FULL",
    32: "AP_RESET_HOLD",
    33: "X86_BUS_LOCK",
    34: "XEN",
    37: "NOTIFY",
    39: "MEMORY_FAULT",
}
_RESTART = -4
"""-EINTR: KVM_RUN was left for a signal, and QEMU asks for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitNames:
    """By instruction set and code, and by the code of what KVM_RUN returns with."""

    exits: Mapping[int, Mapping[int, str]]
    userspace: Mapping[int, str]

    def exit(self, isa: int, code: int) -> str:
        """As perf prints it: "HLT" (VMX), "hlt" (SVM); "code 99" for one without a name."""
        basic = code & _VMX_BASIC if isa == VMX else code
        return self.exits.get(isa, {}).get(basic, f"code {basic}")

    def userspace_exit(self, code: int, errno: int) -> str:
        """ "IO"; "restart" after a signal, "error" after any other errno below 0, which say so in
        the tracepoint's own format too."""
        if errno < 0:
            return "restart" if errno == _RESTART else "error"
        return self.userspace.get(code) or _LATER.get(code, f"code {code}")

    def to_json(self) -> dict[str, Any]:
        return {
            "exits": {str(isa): _json(names) for isa, names in self.exits.items()},
            "userspace": _json(self.userspace),
        }

    @classmethod
    def from_json(cls, data: Any) -> ExitNames:
        """Raises KeyError, TypeError, AttributeError or ValueError for anything else."""
        return cls(
            exits={int(isa): _names(names) for isa, names in data["exits"].items()},
            userspace=_names(data["userspace"]),
        )


def read_names(exit_format: str, userspace_format: str) -> ExitNames:
    """From the two tracepoints' formats. Of another architecture than x86 there are no exits in it:
    perf has names for those. Raises BrokenError where a return to QEMU has no names."""
    tables = _tables(exit_format)
    found = _tables(userspace_format)
    if len(found) != 1:
        raise BrokenError(f"expected names in {USERSPACE_FORMAT}, found {len(found)} lists")
    return ExitNames(
        exits=dict(zip((VMX, SVM), tables, strict=True)) if len(tables) == 2 else {},
        userspace={code: name.removeprefix("KVM_EXIT_") for code, name in found[0].items()},
    )


def _tables(text: str) -> list[dict[int, str]]:
    """A list of names for each __print_symbolic of the format, in order."""
    tables = []
    for part in text.split(_SYMBOLIC)[1:]:
        named = _NAMED.findall(part.partition(_FLAGS)[0])
        tables.append({_number(code): "".join(_QUOTED.findall(said)) for code, said in named})
    return [table for table in tables if table]


def _number(expression: str) -> int:
    return sum(int(part, 0) for part in expression.split("+")) & _CODE


def _json(names: Mapping[int, str]) -> dict[str, str]:
    return {str(code): name for code, name in names.items()}


def _names(data: Mapping[str, Any]) -> dict[int, str]:
    return {int(code): str(name) for code, name in data.items()}
