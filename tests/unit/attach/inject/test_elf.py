"""Dynamic symbols are found in memory, and a broken image is refused rather than followed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.attach.inject.elf import Image, gnu_hash
from probe.attach.inject.target import Memory
from probe.host.memory_maps import modules, read_mappings


@pytest.fixture
def libc():
    memory = Memory(os.getpid())
    path = next(path for path in modules(read_mappings(os.getpid())) if os.path.basename(path).startswith("libc."))
    yield Image(memory, modules(read_mappings(os.getpid()))[path])
    memory.close()


@pytest.mark.parametrize("name", ["mmap", "munmap", "getpid", "pthread_self"])
def test_a_function_is_found_at_its_loaded_address(libc, name):
    expected = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert libc.symbol(name) == expected


def test_a_name_that_is_not_exported_gives_none(libc):
    assert libc.symbol("PyGILState_Ensure") is None
    assert libc.symbol("") is None


def test_the_executable_segments_hold_the_functions(libc):
    address = libc.symbol("getpid")
    assert any(start <= address < start + length for start, length in libc.text)


def test_the_hash_matches_the_linkers():
    assert gnu_hash("printf") == 0x156B2BB8  # from the format's specification


class Bytes:
    """A memory that is these bytes."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, address: int, length: int) -> bytes:
        data = self.content[address : address + length] if address >= 0 and length >= 0 else b""
        if len(data) != length:
            raise OSError("short")
        return data


def header(segments: list[tuple[int, ...]]) -> bytes:
    start = b"\x7fELF\x02" + bytes(27) + struct.pack("<Q", 64) + bytes(14) + struct.pack("<HH", 56, len(segments))
    return start.ljust(64, b"\0") + b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"#!/bin/sh\n".ljust(64, b" "),
        b"\x7fELF\x01".ljust(64, b"\0"),
        header([]),
        header([(1, 5, 0, 0, 0, 1, 1, 1)]),
        header([(2, 4, 0, 120, 0, 1 << 62, 1 << 62, 8)]),
        header([(2, 4, 0, 120, 0, 16, 16, 8)]) + struct.pack("<qQ", 6, 0),
    ],
    ids=["nothing", "a script", "32 bits", "no segments", "static", "endless", "no tables"],
)
def test_an_image_without_dynamic_symbols_raises_value_error(content):
    with pytest.raises(ValueError):
        Image(Bytes(content), 0)


@given(st.binary(max_size=400), st.binary(max_size=200))
def test_a_malformed_image_raises_nothing_but_value_error(segments, rest):
    count = len(segments) // 56
    content = header([struct.unpack_from("<IIQQQQQQ", segments, 56 * i) for i in range(count)]) + rest
    with contextlib.suppress(ValueError):
        Image(Bytes(content), 0).symbol("mmap")
