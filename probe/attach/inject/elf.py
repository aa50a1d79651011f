"""Dynamic symbols of a module, read from the target's memory.

Called by `target` before anything is stopped.  It reads memory and not files, so neither mount namespaces nor deleted
or replaced files matter; a malformed image raises ValueError and nothing else.
"""

from __future__ import annotations

import os
import struct
from typing import Protocol

PAGE = os.sysconf("SC_PAGE_SIZE")
LOAD, DYNAMIC = 1, 2  # segment types
HASH, STRTAB, SYMTAB, GNU_HASH = 4, 5, 6, 0x6FFFFEF5  # tags of the dynamic section
SYMBOL_BYTES = 24
IFUNC = 10  # such a symbol is a resolver, not the function
EXECUTABLE = 1


class Readable(Protocol):
    def read(self, address: int, length: int) -> bytes: ...


class Image:
    """One loaded ELF64 module.  text: (address, bytes) of its executable segments."""

    text: list[tuple[int, int]]

    def __init__(self, memory: Readable, base: int) -> None:
        self._memory = memory
        self._base = base
        try:
            self._parse(memory.read(base, 64))
        except (struct.error, OSError, KeyError, OverflowError) as error:
            raise ValueError(f"no ELF64 image with dynamic symbols at {base:#x}: {error!r}") from None

    def symbol(self, name: str) -> int | None:
        """The address of the exported symbol, None when the module does not define it."""
        try:
            if self._gnu_hash:
                return self._by_gnu_hash(name)
            found = (self._defined(index, name) for index in range(self._symbol_count))
            return next((address for address in found if address is not None), None)
        except (struct.error, OSError, ZeroDivisionError, OverflowError) as error:
            raise ValueError(f"broken symbol table at {self._base:#x}: {error!r}") from None

    def _parse(self, header: bytes) -> None:
        if header[:5] != b"\x7fELF\x02":
            raise ValueError("not ELF64")
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        table = self._memory.read(self._base + offset, size * count)
        # type, flags, offset, virtual address, physical address, bytes in file, bytes in memory, alignment
        segments = [struct.unpack_from("<IIQQQQQQ", table, i * size) for i in range(count)]
        loads = [segment for segment in segments if segment[0] == LOAD]
        first = (loads[0][3] & ~(PAGE - 1)) if loads else 0
        self._bias = self._base - first
        self.text = [(segment[3] + self._bias, segment[6]) for segment in loads if segment[1] & EXECUTABLE]
        dynamic = next((segment for segment in segments if segment[0] == DYNAMIC), None)
        if dynamic is None:
            raise ValueError("statically linked")
        self._parse_dynamic(self._memory.read(self._bias + dynamic[3], dynamic[6]))

    def _parse_dynamic(self, raw: bytes) -> None:
        tags = dict(struct.iter_unpack("<qQ", raw[: len(raw) // 16 * 16]))
        self._symbols = self._address(tags[SYMTAB])
        self._strings = self._address(tags[STRTAB])
        self._gnu_hash = self._address(tags[GNU_HASH]) if GNU_HASH in tags else 0
        self._symbol_count = 0
        if not self._gnu_hash:
            self._symbol_count = struct.unpack("<II", self._memory.read(self._address(tags[HASH]), 8))[1]

    def _address(self, value: int) -> int:
        # glibc relocates the pointers of the dynamic section in place, other loaders leave offsets
        return value if value >= self._base else value + self._bias

    def _by_gnu_hash(self, name: str) -> int | None:
        read, table = self._memory.read, self._gnu_hash
        wanted = gnu_hash(name)
        buckets, first, bloom_words, shift = struct.unpack("<IIII", read(table, 16))
        (word,) = struct.unpack("<Q", read(table + 16 + 8 * ((wanted // 64) % bloom_words), 8))
        if not (word >> (wanted % 64)) & (word >> ((wanted >> shift) % 64)) & 1:
            return None
        bucket = table + 16 + 8 * bloom_words
        chain = bucket + 4 * buckets
        (index,) = struct.unpack("<I", read(bucket + 4 * (wanted % buckets), 4))
        while index >= first:
            (value,) = struct.unpack("<I", read(chain + 4 * (index - first), 4))
            if value | 1 == wanted | 1 and (address := self._defined(index, name)) is not None:
                return address
            if value & 1:  # the last of this bucket
                return None
            index += 1
        return None

    def _defined(self, index: int, name: str) -> int | None:
        entry = self._memory.read(self._symbols + SYMBOL_BYTES * index, SYMBOL_BYTES)
        name_offset, info, _other, section, value, _size = struct.unpack("<IBBHQQ", entry)
        if not section or not value or info & 15 == IFUNC:
            return None
        wanted = name.encode() + b"\0"
        found = self._memory.read(self._strings + name_offset, len(wanted))
        return int(value) + self._bias if found == wanted else None


def gnu_hash(name: str) -> int:
    """Bernstein's hash, with which the linker fills DT_GNU_HASH."""
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value
