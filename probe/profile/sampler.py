"""All threads of one process, sampled, and their stacks as nodes: a function at a line, called from a node.

Used by the profiler.  Invariant: a stack that could not be read or named whole is no stack; it is counted as such.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from .code_objects import CodeObjects, Layout
from .memory import Memory
from .thread_stack import Sample, Stack, ThreadStack

_WORD = struct.Struct("<Q")
NO_PYTHON, NOT_READ = -1, 0  # in place of a node
MOST_FRAMES = 400
_MOST_THREADS = 1 << 14
_SIGN = 63  # the bit that no number of a thread has
_OURS = "<probe>/"  # files of the agent
_MOST_STACKS = 1 << 16  # whose nodes are remembered


class Frame(NamedTuple):
    file: str
    function: str
    line: int


def without_ours(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Frames of the job, without the agent's."""
    return tuple(frame for frame in frames if not frame.file.startswith(_OURS))


class Sampler:
    """look() again and again.  most_frames: of a deeper stack the innermost so many are read."""

    def __init__(self, memory: Memory, layout: Layout, most_frames: int = MOST_FRAMES) -> None:
        self._most_frames = most_frames
        self._memory, self._at, self._codes = memory, layout, CodeObjects(memory, layout)
        self._threads: dict[int, ThreadStack] = {}
        self._named: dict[Stack, tuple[Frame, ...] | None] = {}

    def look(self) -> Iterator[tuple[ThreadStack, Sample]]:
        """Each thread that there is, with its stack.  Raises OSError if the process is gone."""
        seen = set[int]()
        (state,) = _WORD.unpack(self._memory.read(self._at["interp"] + self._at["threads_head"], 8))
        while state and state not in seen and len(seen) < _MOST_THREADS:
            seen.add(state)
            if state not in self._threads:
                self._threads[state] = ThreadStack(self._memory, self._at, self._codes, state, self._most_frames)
            thread = self._threads[state]
            sample = thread.sample()
            if not (thread.ident | thread.native_id) >> _SIGN:  # else it was freed while the list was walked
                yield thread, sample
            state = thread.next
        for gone in self._threads.keys() - seen:
            del self._threads[gone]

    def frames(self, stack: Stack) -> tuple[Frame, ...] | None:
        """Innermost first; None if one of them is none."""
        if stack not in self._named:
            self._named[stack] = self._frames(stack)
        return self._named[stack]

    def _frames(self, stack: Stack) -> tuple[Frame, ...] | None:
        found = []
        try:
            for address, instruction in stack:
                if (code := self._codes.of(address)) is not None:
                    found.append(Frame(code.file, code.function, self._codes.line(address, instruction)))
        except LookupError:
            return None
        return tuple(found)

    def refresh(self) -> None:
        """Once a second: an address may be another function's by now."""
        changed = self._codes.refresh()
        if len(self._named) > _MOST_STACKS:
            self._named.clear()
        elif changed:
            self._named = {
                stack: frames for stack, frames in self._named.items() if not any(code in changed for code, _ in stack)
            }


class Nodes:
    """Numbers for stacks.  names: of functions without an id; rows: (caller, function, line) not yet deposited."""

    def __init__(self, next_number: int) -> None:
        self._next = next_number
        self._numbers: dict[tuple[int, Frame], int] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._of_stacks: dict[tuple[Frame, ...], int] = {}
        self.names: list[tuple[str, str]] = []
        self.rows: list[tuple[int, tuple[str, str], int]] = []

    def number(self, frames: tuple[Frame, ...]) -> int:
        """Of the innermost frame's node."""
        if not frames:
            return NO_PYTHON
        if frames not in self._of_stacks:
            node = 0
            for frame in reversed(frames):
                node = self._node(node, frame)
            self._of_stacks[frames] = node
        return self._of_stacks[frames]

    def _node(self, caller: int, frame: Frame) -> int:
        key = caller, frame
        if key not in self._numbers:
            self._numbers[key] = self._next
            self._next += 1
            function = frame.function, frame.file
            if function not in self._functions:
                self._functions[function] = 0
                self.names.append(function)
            self.rows.append((caller, function, frame.line))
        return self._numbers[key]

    def learn(self, names: list[tuple[str, str]], ids: list[int]) -> None:
        """The ids of functions, as the agent has given them."""
        self._functions.update(zip(names, ids, strict=True))

    def packed(self) -> bytes:
        """The new rows, numbered; all of their functions have been learnt."""
        first = self._next - len(self.rows)
        packed = [
            struct.pack("<4q", caller, self._functions[function], line, number)
            for number, (caller, function, line) in enumerate(self.rows, first)
        ]
        self.rows = []
        return b"".join(packed)
