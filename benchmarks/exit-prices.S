/* A guest that is nothing but its firmware: one instruction that makes a VM exit, over and over.
 *
 * labctl writes what to do into the first words of the image and reads from the debug port how
 * many cycles of the time stamp counter each round took, as 16 hexadecimal digits a line.
 *
 * 64 KiB at 0xf0000, entered at the reset vector in real mode (Intel SDM vol. 3, "First
 * Instruction Executed").
 */
    .code16
    .globl _start
_start:
kind:       .long 0             /* index into `kinds` */
iterations: .long 0             /* of a round */
rounds:     .long 0
untouched:  .long 0x1000000     /* from here on no byte of the memory has been used */

    .set DEBUG_PORT, 0xe9
    .set TIMED, 0x7000          /* when the round began, in RAM */
    .set STACK, 0x8000

enter:
    cli
    lgdtl %cs:(table - _start)
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $8, $flat

    .align 8
gdt:
    .quad 0
    .quad 0x00cf9b000000ffff    /* code, 4 GiB from 0; accessed, as this table is in ROM */
    .quad 0x00cf93000000ffff    /* data, the same */
table:
    .word table - gdt - 1
    .long gdt

    .code32
flat:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $STACK, %esp
    /* The local APIC on, and its timer one that waits for a time stamp, masked. */
    movl $0x1ff, 0xfee000f0
    movl $0x500ef, 0xfee00320
    movl untouched, %esi
    movl rounds, %ebp
round:
    movl iterations, %edi
    movl kind, %eax
    lfence
    rdtsc
    movl %eax, TIMED
    movl %edx, TIMED + 4
    movl kind, %eax
    jmp *kinds(, %eax, 4)
timed:
    lfence
    rdtsc
    subl TIMED, %eax
    sbbl TIMED + 4, %edx
    pushl %eax
    movl %edx, %eax
    call print
    popl %eax
    call print
    movb $'\n', %al
    outb %al, $DEBUG_PORT
    decl %ebp
    jnz round
    movb $'.', %al
    outb %al, $DEBUG_PORT
stop:
    hlt                         /* with interrupts off: for good */
    jmp stop

print:                          /* %eax as 8 hexadecimal digits */
    movl $8, %ecx
digit:
    roll $4, %eax
    movl %eax, %edx
    andl $15, %edx
    movb digits(%edx), %dl
    xchgb %al, %dl
    outb %al, $DEBUG_PORT
    xchgb %al, %dl
    loop digit
    ret
digits:
    .ascii "0123456789abcdef"

    .macro repeat name, instructions:vararg
\name:
    \instructions
    decl %edi
    jnz \name
    jmp timed
    .endm

    .align 4
kinds:
    .long nothing, cpuid, msr_read, msr_write, port_kernel, port_qemu
    .long memory_kernel, memory_qemu, hypercall_intel, hypercall_amd, first_touch, apic_eoi

nothing:
    decl %edi
    jnz nothing
    jmp timed

cpuid:
    xorl %eax, %eax
    cpuid
    decl %edi
    jnz cpuid
    jmp timed

msr_read:
    movl $0x1b, %ecx            /* IA32_APIC_BASE */
1:  rdmsr
    decl %edi
    jnz 1b
    jmp timed

msr_write:
    movl $0x6e0, %ecx           /* IA32_TSC_DEADLINE, in the far future */
    movl $0x00ffffff, %edx
1:  wrmsr
    decl %edi
    jnz 1b
    jmp timed

    repeat port_kernel, inb $0x21, %al      /* the interrupt controller's mask, in KVM */
    repeat port_qemu, outb %al, $0x80       /* the port of power-on codes, in QEMU */
    repeat memory_kernel, movl 0xfec00000, %eax     /* the I/O APIC, in KVM */
    repeat memory_qemu, movl 0xfed00000, %eax       /* the HPET, in QEMU */

hypercall_intel:
    movl $1, %eax               /* KVM_HC_VAPIC_POLL_IRQ: does nothing */
    vmcall
    decl %edi
    jnz hypercall_intel
    jmp timed

hypercall_amd:
    movl $1, %eax
    vmmcall
    decl %edi
    jnz hypercall_amd
    jmp timed

first_touch:
    movb $1, (%esi)
    addl $4096, %esi
    decl %edi
    jnz first_touch
    jmp timed

    repeat apic_eoi, movl $0, 0xfee000b0

    .org 0xfff0
    .code16
    ljmp $0xf000, $(enter - _start)
    .org 0x10000
