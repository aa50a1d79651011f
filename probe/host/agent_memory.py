"""The memory of an agent as /proc/<pid>/fd shows it: its memfds, and the facts in its header.

Called to find out which processes have an agent; probe.snapshot.memory_source reads rows and log.  Invariant: nothing
is asked of the target, and its memory does not grow: holes are skipped, never read.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from typing import Any

from .. import streams
from .facts import Facts
from .facts_shape import wrong_facts
from .process_status import read_status
from .processes import boot_id, start_ticks

_PREFIX = "/memfd:probe-"
_HEADER = streams.HEADER_NAME.removeprefix("probe-")
_TRIES = 20  # a reader that was preempted may find its half of the header rewritten


def descriptors(pid: int) -> dict[str, str]:
    """Name ("header", "log", a stream) -> path of each memfd of the agent in this process; {} without an agent."""
    return dict(_memfds(pid))


def is_alone(pid: int) -> bool:
    """Whether there is only one agent in this process: the memfds of several have the same names."""
    return [name for name, _ in _memfds(pid)].count(_HEADER) == 1


def _memfds(pid: int) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError):  # not ours to look at, or gone
        for number in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{number}"
            with contextlib.suppress(OSError):  # the target opens and closes files meanwhile
                link = os.readlink(path)
                if link.startswith(_PREFIX):
                    yield link.removeprefix(_PREFIX).removesuffix(" (deleted)"), path


def facts(pid: int, skipped: list[str] | None = None) -> Facts | None:
    """What the agent in this process says about itself; None without an agent.

    skipped: gets a line if the process says what no agent does, or shows what another process has said.
    """
    path = descriptors(pid).get(_HEADER)
    said = None if path is None else said_at(path)
    if path is None or said is None:
        return None
    try:
        wrong = _not_its_own(pid, path) or wrong_facts(said)
    except OSError:  # it ends just now
        return None
    if wrong:
        if skipped is not None:
            skipped.append(f"Process {pid} is left out: it shows facts that no agent has written ({wrong}).")
        return None
    found = Facts.parse(said)
    # a child forked behind our back holds its parent's descriptors
    return found if found.start_ticks == start_ticks(pid) else None


def facts_at(path: str) -> Facts | None:
    """What an agent has said about itself in this header, whether it lives or not; None if it cannot be read."""
    said = said_at(path)
    return None if said is None or wrong_facts(said) else Facts.parse(said)


def _not_its_own(pid: int, path: str) -> str:
    """What speaks against that this memory was made by this process or by root; "" for nothing.

    A program that runs as another user, such as sudo, inherits descriptors.  Raises OSError.
    """
    maker, user = os.stat(path).st_uid, read_status(pid).uid
    return "" if maker in (0, user) else f"they are of user {maker}"


def attached(skipped: list[str] | None = None) -> Iterator[tuple[int, Facts]]:
    """Every process that has an agent and that this user may look into, with the agent's facts.

    skipped: as facts() has it.
    """
    for name in os.listdir("/proc"):
        if name.isdecimal():
            said = facts(int(name), skipped)
            if said is not None:
                yield int(name), said


def here(said: Facts) -> int | None:
    """The pid on this machine of the process with these facts; None if it is elsewhere or hidden.

    Its own pid may be another one: it may live in another pid namespace.
    """
    if not said.id or said.boot_id != boot_id():
        return None
    own = facts(said.pid)
    if own is not None and own.id == said.id:
        return said.pid
    return next((pid for pid, other in attached() if other.id == said.id), None)


def said_at(path: str) -> Any:
    """What the header at this path says, unchecked; None if it cannot be read."""
    for _ in range(_TRIES):
        if not os.path.isfile(path):  # a pipe or a device can have the name of a header, too
            return None
        try:
            with open(path, "rb", buffering=0) as file:
                said = _parsed(os.pread(file.fileno(), streams.HEADER_BYTES, 0))
        except OSError:
            return None
        if said is not None:
            return said
    return None


def _parsed(data: bytes) -> Any:
    try:
        magic, version, active = struct.unpack_from(streams.HEADER_LAYOUT, data)
        if magic != streams.HEADER_MAGIC or version != streams.HEADER_VERSION:
            return None
        start = streams.HEADER_HALVES[active]
        (length,) = struct.unpack_from(streams.HEADER_HALF_LAYOUT, data, start)
        return json.loads(data[start + 4 : start + 4 + length])
    except (ValueError, LookupError, RecursionError, struct.error):
        return None


def filled(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each part of the file that has data; reading a hole of a memfd through a map would fill it."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole to the end
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def read_range(fd: int, start: int, end: int) -> bytes:
    data = b""
    while start + len(data) < end:
        piece = os.pread(fd, min(end - start - len(data), 1 << 30), start + len(data))
        if not piece:
            break
        data += piece
    return data
