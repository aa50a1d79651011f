"""Where this CPython keeps its frames, computed inside the process from values that are known there.

Two threads are parked at a known place.  The memory of their thread states, frames and code objects is searched for the
addresses and numbers that Python itself tells of them; an offset counts where it holds for both, and no other does.
There is no table of versions: CPython 3.10 to 3.14 with a GIL, 64 bit, little endian.  Our own memory is read through
/proc/self/mem, where a wrong address is an error and no crash.  Invariant: nothing of the job is changed, and no frame
or thread of ours is left.

probe/profile reads stacks by it, from outside.
"""

from __future__ import annotations

import struct
import sys
import types
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from .parked_threads import WORD, Memory, ParkedThreads, Words, api, offsets_of

_MARKS = {"co_firstlineno": 0x5A17C3, "co_flags": 0x1E00000}  # nothing else has such values; they change nothing
_TEXTS = {"ascii": ("a", 1), "latin-1": ("\xe4", 1), "utf-16-le": ("\u0416", 2), "utf-32-le": ("\U0001f40d", 4)}
_TRIES = 8
_STATE_WORDS = 64
_FEW_BYTES, _STRUCT_BYTES = 8 << 10, 1 << 19  # of an interpreter's state: where the GIL was so far, and all of it
_FRAME_WORDS, _CODE_WORDS, _TEXT_BYTES = 12, 40, 200
_HALF = struct.calcsize("i")

Layout = dict[str, Any]


class Unknown(Exception):
    """The layout of this interpreter was not found; the text says what of it."""


