"""Define KVM's names of exit reasons, by their numbers in its tracepoints.

Source: print fmt of kvm:kvm_exit and kvm:kvm_userspace_exit, Linux 6.18 (x86).
"""

from __future__ import annotations

VMX, SVM = 1, 2
"""`isa` of kvm:kvm_exit."""

_VMX = {
    0: "EXCEPTION_NMI",
    1: "EXTERNAL_INTERRUPT",
    2: "TRIPLE_FAULT",
    3: "INIT_SIGNAL",
    4: "SIPI_SIGNAL",
    7: "INTERRUPT_WINDOW",
    8: "NMI_WINDOW",
    9: "TASK_SWITCH",
    10: "CPUID",
    12: "HLT",
    13: "INVD",
    14: "INVLPG",
    15: "RDPMC",
    16: "RDTSC",
    18: "VMCALL",
    19: "VMCLEAR",
    20: "VMLAUNCH",
    21: "VMPTRLD",
    22: "VMPTRST",
    23: "VMREAD",
    24: "VMRESUME",
    25: "VMWRITE",
    26: "VMOFF",
    27: "VMON",
    28: "CR_ACCESS",
    29: "DR_ACCESS",
    30: "IO_INSTRUCTION",
    31: "MSR_READ",
    32: "MSR_WRITE",
    33: "INVALID_STATE",
    34: "MSR_LOAD_FAIL",
    36: "MWAIT_INSTRUCTION",
    37: "MONITOR_TRAP_FLAG",
    39: "MONITOR_INSTRUCTION",
    40: "PAUSE_INSTRUCTION",
    41: "MCE_DURING_VMENTRY",
    43: "TPR_BELOW_THRESHOLD",
    44: "APIC_ACCESS",
    45: "EOI_INDUCED",
    46: "GDTR_IDTR",
    47: "LDTR_TR",
    48: "EPT_VIOLATION",
    49: "EPT_MISCONFIG",
    50: "INVEPT",
    51: "RDTSCP",
    52: "PREEMPTION_TIMER",
    53: "INVVPID",
    54: "WBINVD",
    55: "XSETBV",
    56: "APIC_WRITE",
    57: "RDRAND",
    58: "INVPCID",
    59: "VMFUNC",
    60: "ENCLS",
    61: "RDSEED",
    62: "PML_FULL",
    63: "XSAVES",
    64: "XRSTORS",
    67: "UMWAIT",
    68: "TPAUSE",
    74: "BUS_LOCK",
    75: "NOTIFY",
    77: "TDCALL",
    84: "MSR_READ_IMM",
    85: "MSR_WRITE_IMM",
}

