"""Two threads of ours that stand at a known place, and the memory of this process: what interpreter_layout searches.

Invariant: a wrong address is an error and no crash, for memory is read through /proc/self/mem; and the threads end with
the block.
"""

from __future__ import annotations

import os
import struct
import sys
import time
import types
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread
from collections.abc import Sequence
from typing import Any

WORD = struct.calcsize("Q")
_INTERPRETER_WORDS = 4096

Words = Sequence[int]


class Memory:
    """Of this process."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)

    def words(self, address: int, count: int) -> Words:
        """As many words of 8 bytes as are mapped."""
        return self._numbers(address, count, "Q")

    def halves(self, address: int, count: int) -> Words:
        """Likewise numbers of 4 bytes, with their sign."""
        return self._numbers(address, count, "i")

    def _numbers(self, address: int, count: int, kind: str) -> Words:
        size = struct.calcsize(kind)
        found = self.bytes(address, size * count)
        return struct.unpack(f"<{len(found) // size}{kind}", found[: len(found) // size * size])

    def bytes(self, address: int, count: int) -> bytes:
        try:
            return os.pread(self._file, count, address)
        except (OSError, OverflowError):
            return b""

    def close(self) -> None:
        os.close(self._file)


class ParkedThreads:
    """Two threads that stand in a lock, each inside of the same two functions.

    threads: frame, state, ident and tid of each; codes: of the functions; heads: where the interpreter's memory had the
    address of its newest thread state, at two moments.
    """

    def __init__(self) -> None:
        self.threads: list[dict[str, Any]] = []
        self.heads: list[set[int]] = []
        self.codes: list[types.CodeType] = []
        self.interpreter = api("PyInterpreterState_Get")
        self._stop = allocate_lock()
        self.memory = Memory()

    def __enter__(self) -> ParkedThreads:
        self._stop.acquire()
        try:
            for _ in range(2):
                self._park()
            before: list[int] = []
            while before != (before := [each["frame"].f_lasti for each in self.threads]):
                time.sleep(0.002)  # until both are inside of acquire
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.release()
        self.memory.close()
        for each in self.threads:
            each.clear()

    def _park(self) -> None:
        stop, state_of = self._stop, api_function("PyThreadState_Get")

        def inner(told: dict[str, Any], ready: Any) -> None:  # it calls C only: a dead frame above would point at it
            told.update(frame=sys._getframe(), state=state_of(), ident=get_ident(), tid=get_native_id())
            ready.release()
            stop.acquire()
            stop.release()

        def outer(told: dict[str, Any], ready: Any) -> None:
            len(told)  # so that its call is at another place in its code than the one of inner
            inner(told, ready)

        told: dict[str, Any] = {}
        ready = allocate_lock()
        ready.acquire()
        start_new_thread(outer, (told, ready))
        ready.acquire()
        self.threads.append(told)
        self.codes = [inner.__code__, outer.__code__]
        head = api("PyInterpreterState_ThreadHead", self.interpreter)
        self.heads.append(offsets_of(self.memory.words(self.interpreter, _INTERPRETER_WORDS), head))


def api_function(name: str) -> Any:
    """A function object of our own, for attributes of ctypes.pythonapi are shared with the job.

    By its address, for what ctypes.pythonapi gives by name refers to itself: a cycle for the garbage collector.
    """
    import ctypes

    function: Any = ctypes.pythonapi._FuncPtr(ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name)))
    function.restype = ctypes.c_void_p
    return function


def api(name: str, *addresses: int) -> int:
    from ctypes import c_void_p

    return int(api_function(name)(*map(c_void_p, addresses)) or 0)


def offsets_of(words: Words, value: int, size: int = WORD) -> set[int]:
    """The offsets of a value."""
    return {size * index for index, word in enumerate(words) if word == value}