def interpreter_layout() -> Layout:
    """Offsets and addresses, plain values; of several attempts the first that comes out twice.

    On the agent's thread.  Cost: some 10 ms, mostly without the GIL.  Raises Unknown.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise Unknown("a build without the GIL keeps its frames differently")
    last: Layout | None = None
    why = "no two attempts agree"
    for _ in range(_TRIES):
        try:
            before, last = last, _search()
            if last == before:
                return {**last, "gil": _gil(last["interp"])}
        except Unknown as failed:  # a thread began or ended meanwhile, or bytes that nobody wrote look like a value
            why = str(failed)  # not the error itself: with its traceback it would be a reference cycle
    raise Unknown(why)


def _search() -> Layout:
    with ParkedThreads() as parked:
        memory, threads = parked.memory, parked.threads
        states = [memory.words(each["state"], _STATE_WORDS) for each in threads]
        told = list(zip(states, threads, strict=True))
        following = [api("PyThreadState_Next", each["state"]) or -1 for each in threads]
        return {
            "interp": parked.interpreter,
            "none": id(None),
            "code_type": id(types.CodeType),
            "threads_head": _one("threads.head", parked.heads),
            "thread_next": _one("next", map(offsets_of, states, following)),
            "thread_id": _one("thread_id", (offsets_of(words, each["ident"]) for words, each in told)),
            "thread_tid": _one_or_none(offsets_of(words, each["tid"]) for words, each in told),
            **_of_code(memory, parked.codes),
            **_of_strings(memory),
            **_of_frames(memory, states, [each["frame"] for each in threads]),
        }


def _of_frames(memory: Memory, states: Sequence[Words], inners: list[types.FrameType]) -> Layout:
    """What a frame is, and how it is found from its thread state."""
    frames = [*inners, *(frame.f_back for frame in inners if frame.f_back is not None)]
    if sys.version_info < (3, 11):  # the frame object itself
        place = list(map(id, frames))
        counts = (offsets_of(memory.halves(id(each), 32), each.f_lasti // 2, _HALF) for each in frames)
        instr, start = _one("f_lasti", counts), None
    else:  # a struct that points at the frame object, and that at it
        place = [_one("f_frame", [_structs(memory, frame)]) for frame in frames]
        instr, start = _one("instr_ptr", map(partial(_instructions, memory), frames, place))
    half = len(inners)
    head, head_inner = _head(memory, states, place[:half])
    return {
        "head": head,
        "head_inner": head_inner,
        "frame_instr": instr,
        "instr_start": start,
        "frame_code": _one("f_code", (
            # tagged since 3.14
            offsets_of([word & ~7 for word in memory.words(address, _FRAME_WORDS)], id(frame.f_code))
            for frame, address in zip(frames, place, strict=True)
        )),
        "frame_previous": _one("previous", (
            offsets_of(memory.words(within, _FRAME_WORDS), around)
            for within, around in zip(place[:half], place[half:], strict=True)
        )),
    }  # fmt: skip


def _structs(memory: Memory, frame: types.FrameType) -> set[int]:
    """What the frame object points at and points back."""
    words = memory.words(id(frame), 8)
    return {word for word in words if word and word % WORD == 0 and id(frame) in memory.words(word, _FRAME_WORDS)}


def _instructions(memory: Memory, frame: types.FrameType, address: int) -> set[tuple[int, int]]:
    """Where a frame may have the pointer to its instruction, and how far behind its code object they begin then."""
    begin, size = id(frame.f_code), sys.getsizeof(frame.f_code)
    words = enumerate(memory.words(address, _FRAME_WORDS))
    return {(WORD * at, word - begin - frame.f_lasti) for at, word in words if begin < word < begin + size}


def _head(memory: Memory, states: Sequence[Words], place: Sequence[int]) -> tuple[int, int | None]:
    """Where a thread state has its innermost frame; in 3.11 and 3.12 through a struct in the C stack."""
    try:
        return _one("current_frame", map(offsets_of, states, place)), None
    except Unknown:
        head, inner = _one("cframe", map(partial(_through, memory), states, place))
        return head, inner


def _through(memory: Memory, words: Words, top: int) -> set[tuple[int, int]]:
    """Where these words point at something that points at `top`: the place of the word, and that within."""
    pointers = [(at, word) for at, word in enumerate(words) if word]
    return {(WORD * at, offset) for at, word in pointers for offset in offsets_of(memory.words(word, 3), top)}


def _of_code(memory: Memory, codes: Sequence[types.CodeType]) -> Layout:
    marked = [code.replace(**{name: getattr(code, name) | mark for name, mark in _MARKS.items()}) for code in codes]
    named = "co_qualname" if sys.version_info >= (3, 11) else "co_name"
    objects = {"code_file": "co_filename", "code_table": "co_linetable", "code_name": named}
    numbers = {"code_line": "co_firstlineno", "code_flags": "co_flags"}
    found = {
        field: _one(name, (offsets_of(memory.words(id(code), _CODE_WORDS), id(getattr(code, name))) for code in marked))
        for field, name in objects.items()
    }
    return found | {
        field: _one(name, (offsets_of(memory.halves(id(code), 60), getattr(code, name), _HALF) for code in marked))
        for field, name in numbers.items()
    }


def _of_strings(memory: Memory) -> Layout:
    """By one of each kind: where its text begins, and the bits that tell which kind it is."""
    held = {coding: letter * 23 for coding, (letter, _) in _TEXTS.items()}
    raw = {coding: memory.bytes(id(text), _TEXT_BYTES) for coding, text in held.items()}
    states = {coding: struct.unpack_from("<I", each, 32)[0] for coding, each in raw.items()}
    widths = {coding: width for coding, (_, width) in _TEXTS.items()}
    kinds = [bit for bit in range(28) if all(states[each] >> bit & 7 == width for each, width in widths.items())]
    if not kinds:
        raise Unknown("the kinds of strings")
    narrow = raw["ascii"].find(_packed(held["ascii"], "B"))
    wide = raw["utf-32-le"].find(_packed(held["utf-32-le"], "I"))
    return {
        "text_kind": kinds[0],
        "text_ascii": 16 << kinds[0],
        "text_data": narrow,
        "text_wide": wide,
        "bytes_data": bytes.__basicsize__ - 1,
    }


def _packed(text: str, letter: str) -> bytes:
    """As it lies in memory; without a codec, which would be imported, perhaps from where the job may not read."""
    return struct.pack(f"<{len(text) + 1}{letter}", *map(ord, text), 0)


def _gil(interpreter: int) -> int | None:
    """Where the thread state that held the GIL last stands, and behind it whether it does still; None if not found.

    Before both stands the switch interval.  We held it last, for reading memory lets go of it.
    """
    import ctypes

    holder = api("PyThreadState_Get")
    sought = struct.pack("<QQ", round(sys.getswitchinterval() * 1e6), holder)
    runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    memory = Memory()
    try:
        for _ in range(_TRIES):  # another thread may take it before the word is copied
            for begin, size in ((interpreter, _FEW_BYTES), (runtime, _FEW_BYTES), (interpreter, _STRUCT_BYTES)):
                held = memory.bytes(begin, size)
                if held.count(sought) == 1:
                    return begin + held.find(sought) + WORD
        return None
    finally:
        memory.close()


def _one(what: str, found: Iterable[set[Any]]) -> Any:
    """The offset that holds for all.  Raises Unknown."""
    common = set.intersection(*found)
    if len(common) != 1:
        raise Unknown(f"{what}: {len(common)} places")
    return common.pop()


def _one_or_none(found: Iterable[set[int]]) -> int | None:
    common = set.intersection(*found)
    return common.pop() if len(common) == 1 else None
