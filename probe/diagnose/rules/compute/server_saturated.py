"""Servers that have no time left: requests wait for those before them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

from ....errors import SilentError
from ....host.accept_queue import waiting_connections
from ...figures import ms, number, pct
from ...rule import Finding, Rule, Severity
from ...watched import Watched

_BUSY = 0.85  # from which on, with requests that come at random, some six wait at a time
_CRITICAL = 0.95  # and from here on some twenty
_QUEUE = 0.5  # connections: fewer are those of one client, which asks again when it is answered
_IS_SERVER = 0.5  # of the time within a server's code
_LEAST_S = 3.0  # of a profile
_IDLE = (
    r"(selectors|queue|threading)\.py:|accept \(socket\.py|multiprocessing/connection\.py|asyncio/runners\.py|uvloop/"
)
_SERVERS = (
    r"(socketserver|http/server)\.py|"
    r"(asyncio|uvicorn|starlette|anyio|flask|werkzeug|gunicorn|tornado|aiohttp|grpc)/"
)
_LOOPS = r"(asyncio|uvloop|uvicorn|anyio|tornado|aiohttp)/"
_SQL = (
    "SELECT SUM(seconds) AS seconds, COALESCE(SUM(seconds) FILTER (phase IN ('forward', 'validation')), 0) AS model_s, "
    f"COALESCE(SUM(seconds) FILTER (regexp_matches(stack[-1], '{_IDLE}')), 0) AS idle_s, "
    f"COALESCE(SUM(seconds) FILTER (regexp_matches(array_to_string(stack, ' '), '{_SERVERS}')), 0) AS serving_s "
    "FROM python.profile WHERE {window} AND stack IS NOT NULL AND phase IS NOT NULL"
)
_STACKS = (
    "SELECT stack, SUM(seconds) AS seconds FROM python.profile WHERE {window} AND stack IS NOT NULL "
    "AND phase IN ('forward', 'validation') GROUP BY stack"
)
# By any thread: a framework may have a function that is no coroutine called in a thread beside that of its loop.
_LOOP = (
    "SELECT COUNT(*) AS samples FROM python.profile WHERE {window} AND stack IS NOT NULL "
    f"AND regexp_matches(array_to_string(stack, ' '), '{_LOOPS}')"
)
_LOOKS, _PAUSE_S = 10, 0.02  # at connections that wait
_AGENTS = "SELECT pid, host FROM probe.agents WHERE state = 'answers'"


def _find(watched: Watched) -> Iterator[Finding]:
    if not any(facts.step_ends == "call" for facts in watched.agents):
        return  # it trains
    if watched.why_not_profiled:
        raise SilentError(f"No profile: {watched.why_not_profiled}.", code="no-profile")
    (row,) = watched.rows(_SQL)
    if (row["seconds"] or 0) < _LEAST_S or row["serving_s"] < _IS_SERVER * row["seconds"]:
        return
    busy, model = 1 - row["idle_s"] / row["seconds"], row["model_s"] / row["seconds"]
    if busy < _BUSY:
        return
    waiting = _waiting(watched)
    yield Finding(
        f"Saturated server: it is busy for {pct(busy)} of the time{_told(waiting)}.",
        why=[
            f"the model runs for {pct(model)} of the time, the rest of each request takes {pct(busy - model)}",
            *([_queue(waiting, watched.step_s)] if waiting else []),
        ],
        remedy="several requests in one call of the model, or more processes that serve",
        seconds=busy * watched.step_s, share=busy, where=_server(watched),
        severity=_severity(busy, waiting),
    )  # fmt: skip


def _severity(busy: float, waiting: float | None) -> Severity:
    """A hint unless requests are known to wait: one client that asks again when it is answered keeps a server busy."""
    if waiting is None or waiting < _QUEUE:
        return "hint"
    return "critical" if busy >= _CRITICAL else "warning"


def _told(waiting: float | None) -> str:
    if waiting is None:
        return "; whether requests wait is not known"
    return ", and requests wait" * bool(waiting)


def _queue(waiting: float, step_s: float) -> str:
    wait, each = ms(waiting * step_s), ms(step_s)
    return f"{number(waiting, 'connection')} to be accepted, some {wait} in a queue; to serve one takes {each}"


def _waiting(watched: Watched) -> float | None:
    """Connections that are not accepted yet, on average; None if that is not known, or says nothing.

    A server with an event loop accepts them at once, and lets them wait inside.
    """
    (loop,) = watched.rows(_LOOP)
    here = [row["pid"] for row in watched.rows(_AGENTS) if row["host"] == socket.gethostname()]
    if loop["samples"] or len(here) != 1:
        return None
    seen = list[int | None]()
    for _ in range(_LOOKS):
        seen.append(waiting_connections(here[0]))
        time.sleep(_PAUSE_S)
    known = [each for each in seen if each is not None]
    return sum(known) / len(known) if known else None


def _server(watched: Watched) -> str:
    """Where the model is called."""
    seconds: dict[str, float] = {}
    for row in watched.rows(_STACKS):
        if caller := _caller(row["stack"]):
            seconds[caller] = seconds.get(caller, 0.0) + row["seconds"]
    return f"the model is called in {max(seconds, key=lambda each: seconds[each])}" if seconds else ""


def _caller(stack: list[Any]) -> str:
    first = next((place for place, frame in enumerate(stack) if "torch/nn/modules/module.py" in frame), 0)
    return stack[first - 1] if first else ""


SERVER_SATURATED: Rule[Watched] = Rule(
    "server-saturated",
    "A server has no time left, and requests wait.",
    _find,
    needs=("python.step_trace", "python.profile"),
    sql=_SQL,
)
