"""A thread in C that keeps known values in all registers, flags and the red zone, and counts how often one differs.

    python registers.py STATE

STATE is a file of three 8-byte integers that is mapped: unused, rounds, differences.  Needs a C compiler (cc).
"""

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

GENERAL = ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", *(f"r{number}" for number in range(8, 16))]
KEPT = ["rbx", "rbp", "r12", "r13", "r14", "r15"]
ZONE, TURNS = 16, 200_000  # words of red zone; of the inner loop, in which a stop is likely to fall
WIDE = " avx " in Path("/proc/cpuinfo").read_text()
VECTOR, LOAD = ("ymm", "vmovdqu") if WIDE else ("xmm", "movdqu")
BYTES = 32 if WIDE else 16


def pattern(number):
    return int.from_bytes(bytes((17 * number + 3 + 7 * place) & 0xFF for place in range(8)), "little")


def differs(value, place):
    return [f"cmp {value}, [rip + {place}]", "jne bad"]


def program():
    """x86_64, in Intel's syntax.  [rsp]: turns left, [rsp + 8]: the state, [rsp + 16]: the carry as it was found."""
    yield from (".intel_syntax noprefix", ".globl check", "check:", *(f"push {name}" for name in KEPT))
    yield from ("sub rsp, 24", "mov [rsp + 8], rdi", "outer:")
    for word in range(ZONE):
        yield from (f"movabs rax, {pattern(100 + word)}", f"mov [rsp - {8 * word + 8}], rax")
    yield from (f"{LOAD} {VECTOR}{number}, [rip + vectors + {BYTES * number}]" for number in range(16))
    yield from (f"movabs {name}, {pattern(number)}" for number, name in enumerate(GENERAL))
    yield from (f"mov qword ptr [rsp], {TURNS}", "std", "stc", "inner:", "dec qword ptr [rsp]", "jnz inner")
    yield "setc byte ptr [rsp + 16]"
    for number, name in enumerate(GENERAL):
        yield from differs(name, f"general + {8 * number}")
    for word in range(ZONE):
        yield from (f"mov rax, [rsp - {8 * word + 8}]", *differs("rax", f"zone + {8 * word}"))
    for number in range(16):
        yield f"{LOAD} [rsp - 160], {VECTOR}{number}"
        for at in range(0, BYTES, 8):
            yield from (f"mov rax, [rsp - {160 - at}]", *differs("rax", f"vectors + {BYTES * number + at}"))
    yield from ("cmp byte ptr [rsp + 16], 1", "jne bad", "pushfq", "pop rax", "test eax, 0x400", "jz bad", "cld")
    yield from ("mov rdi, [rsp + 8]", "inc qword ptr [rdi + 8]", "jmp outer")
    yield from ("bad:", "cld", "mov rdi, [rsp + 8]", "inc qword ptr [rdi + 16]", "jmp outer")
    yield from ("general:", *(f".quad {pattern(number)}" for number in range(len(GENERAL))))
    yield from ("zone:", *(f".quad {pattern(100 + word)}" for word in range(ZONE)))
    yield from ("vectors:", *(f".quad {pattern(200 + word)}" for word in range(16 * BYTES // 8)))
    yield '.section .note.GNU-stack, "", @progbits'


def main(path):
    with tempfile.TemporaryDirectory() as folder:
        source, library = os.path.join(folder, "check.s"), os.path.join(folder, "check.so")
        with open(source, "w") as file:
            file.write("\n".join(program()) + "\n")
        subprocess.run(["cc", "-shared", "-o", library, source], check=True)
        check = ctypes.CDLL(library).check
    with open(path, "r+b") as file:
        state = mmap.mmap(file.fileno(), 24)
    address = ctypes.addressof(ctypes.c_char.from_buffer(state))
    print("ready", flush=True)
    check(ctypes.c_void_p(address))


main(sys.argv[1])
