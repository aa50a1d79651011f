"""What attaching needs to know about a processor.

Everything that depends on the machine is behind `Architecture`; another processor is one more file like `x86_64` and
one line in `target.this_machine`.  Registers are a dict by the processor's own names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

Registers = dict[str, int]

# What the new thread calls, in the order of the table at the start of its page.
STUB_CALLS = (
    "pthread_self", "pthread_detach", "Py_IsInitialized", "PyGILState_Ensure", "PyRun_SimpleString",
    "PyGILState_Release", "munmap",
)  # fmt: skip


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


class Architecture(Protocol):
    name: str
    extended_regset: int  # the regset that holds everything rt_sigreturn restores besides the registers
    restorers: tuple[bytes, ...]  # the code of libc's signal trampoline
    calls: SystemCalls
    text_offset: int  # where the text lies behind the stub

    def unpack(self, raw: bytes) -> Registers: ...
    def pack(self, registers: Registers) -> bytes: ...
    def pc(self, registers: Registers) -> int: ...
    def stack(self, registers: Registers) -> int: ...
    def syscall(self, registers: Registers) -> int | None:
        """The number of the interrupted system call, None in user code."""

    def argument(self, registers: Registers, index: int) -> int:
        """An argument of the interrupted system call."""

    def thread_block(self, registers: Registers) -> int:
        """The address of libc's descriptor of this thread (struct pthread)."""

    def is_thread_block(self, address: int, first: bytes) -> bool:
        """Whether such a descriptor may be at this address, given its first 8 bytes."""

    def thread_id_offset(self, exported: int | None) -> int:
        """Of the thread id in that descriptor; exported: what libc itself says (since 2.34)."""

    def resumed(self, registers: Registers) -> Registers:
        """Registers with which the thread goes on as if it had not been stopped, after any kind of stop."""

    def calling(self, registers: Registers, function: int, arguments: list[int], stack: int) -> Registers:
        """Registers that enter the function with the return addresses at `stack`."""

    def signal_frame(self, registers: Registers, extended: bytes, mask: int, returns: tuple[int, int, int]) -> Frame:
        """What the kernel would have pushed for a handler that returns through `returns`."""

    def stub(self, page: int, length: int, symbols: dict[str, int]) -> bytes:
        """The new thread's code for that page: runs the text behind it in the interpreter, then unmaps the page."""

    def stub_entry(self, page: int) -> int:
        """Where that code begins."""
