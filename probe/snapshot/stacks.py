"""Python stacks of a job's threads, and which ranks have the same ones.

Used by live_stacks, the server's stack_reader and the verbs stack and hang.  Invariant: pure; threads are folded into
one only if their names and all frames are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..text import short

_COMPILER = ("torch/_inductor/", "torch/_dynamo/convert_frame.py")  # other files of dynamo call what is compiled


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({short(self.file)}:{self.line})"


@dataclass(frozen=True)
class Thread:
    """One thread of one process.  frames: innermost first; cut: how many outer frames were left out; is_training: it
    ended the last step or, before the first one, called a module last; holds_gil: None where nobody could see that."""

    ident: int
    native_id: int | None
    name: str | None
    is_main: bool
    frames: tuple[Frame, ...]
    cut: int = 0
    is_training: bool = False
    holds_gil: bool | None = None

    @property
    def is_compiling(self) -> bool:
        """Whether it is in torch's compiler, which may wait there for workers."""
        return any(short(frame.file).startswith(_COMPILER) for frame in self.frames)

    @property
    def title(self) -> str:
        return self.name or f"a thread that Python did not start ({self.ident})"


@dataclass(frozen=True)
class Folded:
    """One stack, and the ranks that have it."""

    thread: Thread
    ranks: tuple[int, ...]


_FIELDS = "ident", "native_id", "name", "is_main", "cut", "is_training", "holds_gil"


def told(thread: Thread) -> dict[str, Any]:
    """As it travels."""
    frames = [[frame.file, frame.line, frame.function] for frame in thread.frames]
    return {"frames": frames, **{name: getattr(thread, name) for name in _FIELDS}}


def threads_of(answer: Mapping[str, Any]) -> list[Thread]:
    """Those that have travelled."""
    return [
        Thread(frames=tuple(Frame(*frame) for frame in each["frames"]), **{name: each[name] for name in _FIELDS})
        for each in answer["threads"]  # reply_schema has checked the types
    ]


def in_order(threads: Iterable[Thread]) -> list[Thread]:
    """The main thread first."""
    return sorted(threads, key=lambda thread: (not thread.is_main, thread.name or "~", thread.ident))


def training_thread(threads: Sequence[Thread]) -> Thread | None:
    """The one that trains; the main thread if that is not known, or is gone."""
    training = next((each for each in threads if each.is_training), None)
    return training or next((each for each in threads if each.is_main), None)


def folded(by_rank: Mapping[int, Sequence[Thread]]) -> list[Folded]:
    """Stacks of all ranks: main threads first, then by name, then those of most ranks."""
    same: dict[tuple[Any, ...], list[tuple[int, Thread]]] = {}
    for rank, threads in sorted(by_rank.items()):
        for thread in threads:
            same.setdefault((thread.is_main, thread.name, thread.frames, thread.cut), []).append((rank, thread))
    found = [Folded(each[0][1], tuple(rank for rank, _ in each)) for each in same.values()]
    return sorted(found, key=lambda one: (not one.thread.is_main, one.thread.name or "~", -len(one.ranks), one.ranks))


def trains(threads: Sequence[Thread]) -> int | None:
    """The native id of the one that trains; None for the main thread."""
    thread = training_thread(threads)
    return thread.native_id if thread is not None and not thread.is_main else None
