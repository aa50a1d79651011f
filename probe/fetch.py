"""A snapshot of a job off the wire: facts, log and, when a table asks for them, the rows of its streams.

Called by probe.connection.  Invariant: all rows of one Job are pinned to the numbers that the snapshot named,
and a rank that falls silent on the way leaves the Job whole: never half of its rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import memfd
from . import protocol as wire
from .arrow import template
from .client import Call, Client, Header, Link, OnReply, nobody
from .errors import SilentError
from .log import Log
from .nesting import Ints
from .raw import Job, Raw, Silent, complete
from .streams import CHUNK_ROWS

_OLDEST = wire.ROWS_A_MESSAGE  # enough that some are left when the ring goes on meanwhile


class Fetcher:
    """Snapshots of the agents of a client; keeps their logs, of which only the new part travels."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._logs: dict[Link, Log] = {}

    def snapshot(self, open_steps: bool = False, newest: int | None = None) -> Job:
        """The job at this moment; newest: of each stream so many rows.  Raises SilentError if there is no rank.

        Of ranks that do not answer the memory is read, where that can be done.
        """
        calls = self._client.ask(wire.SNAPSHOT, time.monotonic() + self._timeout)
        answered = {call.link: call.result() for call in calls if call.error is None}
        mute = [Silent(call.link.rank, call.link.pid, str(call.error)) for call in calls if call.error is not None]
        stored = self._stored([call.link for call in calls if call.error is not None])
        if not answered and not stored:
            raise nobody(calls)
        raws = {link: self._raw(link, header) for link, header in answered.items()}
        known = {raw.pid for raw in stored}

        def fetch(stream: str, oldest: int | None = None) -> None:
            self._rows(job, raws, stream, oldest, newest)
            memfd.put_rows(stored, stream, oldest is not None)

        job = Job(
            [*raws.values(), *stored],
            fetch,
            [one for one in mute if one.pid not in known],
            open_steps,
            lambda stream: fetch(stream, _OLDEST),
            lambda kind: self._ask(job, raws, kind),
            [one for one in mute if one.pid in known],
        )
        self._read_logs(job, raws, {link: int(header["log"]) for link, header in answered.items()})
        return job

    def _stored(self, links: Sequence[Link]) -> list[Raw]:
        """Ranks that do not answer, by their memory; how their steps are numbered this connection has found out."""
        raws = memfd.raws(link.pid for link in links if not link.gone)
        numbered = {link.pid: {name: link.facts.get(name) for name in ("step_base", "step_source")} for link in links}
        for raw in raws:
            raw.facts.update(numbered[raw.pid])
        return raws

    def _raw(self, link: Link, header: Header) -> Raw:
        link.facts = header["facts"]
        return Raw(link.pid, link.facts, header["streams"], self._logs.setdefault(link, Log()))

    def _ask(self, job: Job, raws: dict[Link, Raw], kind: str) -> dict[Raw, Header]:
        calls = self._client.ask(
            kind, time.monotonic() + self._timeout, [link for link in raws if raws[link] in job.raws]
        )
        for call in calls:
            if isinstance(call.error, SilentError):
                job.leave(raws[call.link], str(call.error))
            elif call.error is not None:  # an agent of another version does not know the request
                raise call.error
        return {raws[call.link]: call.answer for call in calls if call.answer is not None}

    def _read_logs(self, job: Job, raws: dict[Link, Raw], ends: dict[Link, int]) -> None:
        new = {link: raw for link, raw in raws.items() if ends[link] > raw.log.end}
        calls = {self._log_call(link, raw.log.end, ends[link]): raw for link, raw in new.items()}
        pieces: dict[Call, list[bytes]] = {call: [] for call in calls}
        self._stream(job, calls, lambda call, header, payload: pieces[call].append(payload[0].bytes))
        for call, raw in calls.items():
            if call.error is None:
                raw.log.feed(b"".join(pieces[call]))

    def _log_call(self, link: Link, first: int, last: int) -> Call:
        return self._client.send(link, wire.LOG, first=first, last=last, credit=wire.CREDIT)

    def _rows(
        self, job: Job, raws: dict[Link, Raw], stream: str, oldest: int | None = None, newest: int | None = None
    ) -> None:
        """The rows of a stream, or at most so many of the oldest or newest."""
        calls: dict[Call, Raw] = {}
        for link, raw in raws.items():
            if raw in job.raws and raw.has(stream):
                calls[self._scan_call(link, raw, stream, oldest, newest)] = raw
            elif raw in job.raws:
                raw.put(stream, [], oldest=oldest is not None)
        pieces: dict[Call, list[Ints]] = {call: [] for call in calls}

        def take(call: Call, header: Header, payload: Sequence[Any]) -> None:
            # no copy: the frame's memory stays as long as the view of it does
            table = np.frombuffer(payload[1].buffer, "<i8").reshape(-1, len(calls[call].slots(stream)))
            pieces[call].append(complete(table, int(header["first"])))

        self._stream(job, calls, take)
        for call, raw in calls.items():
            raw.put(stream, pieces[call], oldest=oldest is not None)

    def _scan_call(self, link: Link, raw: Raw, stream: str, oldest: int | None, newest: int | None) -> Call:
        header, patch = template(len(raw.slots(stream)))
        last = int(raw.last_seq.get(stream, 0))
        kept = int(raw.facts["streams"].get(stream, {}).get("chunks", 1)) * CHUNK_ROWS
        first = max(1, last - (kept if newest is None else min(kept, newest)) + 1)
        fields = {"stream": stream, "first": first, "last": last if oldest is None else min(last, first + oldest - 1)}
        return self._client.send(link, wire.SCAN, header, patch=patch, credit=wire.CREDIT, **fields)

    def _stream(self, job: Job, calls: dict[Call, Raw], take: OnReply) -> None:
        """Take streams to their ends; the time-out runs anew with everything that comes."""
        heard = time.monotonic()

        def on_reply(call: Call, header: Header, payload: Sequence[Any]) -> None:
            nonlocal heard
            heard = time.monotonic()
            take(call, header, payload)

        try:
            late = self._client.wait(list(calls), None, on_reply, lambda: time.monotonic() - heard > self._timeout)
            for call in late:
                call.error = SilentError(f"Rank {call.link.rank} (pid {call.link.pid}) stopped answering.")
        finally:  # after Ctrl-C too
            self._client.cancel(call for call in calls if call.answer is None)
            self._client.forget(calls)
        for call, raw in calls.items():
            if call.error is not None:
                job.leave(raw, str(call.error))
        if calls and not job.raws:
            raise nobody(list(calls))
