"""The loops of a code object around an instruction, and the offsets of each loop's back edge.

The boundary's trace calls this once per code object.  Invariant: at the back edge, the body of one iteration is over
and nothing of the next one has run, not even the test of a `while`, which may take the next batch.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from dataclasses import dataclass
from types import CodeType

_JUMPS = frozenset({"JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})  # whatever comes
_NEVER_ON = _JUMPS | {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}  # to the next instruction
_AWAITS = "JUMP_BACKWARD_NO_INTERRUPT"  # of `await` and `yield from`: sending into one thing, no loop of the source

_TRIES = frozenset({"SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH"})  # up to 3.10; the handler follows the body


@dataclass(frozen=True)
class Loop:
    """Offsets of a loop's instructions, and those of its back edge; `hidden`: one of the latter starts no line.

    Offsets are all that f_lasti may be: of an EXTENDED_ARG before an instruction, of a cache entry after it.
    """

    body: frozenset[int]
    back_edge: frozenset[int]
    hidden: bool


def loops_around(code: CodeType, offset: int) -> tuple[Loop, ...]:
    """The loops that contain the instruction at this offset (as f_lasti gives it), innermost first."""
    return tuple(loop for loop in _loops(code) if offset in loop.body)


@functools.lru_cache(maxsize=64)
def _loops(code: CodeType) -> list[Loop]:
    """All loops from small to large; a millisecond for 200 lines."""
    graph = _Graph(code)
    bodies: dict[int, set[int]] = {}
    sources: dict[int, set[int]] = {}
    for source, target in graph.backward:
        body = graph.natural_loop(source, target)
        if body:
            bodies.setdefault(target, set()).update(body)
            sources.setdefault(target, set()).add(source)
    tests = {target: graph.test_at_bottom(target, max(found)) for target, found in sources.items()}
    for target, (top, _) in tests.items():
        if top != target and top in bodies:  # `continue` jumps to the first copy of a `while`'s test: the same loop
            bodies[target] |= bodies.pop(top)
            sources[target] |= sources.pop(top) | {top}
    loops = [graph.loop(target, body, sources[target], tests[target][1]) for target, body in bodies.items()]
    return sorted(loops, key=lambda loop: len(loop.body))


class _Graph:
    """The instructions of a code object, by index, and the ways between them."""

    def __init__(self, code: CodeType) -> None:
        import dis

        self._starts: list[int] = []  # of the EXTENDED_ARG before it, where there is one
        self._own: list[int] = []
        self._names: list[str] = []
        self._args: list[int] = []
        self._decode(code.co_code, dis.opname)
        self._ends = [*self._starts[1:], len(code.co_code)]
        lines = [(start, line) for start, _, line in code.co_lines()]
        starts = [start for start, _ in lines]
        self._lines = [lines[bisect_right(starts, offset) - 1][1] for offset in self._own]
        self.backward: list[tuple[int, int]] = []
        self._before: list[list[int]] = [[] for _ in self._own]
        jumps = {dis.opname[number]: number in dis.hasjabs for number in (*dis.hasjrel, *dis.hasjabs)}
        for index, name in enumerate(self._names):
            if name in jumps:
                arg = 2 * self._args[index]
                self._jump(index, arg if jumps[name] else self._ends[index] + (-arg if "BACKWARD" in name else arg))
            if name not in _NEVER_ON and index + 1 < len(self._own):
                self._before[index + 1].append(index)
        for entry in getattr(dis.Bytecode(code), "exception_entries", ()):  # from 3.11 on
            self._handle(self._index(entry.start), self._index(entry.end), self._index(entry.target))

    def _decode(self, code: bytes, names: list[str]) -> None:
        """Decode without dis: several times faster, and the training waits for it."""
        extension, start = 0, 0
        for offset in range(0, len(code), 2):
            name, arg = names[code[offset]], code[offset + 1] | extension
            if name == "EXTENDED_ARG":
                extension = arg << 8
                continue
            if name != "CACHE":
                self._starts.append(start)
                self._own.append(offset)
                self._names.append(name)
                self._args.append(arg)
            extension, start = 0, offset + 2

    def _index(self, offset: int) -> int:
        """Of the instruction that has this offset."""
        return bisect_right(self._starts, offset) - 1

    def _jump(self, source: int, offset: int) -> None:
        target = self._index(offset)
        self._before[target].append(source)
        if self._names[source] in _TRIES:
            self._handle(source, target, target)
        if target <= source and self._names[source] != _AWAITS:
            self.backward.append((source, target))

    def _handle(self, first: int, end: int, handler: int) -> None:
        """Whatever stands from `first` up to `end` may raise, and goes on at the handler."""
        self._before[handler].extend(range(first, end))

    def natural_loop(self, source: int, target: int) -> set[int]:
        """All from which `source` is reached without passing `target`; empty if that is no loop.

        A handler that was moved to the end of the function jumps back to what follows its `try`: the
        function's beginning is then among them.
        """
        body, todo = {source, target}, [source]
        while todo:
            index = todo.pop()
            if index == target:
                continue
            if index == 0:
                return set()
            new = [before for before in self._before[index] if before not in body]
            body.update(new)
            todo += new
        return body

    def test_at_bottom(self, target: int, source: int) -> tuple[int, int | None]:
        """Where the two copies of a `while`'s test begin, before and at the end of the loop; (target, None) without.

        The compiler puts the test before the loop and again at its end, with the same lines.
        """
        top, bottom = target, source + 1
        if self._names[source] in _JUMPS:
            bottom -= 1
        while top > 0 and bottom - 1 > target and self._alike(top - 1, bottom - 1):
            top, bottom = top - 1, bottom - 1
        return (top, bottom) if top < target else (target, None)

    def _alike(self, one: int, other: int) -> bool:
        if self._lines[one] is None or self._lines[one] != self._lines[other]:
            return False
        first, second = self._names[one], self._names[other]
        if "POP_JUMP" in first and "POP_JUMP" in second:
            return True  # sense and direction differ
        return first == second and self._args[one] == self._args[other]

    def loop(self, target: int, body: set[int], sources: set[int], test: int | None) -> Loop:
        back_edge = {target, *sources} if test is None else {target, *sources, test}
        hidden = test is not None and self._lines[test] == self._lines[test - 1]
        after = [own + 2 for own in self._own]
        return Loop(self._offsets(body, self._ends), self._offsets(back_edge, after), hidden)

    def _offsets(self, indices: set[int], ends: list[int]) -> frozenset[int]:
        return frozenset(offset for index in indices for offset in range(self._starts[index], ends[index], 2))
