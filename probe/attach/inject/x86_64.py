"""x86_64: registers, the signal frame, the calling convention and the new thread's code.

Made by `target.this_machine`.  Layouts are the kernel's (struct user_regs_struct, rt_sigframe) and the System V ABI's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

Registers = dict[str, int]  # by the processor's own names

# What the new thread calls, in the order of the table at the start of its page.
STUB_CALLS = (
    "pthread_self", "pthread_detach", "Py_IsInitialized", "PyGILState_Ensure", "PyRun_SimpleString",
    "PyGILState_Release", "munmap",
)  # fmt: skip

WORD = (1 << 64) - 1
RED_ZONE = 128  # bytes below the stack pointer that a leaf function may be using
NO_SYSCALL = WORD  # in orig_rax: the kernel restarts nothing
RESTART_SYSCALL = 219
ERESTART, ERESTART_BLOCK = (-512, -513, -514), -516
SYSCALL_BYTES = 2  # the length of the instruction

_REGISTERS = (  # struct user_regs_struct
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax",
    "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip
_IN_SIGCONTEXT = (
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx", "rsp", "rip",
    "eflags",
)  # fmt: skip
_CALL_ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
_SYSCALL_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
_DIRECTION_AND_TRAP = 0x500  # flags that must be clear on entry of a function

XSAVE_SOFTWARE = 464  # offset of the bytes of the legacy area that the kernel leaves to software
XSAVE_MAGIC, XSAVE_MAGIC_END = 0x46505853, 0x46505845
UCONTEXT_BYTES = 304
UCONTEXT_ROOM = 512  # kept for it; what is left is the frame's scratch
UCONTEXT_FLAGS = 7  # UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS

_RESTARTABLE = {
    "nanosleep": 35, "clock_nanosleep": 230, "futex": 202, "poll": 7, "ppoll": 271, "select": 23, "pselect6": 270,
    "accept": 43, "accept4": 288, "wait4": 61, "waitid": 247,
}  # fmt: skip
_MAY_SHOW_EINTR = {
    "epoll_wait": 232, "epoll_pwait": 281, "epoll_pwait2": 441, "recvfrom": 45, "recvmsg": 47, "pause": 34,
    "rt_sigtimedwait": 128, "rt_sigsuspend": 130,
}  # fmt: skip
_UNDER_A_LOCK = {
    "read": 0, "open": 2, "close": 3, "fstat": 5, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "pread64": 17,
    "access": 21, "mremap": 25, "madvise": 28, "clone": 56, "readlink": 89, "openat": 257, "newfstatat": 262,
    "readlinkat": 267, "set_robust_list": 273, "statx": 332, "rseq": 334, "clone3": 435, "openat2": 437,
}  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """data: a signal frame to be written at `stack`; scratch: address of 8 free bytes inside it."""

    stack: int
    data: bytes
    scratch: int


@dataclass(frozen=True)
class SystemCalls:
    """Numbers.  waiting: calls in which a thread may block for long; restartable: those of them in which the program
    does not see a stop; under_a_lock: what malloc, the loader and libpthread call while holding a lock."""

    futex: int
    read: int
    mmap: int
    clones: frozenset[int]
    waiting: frozenset[int]
    restartable: frozenset[int]
    under_a_lock: frozenset[int]


class X86_64:
    """Everything in `inject` that depends on the processor.  Another one is a class with these attributes and methods,
    in a file of its own, and one line in `target.this_machine`.

    pc, stack, thread_block: the registers with the next instruction, the stack and libc's descriptor of the thread
    (struct pthread); extended_regset: holds everything that rt_sigreturn restores besides the registers; restorers: the
    code of libc's signal trampoline; stub_offset, text_offset: where the stub's code begins, and the text behind it.
    """

    name = "x86_64"
    pc, stack, thread_block = "rip", "rsp", "fs_base"
    thread_id_offset = 0x2D0  # struct pthread.tid, glibc 2.17 to 2.33; later ones export it
    extended_regset = 0x202  # NT_X86_XSTATE
    restorers: tuple[bytes, ...] = (b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05",)  # mov $15, %rax; syscall
    calls = SystemCalls(
        futex=202,
        read=0,
        mmap=9,
        clones=frozenset((56, 435)),
        waiting=frozenset((*_RESTARTABLE.values(), *_MAY_SHOW_EINTR.values())),
        restartable=frozenset(_RESTARTABLE.values()),
        under_a_lock=frozenset(_UNDER_A_LOCK.values()),
    )
    stub_offset = 0x80
    text_offset = 0x200

    def unpack(self, raw: bytes) -> Registers:
        return dict(zip(_REGISTERS, struct.unpack("<27Q", raw), strict=True))

    def pack(self, registers: Registers) -> bytes:
        return struct.pack("<27Q", *(registers[name] & WORD for name in _REGISTERS))

    def syscall(self, registers: Registers) -> int | None:
        """The number of the interrupted system call, None in user code."""
        number = _signed(registers["orig_rax"])
        return number if number >= 0 else None

    def argument(self, registers: Registers, index: int) -> int:
        """An argument of the interrupted system call."""
        return registers[_SYSCALL_ARGUMENTS[index]]

    def is_thread_block(self, address: int, first: bytes) -> bool:
        """Whether a descriptor may be at this address, given its first 8 bytes."""
        return int.from_bytes(first, "little") == address  # fs:0 holds fs itself

    def resumed(self, registers: Registers) -> Registers:
        """Registers with which the thread goes on as if it had not been stopped, after any kind of stop.

        This does by hand what the kernel does after a stop without a handler: back to the `syscall` instruction.
        """
        after = dict(registers)
        if self.syscall(registers) is not None:
            result = _signed(registers["rax"])
            if result in ERESTART:
                after["rax"], after["rip"] = registers["orig_rax"], registers["rip"] - SYSCALL_BYTES
            elif result == ERESTART_BLOCK:
                after["rax"], after["rip"] = RESTART_SYSCALL, registers["rip"] - SYSCALL_BYTES
        after["orig_rax"] = NO_SYSCALL
        return after

    def calling(self, registers: Registers, function: int, arguments: list[int], stack: int) -> Registers:
        """Registers that enter the function with the return addresses at `stack`."""
        inside = {**registers, **dict(zip(_CALL_ARGUMENTS, arguments, strict=False))}
        inside.update(rip=function, rsp=stack, rax=0, orig_rax=NO_SYSCALL)
        inside["eflags"] &= ~_DIRECTION_AND_TRAP
        return inside

    def signal_frame(self, registers: Registers, extended: bytes, mask: int, returns: tuple[int, int, int]) -> Frame:
        """What the kernel would have pushed for a handler that returns through `returns`.

        From `stack` upwards: the return addresses, struct ucontext, scratch, the extended state.  rt_sigreturn expects
        the ucontext at the stack pointer once the last return address was popped; three words before its 16-byte
        alignment give the ABI's stack at a function's entry.
        """
        room = (registers["rsp"] - RED_ZONE) & ~63
        state_at = (room - len(extended) - 64) & ~63
        context_at = (state_at - UCONTEXT_ROOM) & ~15
        chain = struct.pack("<3Q", *returns)
        context = _ucontext(registers, mask, state_at)
        gap = bytes(state_at - context_at - len(context))
        return Frame(
            stack=context_at - len(chain),
            data=chain + context + gap + _extended_state(extended),
            scratch=context_at + UCONTEXT_BYTES + 16,
        )

    def stub(self, page: int, length: int, symbols: dict[str, int]) -> bytes:
        """The page up to the text, which begins at text_offset: table of functions, then the code start_routine(page),
        with which the new thread runs the text in the interpreter and unmaps the page."""
        table = struct.pack("<8Q", *(symbols[name] for name in STUB_CALLS), length)
        return (table.ljust(self.stub_offset, b"\0") + _stub_code(self.text_offset)).ljust(self.text_offset, b"\0")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _ucontext(registers: Registers, mask: int, state_at: int) -> bytes:
    # with a stack_t of size 0 rt_sigreturn leaves the alternate signal stack alone
    head = struct.pack("<QQQIIQ", UCONTEXT_FLAGS, 0, 0, 0, 0, 0)
    general = struct.pack("<18Q", *(registers[name] for name in _IN_SIGCONTEXT))
    segments = struct.pack("<4H", registers["cs"] & 0xFFFF, 0, 0, registers["ss"] & 0xFFFF)
    tail = struct.pack("<5Q", 0, 0, mask, 0, state_at) + bytes(64) + struct.pack("<Q", mask)
    return head + general + segments + tail


def _extended_state(state: bytes) -> bytes:
    """With the marks by which rt_sigreturn recognizes an XSAVE area; ptrace leaves the feature mask there."""
    (features,) = struct.unpack_from("<Q", state, XSAVE_SOFTWARE)
    marked = bytearray(state)
    struct.pack_into("<IIQI", marked, XSAVE_SOFTWARE, XSAVE_MAGIC, len(state) + 4, features, len(state))
    return bytes(marked) + struct.pack("<I", XSAVE_MAGIC_END)


def _stub_code(text_offset: int) -> bytes:
    """rbx: the page, r12d: the GIL state.  The last instruction jumps to munmap, so nothing returns to the page."""
    slot = {name: 8 * index for index, name in enumerate((*STUB_CALLS, "length"))}

    def call(name: str) -> bytes:
        return b"\xff\x53" + bytes([slot[name]])  # call [rbx + slot]

    enter = b"\xf3\x0f\x1e\xfa\x53\x41\x54\x48\x83\xec\x08"  # endbr64; push rbx; push r12; sub rsp, 8
    enter += b"\x48\x89\xfb"  # mov rbx, rdi
    enter += call("pthread_self") + b"\x48\x89\xc7" + call("pthread_detach")  # mov rdi, rax
    run = call("PyGILState_Ensure") + b"\x41\x89\xc4"  # mov r12d, eax
    run += b"\x48\x8d\xbb" + struct.pack("<i", text_offset) + call("PyRun_SimpleString")  # lea rdi, [rbx + text]
    run += b"\x44\x89\xe7" + call("PyGILState_Release")  # mov edi, r12d
    guard = call("Py_IsInitialized") + b"\x85\xc0\x74" + bytes([len(run)])  # test eax, eax; jz past `run`
    leave = b"\x48\x83\xc4\x08\x48\x89\xdf"  # add rsp, 8; mov rdi, rbx
    leave += b"\x48\x8b\x73" + bytes([slot["length"]])  # mov rsi, [rbx + length]
    leave += b"\x48\x8b\x43" + bytes([slot["munmap"]])  # mov rax, [rbx + munmap]
    leave += b"\x41\x5c\x5b\xff\xe0"  # pop r12; pop rbx; jmp rax
    return enter + guard + run + leave
