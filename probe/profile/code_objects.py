"""What the code objects of another process are: file, function and lines, read out of its memory.

Used by the profiler.  An address may be used anew for another code object, so what is known is looked at again once a
second.  Invariant: bytes that make no sense give no name, and no error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .memory import Memory

_GENERATORS = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
_CODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_MOST_CHARACTERS, _MOST_TABLE_BYTES = 1 << 16, 1 << 22
_WORD = struct.Struct("<Q")
_NO_LINE_310, _NO_LINE_311 = 128, 15
_TRAMPOLINE = "<interpreter trampoline>"  # between C and Python, in 3.12

Layout = Mapping[str, Any]  # as agent/inspect/interpreter_layout.py gives it


class Code(NamedTuple):
    file: str
    function: str
    first_line: int
    table: bytes
    is_generator: bool


class CodeObjects:
    """of() and line() by address."""

    def __init__(self, memory: Memory, layout: Layout) -> None:
        self._memory, self._at = memory, layout
        self._known: dict[int, tuple[tuple[int, ...], Code | None]] = {}
        self._lines: dict[tuple[int, int], int | None] = {}
        self._bad: set[int] = set()

    def of(self, address: int) -> Code | None:
        """None for a frame between C and Python.  Raises LookupError if there is no code object."""
        if address not in self._known:
            if address in self._bad:
                raise LookupError
            try:
                self._known[address] = self._read(address)
            except (OSError, OverflowError, MemoryError, ValueError, KeyError, LookupError):  # torn, or gone
                self._bad.add(address)
                raise LookupError from None
        return self._known[address][1]

    def line(self, address: int, instruction: int) -> int:
        """Of the instruction at so many bytes behind the first one.  Raises LookupError if it is none of this code."""
        key = address, instruction
        if key not in self._lines:
            code = self.of(address)
            assert code is not None
            rows = (_lines_310 if self._at["instr_start"] is None else _lines_311)(code.table, code.first_line)
            found = (line or code.first_line for begin, end, line in rows if begin <= instruction < end)
            # before the first one: a frame that was just made
            self._lines[key] = next(found, code.first_line if instruction <= 0 else None)
        line = self._lines[key]
        if line is None:
            raise LookupError
        return line

    def refresh(self) -> set[int]:
        """Forget what has changed; the addresses that mean something else now."""
        changed = {address for address, (marks, _) in self._known.items() if not self._is_same(address, marks)}
        for address in changed:
            del self._known[address]
        if changed:
            self._lines = {key: line for key, line in self._lines.items() if key[0] not in changed}
        changed |= self._bad
        self._bad = set()
        return changed

    def _is_same(self, address: int, marks: tuple[int, ...]) -> bool:
        try:
            return marks == self._marks(address)
        except OSError:
            return False

    def _marks(self, address: int) -> tuple[int, ...]:
        """Type, file, name, line table, flags, first line."""
        seen, at = self._memory.read(address, 160), self._at
        places = (8, at["code_file"], at["code_name"], at["code_table"])
        numbers = (struct.unpack_from("<i", seen, at[each])[0] for each in ("code_flags", "code_line"))
        return *(_WORD.unpack_from(seen, place)[0] for place in places), *numbers

    def _read(self, address: int) -> tuple[tuple[int, ...], Code | None]:
        marks = kind, file, name, table, flags, first = self._marks(address)
        if address == self._at["none"]:  # between C and Python, since 3.13
            return marks, None
        if kind != self._at["code_type"]:
            raise LookupError
        (length,) = _WORD.unpack(self._memory.read(table + 16, 8))
        if length > _MOST_TABLE_BYTES:
            raise LookupError
        rows = self._memory.read(table + self._at["bytes_data"], length)
        code = Code(self._text(file), self._text(name), first, rows, bool(flags & _GENERATORS))
        return marks, None if code.function == _TRAMPOLINE else code

    def _text(self, address: int) -> str:
        length, state = struct.unpack_from("<Q8xI", self._memory.read(address, 40), 16)
        if length > _MOST_CHARACTERS:
            raise LookupError
        width = state >> self._at["text_kind"] & 7
        data = self._at["text_data" if state & self._at["text_ascii"] else "text_wide"]
        return self._memory.read(address + data, length * width).decode(_CODINGS[width])


def _lines_310(table: bytes, line: int) -> Iterator[tuple[int, int, int | None]]:
    """Begin, end and line of the entries of a co_linetable of 3.10 (CPython's Objects/lnotab_notes.txt)."""
    end = 0
    for delta, step in zip(table[::2], table[1::2], strict=False):
        begin, end = end, end + delta
        has_none = step == _NO_LINE_310
        line += 0 if has_none else step - 256 if step > 127 else step
        yield begin, end, None if has_none else line


def _lines_311(table: bytes, line: int) -> Iterator[tuple[int, int, int | None]]:
    """The same since 3.11 (CPython's Objects/locations.md)."""
    at = end = 0
    while at < len(table):
        kind, begin, end = table[at] >> 3 & 15, end, end + 2 * ((table[at] & 7) + 1)
        at += 1
        if kind in (13, 14):
            line += _signed(table, at)
        elif 10 <= kind <= 12:
            line += kind - 10
        while at < len(table) and not table[at] & 128:
            at += 1
        yield begin, end, None if kind == _NO_LINE_311 else line


def _signed(table: bytes, at: int) -> int:
    """A number of 6 bits a byte, with its sign in the lowest bit."""
    value, shift = table[at] & 63, 6
    while table[at] & 64:
        at += 1
        value, shift = value | (table[at] & 63) << shift, shift + 6
    return -(value >> 1) if value & 1 else value >> 1
