"""A question in SQL to the server beside a job on this host, which answers sooner than a command can import DuckDB.

Called by querying.py, for `probe query` and `probe ask`.  Invariant: as long as the server has not begun to answer
nothing is shown, and the command may answer the question itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from probe import protocol as wire
from probe.client.client import Call, Client, Header
from probe.client.endpoints import SERVER, Address, Resolved, resolve
from probe.errors import CODES, Interrupted, ProbeError, SilentError
from probe.host.file_limits import make_room
from probe.host.job_server import server_url
from probe.host.processes import namespace
from probe.settings import may_serve

from .output.behind import WrittenBehind
from .output.formats import Output
from .session import cancelled_by_signals, say, say_guessed, say_note

_CONNECT_S = 1.0  # to the server
_WANTED_S = 1.0  # how often the server is told that somebody waits
_REST_S = 0.1


def answered_by_server(endpoint: str | None, question: Mapping[str, Any], output: Output) -> bool:
    """Whether it was answered and shown; otherwise nothing was.  question: fields of the protocol's `query`.

    Raises ProbeError.
    """
    try:
        resolved = resolve(endpoint)
    except ProbeError:  # which the command will tell
        return False
    url = _server_of(resolved)
    if not url or len(str(question["sql"])) > wire.MAX_CONTROL_BYTES // 4:
        return False
    make_room(1)  # with fewer open files libzmq waits for ever, or aborts
    client = Client()
    try:
        with cancelled_by_signals(lambda: setattr(client, "interrupted", True)):
            return _Asking(client, url, output, endpoint is None).ask(resolved, question)
    finally:
        client.close()


def _server_of(resolved: Resolved) -> str:
    """The url of the one server, of this very user, that all agents have; "" if there is none."""
    urls = {_url(each) for each in resolved.addresses}
    if len(urls) != 1 or not (url := urls.pop()):
        return ""
    with contextlib.suppress(OSError):
        if os.stat(url.removeprefix("ipc://")).st_uid == os.geteuid():
            return url
    return ""


def _url(address: Address) -> str:
    if address.pid and not address.source:
        return server_url(address.pid, address.facts)
    is_server = address.url.startswith("ipc://") and address.url.endswith(SERVER) and may_serve()
    return address.url if is_server else ""


class _Asking:
    """One question, and its answer as it comes."""

    def __init__(self, client: Client, url: str, output: Output, is_guessed: bool) -> None:
        self._client, self._output, self._is_guessed = client, output, is_guessed
        self._server = client.server(url)
        self._link = client.link(Address(url), self._server)
        self._endpoint = ""
        self._skipped: Sequence[str] = ()
        self._result: Header | None = None
        self._sink: WrittenBehind | None = None  # until there is a result
        self._bytes = 0

    def ask(self, resolved: Resolved, question: Mapping[str, Any]) -> bool:
        self._endpoint, self._skipped = resolved.endpoint, resolved.skipped
        ids = [each.facts.id for each in resolved.addresses]
        call = self._client.send(
            self._link, wire.QUERY, protocol=wire.PROTOCOL, ids=ids if all(ids) else None,
            endpoint=resolved.endpoint, format=self._output.kind, paper=self._output.paper(), credit=wire.CREDIT,
            pids=namespace(os.getpid(), "pid"), **question,
        )  # fmt: skip
        try:
            self._wait(call)
        except BaseException as error:
            if self._sink is not None:
                self._sink.abandon()
            if isinstance(error, Interrupted):
                self._client.cancel([call])
            raise
        if self._result is None and (call.answer is None or _is_withdrawn(call.answer)):
            return False
        self._finish(call)
        return True

    def _wait(self, call: Call) -> None:
        end = time.monotonic() + _CONNECT_S
        while self._client.wait([call], time.monotonic() + _WANTED_S, self._take):
            if not self._server.connections and time.monotonic() > end:
                return
            self._client.want(call, 0)

    def _take(self, call: Call, header: Header, payload: Sequence[Any]) -> None:
        if header["kind"] == wire.RESULT:
            self._result = header
            self._tell(header["before"])
            self._sink = WrittenBehind(self._output.opened())
        elif self._sink is not None:
            while self._sink.is_full:
                self._rest(call)
            self._bytes += self._sink.write(payload[0])

    def _rest(self, call: Call) -> None:
        """A moment without taking more of the answer, which somebody waits for all the same."""
        self._client.want(call, 0)
        time.sleep(_REST_S)
        if self._client.interrupted:
            raise Interrupted("Interrupted.")

    def _finish(self, call: Call) -> None:
        """Raises what the command would have raised."""
        if self._sink is not None:
            self._sink.finish(lambda: self._client.interrupted)
        if call.answer is None or self._is_cut(call.answer):
            raise SilentError("The server beside the job ended the answer in its midst.", "Run the command again.")
        failed = call.answer.get("failure")
        if failed is not None:
            if self._result is None:
                self._tell([])
            kind = CODES[failed["code"]][0] if failed["code"] in CODES else ProbeError
            raise kind(failed["message"], failed["hint"], failed["code"])
        result = self._result or {}
        self._output.tell_rows(result["count"])
        for line in result["after"]:
            say(line)

    def _is_cut(self, answer: Header) -> bool:
        """Whether a part is missing, for nobody seemed to wait for it or the process was replaced."""
        is_whole = self._result is not None and answer["bytes"] == self._bytes
        return _is_withdrawn(answer) or not (is_whole or answer.get("failure"))

    def _tell(self, lines: Sequence[str]) -> None:
        if self._is_guessed:
            say_guessed(self._endpoint)
        for line in self._skipped:
            say(line)
        for line in lines:
            say_note(line)


def _is_withdrawn(answer: Header) -> bool:
    """Whether the server gave it up: this process was stopped for a while, perhaps."""
    return (answer.get("failure") or {}).get("code") == Interrupted.code
