"""The stack of one thread of another process, from one copy of all the memory that it was made of the last time.

Used by the profiler.  A copy counts where the chain of frames lies wholly inside of it, and ends where a thread's stack
may end; otherwise the copy is made anew.  Invariant: that the innermost frame is still the same after the copy is not
asked for, since a fast function would meet that less often than a slow one, which would bend the shares.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from .code_objects import CodeObjects, Layout
from .memory import Memory

_GRAIN, _STATE, _INNER, _GIL = 1024, 256, 24, 16  # bytes copied at once: around a frame, of states
_TRIES, _KEPT = 8, 200  # copies for a sample; samples for which a grain stays in the copy unused
_WORD = struct.Struct("<Q")

Stack = tuple[tuple[int, int], ...]  # address of the code, place of the instruction in it; innermost first


class Sample(NamedTuple):
    """stack: None where no copy was whole; holds_gil: None where that is not known."""

    stack: Stack | None
    holds_gil: bool | None = None


class _FrameLayout:
    """How a frame's code, the frame around it and its instruction are unpacked."""

    def __init__(self, layout: Layout) -> None:
        self.start = layout["instr_start"]
        small = self.start is None  # an int, in 3.10
        fields = sorted((layout[f"frame_{name}"], name) for name in ("code", "previous", "instr"))
        pattern, end = "<", 0
        for offset, name in fields:
            pattern += f"{offset - end}x" + ("i" if small and name == "instr" else "Q")
            end = offset + (4 if small and name == "instr" else 8)
        names = [name for _, name in fields]
        self.struct = struct.Struct(pattern)
        self.code, self.previous, self.instruction = (names.index(each) for each in ("code", "previous", "instr"))


class ThreadStack:
    """sample() again and again.  next: the thread state behind this one; ident, native_id: as it last was."""

    def __init__(self, memory: Memory, layout: Layout, codes: CodeObjects, state: int, most_frames: int) -> None:
        self._memory, self._at, self._codes, self._state = memory, layout, codes, state
        self._most_frames = most_frames
        self._frame = _FrameLayout(layout)
        self._grains: dict[int, int] = {}  # address: the sample in which it was used last
        self._where: dict[int, int] = {}  # address: its place in the copy
        self._plan: Any = None
        self._seen: tuple[Any, Any, Sample] = b"", None, Sample(None)  # the last copy that counted, its plan
        self._inner = self._count = 0  # where the innermost frame's pointer lies, in 3.11 and 3.12
        self.next = self.ident = self.native_id = 0

    def sample(self) -> Sample:
        self._count += 1
        for _ in range(_TRIES):
            self._plan = self._plan or self._make_plan()
            copied = self._memory.copy(self._plan)
            if copied is None:  # something was unmapped
                self._grains, self._inner, self._plan = {}, 0, None
            elif self._seen[1] is self._plan and self._seen[0] == copied:  # a thread that sleeps: half the price
                return self._seen[2]
            elif (found := self._walk(copied)) is not None:
                sample = Sample(found, self._holds_gil(copied))
                self._seen = bytes(copied), self._plan, sample
                return sample
        return Sample(None)

    def _make_plan(self) -> Any:
        old = self._count - _KEPT
        self._grains = {address: used for address, used in self._grains.items() if used >= old}
        ranges = [(self._state, _STATE), (self._inner or self._state, _INNER), (self._at["gil"] or self._state, _GIL)]
        self._where, at, end = {}, _STATE + _INNER + _GIL, None
        for address in sorted(self._grains):
            self._where[address] = at
            at += _GRAIN
            if address == end:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + _GRAIN)
            else:
                ranges.append((address, _GRAIN))
            end = address + _GRAIN
        return self._memory.plan(ranges)

    def _holds_gil(self, copied: Any) -> bool | None:
        if self._at["gil"] is None:
            return None
        holder, is_held = struct.unpack_from("<Qi", copied, _STATE + _INNER)
        return bool(holder == self._state and is_held == 1)

    def _walk(self, copied: Any) -> Stack | None:
        """None if the copy does not do; then the next plan has what it lacked."""
        at, unpack = self._at, _WORD.unpack_from
        self.next, self.ident = unpack(copied, at["thread_next"])[0], unpack(copied, at["thread_id"])[0]
        self.native_id = 0 if at["thread_tid"] is None else unpack(copied, at["thread_tid"])[0]
        (frame,) = unpack(copied, at["head"])
        if at["head_inner"] is not None:
            if frame != self._inner:
                self._inner, self._plan = frame, None
                return None
            (frame,) = unpack(copied, _STATE + at["head_inner"])
        found, whole = self._frames(copied, frame)
        while found and not found[0][0]:
            del found[0]  # since 3.14: left while it was copied, so its caller runs
        return tuple(found) if whole and self._may_end(found) else None

    def _frames(self, copied: Any, frame: int) -> tuple[list[tuple[int, int]], bool]:
        """From the innermost on; and whether all of them were in the copy."""
        layout, where, grains = self._frame, self._where, self._grains
        unpack, size, start = layout.struct.unpack_from, layout.struct.size, layout.start
        found, whole = list[tuple[int, int]](), True
        while frame and len(found) < self._most_frames:
            grain, last = frame & -_GRAIN, (frame + size) & -_GRAIN
            grains[grain] = grains[last] = self._count
            if grain in where and last in where:
                fields = unpack(copied, where[grain] + frame - grain)
            else:  # only to learn what the next copy needs
                whole, self._plan = False, None
                try:
                    fields = unpack(self._memory.read(frame, size))
                except (OSError, OverflowError):
                    return found, False
            code, instruction = fields[layout.code] & ~7, fields[layout.instruction]
            found.append((code, instruction * 2 if start is None else instruction - code - start))
            frame = fields[layout.previous]
        return found, whole

    def _may_end(self, found: list[tuple[int, int]]) -> bool:
        """Not at a generator: one that was just left has no caller any more."""
        if not found or len(found) >= self._most_frames:
            return True
        try:
            outermost = self._codes.of(found[-1][0])
        except LookupError:
            return False
        return outermost is None or not outermost.is_generator