_SVM = (
    {
        0x60: "interrupt",
        0x61: "nmi",
        0x62: "smi",
        0x63: "init",
        0x64: "vintr",
        0x65: "cr0_sel_write",
        0x66: "read_idtr",
        0x67: "read_gdtr",
        0x68: "read_ldtr",
        0x69: "read_rt",
        0x6A: "write_idtr",
        0x6B: "write_gdtr",
        0x6C: "write_ldtr",
        0x6D: "write_rt",
        0x6E: "rdtsc",
        0x6F: "rdpmc",
        0x70: "pushf",
        0x71: "popf",
        0x72: "cpuid",
        0x73: "rsm",
        0x74: "iret",
        0x75: "swint",
        0x76: "invd",
        0x77: "pause",
        0x78: "hlt",
        0x79: "invlpg",
        0x7A: "invlpga",
        0x7B: "io",
        0x7C: "msr",
        0x7D: "task_switch",
        0x7E: "ferr_freeze",
        0x7F: "shutdown",
        0x80: "vmrun",
        0x81: "hypercall",
        0x82: "vmload",
        0x83: "vmsave",
        0x84: "stgi",
        0x85: "clgi",
        0x86: "skinit",
        0x87: "rdtscp",
        0x88: "icebp",
        0x89: "wbinvd",
        0x8A: "monitor",
        0x8B: "mwait",
        0x8D: "xsetbv",
        0x8F: "write_efer_trap",
        0x90: "write_cr0_trap",
        0x94: "write_cr4_trap",
        0x98: "write_cr8_trap",
        0xA2: "invpcid",
        0xA5: "buslock",
        0xA6: "idle-halt",
        0x400: "npf",
        0x401: "avic_incomplete_ipi",
        0x402: "avic_unaccelerated_access",
        0x403: "vmgexit",
        0x80000001: "vmgexit_mmio_read",
        0x80000002: "vmgexit_mmio_write",
        0x80000003: "vmgexit_nmi_complete",
        0x80000004: "vmgexit_ap_hlt_loop",
        0x80000005: "vmgexit_ap_jump_table",
        0x80000010: "vmgexit_page_state_change",
        0x80000011: "vmgexit_guest_request",
        0x80000012: "vmgexit_ext_guest_request",
        0x80000013: "vmgexit_ap_creation",
        0x8000FFFD: "vmgexit_hypervisor_feature",
        0xFFFFFFFF: "invalid_guest_state",
    }
    | {
        0x40 + vector: f"{name} excp"
        for vector, name in (
            (0, "DE"),
            (1, "DB"),
            (3, "BP"),
            (4, "OF"),
            (5, "BR"),
            (6, "UD"),
            (7, "NM"),
            (8, "DF"),
            (10, "TS"),
            (11, "NP"),
            (12, "SS"),
            (13, "GP"),
            (14, "PF"),
            (16, "MF"),
            (17, "AC"),
            (18, "MC"),
            (19, "XF"),
        )
    }
    | {
        base + register: f"{verb}_{kind}{register}"
        for base, verb, kind, registers in (
            (0x00, "read", "cr", (0, 2, 3, 4, 8)),
            (0x10, "write", "cr", (0, 2, 3, 4, 8)),
            (0x20, "read", "dr", range(8)),
            (0x30, "write", "dr", range(8)),
        )
        for register in registers
    }
)

_TO_QEMU = {
    0: "UNKNOWN",
    1: "EXCEPTION",
    2: "IO",
    3: "HYPERCALL",
    4: "DEBUG",
    5: "HLT",
    6: "MMIO",
    7: "IRQ_WINDOW_OPEN",
    8: "SHUTDOWN",
    9: "FAIL_ENTRY",
    10: "INTR",
    11: "SET_TPR",
    12: "TPR_ACCESS",
    16: "NMI",
    17: "INTERNAL_ERROR",
    24: "SYSTEM_EVENT",
    26: "IOAPIC_EOI",
    27: "HYPERV",
    29: "X86_RDMSR",
    30: "X86_WRMSR",
    # Linux 6.18 has no names for those after it (include/uapi/linux/kvm.h).
    31: "DIRTY_RING_FULL",
    32: "AP_RESET_HOLD",
    33: "X86_BUS_LOCK",
    34: "XEN",
    37: "NOTIFY",
    39: "MEMORY_FAULT",
}
_RESTART = -4
"""-EINTR: the thread received a signal."""

IDLE = frozenset({"HLT", "hlt", "idle-halt"})
"""Names of exits whose time is the guest's idle time, and KVM's polling in it (METHOD 14)."""

HALTS = {VMX: (12, 36), SVM: (0x78, 0x8B, 0xA6)}
"""Exits of an idle guest: HLT and MWAIT."""
SPINS = {VMX: (40,), SVM: (0x77,)}
"""Exits of a guest that spins on PAUSE for longer than the host allows."""


def exit_name(isa: int, reason: int) -> str:
    """Return the exit's name. `reason`: without the flags that VMX puts above its 16 bits."""
    names = {VMX: _VMX, SVM: _SVM}.get(isa, {})
    return names.get(reason, f"reason {reason:#x}")


def qemu_exit_name(reason: int, errno: int = 0) -> str:
    """Return why KVM returned to QEMU: KVM_EXIT_... without that prefix; "restart" or "error",
    whatever the reason, when it returned with an `errno` below 0."""
    if errno < 0:
        return "restart" if errno == _RESTART else "error"
    return _TO_QEMU.get(reason, f"reason {reason}")
