"""A capture of all ranks or some: begun at one step, waited for, its traces taken and turned into rows.

Called by Connection.capture.  Invariant: on the way out, however it is left, no rank keeps a profiler beyond its next
boundary.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from .. import protocol as wire
from ..client.agent_requests import chosen
from ..client.client import Call, Client
from ..errors import CODES, Interrupted, OutputError, ProbeError, SilentError
from ..evals.evaluation import evaluate
from ..evals.snippet import EvalResult, OnOutput, Snippet
from ..snapshot.align import Alignment
from .depositor import Depositor, InTurn

_ENDS_S = 100.0  # the agents end it after 60 s, at a boundary
_STAY_S = 1.0
_GRACE_S = 2.0  # for a boundary, after Ctrl-C


@dataclass(frozen=True)
class RankCapture:
    """A capture of one rank.  first_step: the first captured; why: it ended early, in words; start_ns, end_ns: on the
    monotonic clock of its host; held_s: the training stood for the others, and while the profiler was switched on and
    off; export_s: torch then kept the GIL to write the trace; grown_bytes: by which the process is larger than before;
    kernels: None where the rank uses CUDA and CUPTI told nothing; path: of the trace.

    Example: `max(each.held_s for each in job.capture(3))`
    """

    rank: int
    first_step: int
    steps: int
    why: str
    start_ns: int
    end_ns: int
    held_s: float
    export_s: float
    grown_bytes: int
    operators: int
    kernels: int | None
    path: str


@dataclass(frozen=True)
class Order:
    """steps: so many whole ones; shapes: record those of operators; folder: for the traces, "" for none; ranks: these,
    None for all; id: of this capture."""

    steps: int
    shapes: bool
    folder: str
    by: str
    ranks: Sequence[int] | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8))


def capture(
    client: Client, alignment: Alignment, order: Order, timeout: float, on_output: OnOutput | None
) -> list[RankCapture]:
    """What it was on each rank.  Raises ProbeError; then no rank has a profiler any more, or has to come to a boundary
    first."""
    chosen(client.links, order.ranks)  # before anything is done
    if order.folder:
        _make_folder(order.folder)
    what = {"id": order.id, "steps": order.steps, "shapes": order.shapes}
    words = f"# capture of {order.steps} steps"
    snippet = Snippet(words, "<capture>", False, None, False, order.by, order.ranks, capture=what)
    try:
        results = evaluate(client, alignment, snippet, timeout, on_output)
        _require_begun(results)
        since, calls = time.monotonic(), _asked(client, order)
        _await(client, calls)
        held = {each.rank: each.held_s for each in results}
        return _taken(client, sorted(calls, key=lambda call: call.link.rank), order, held, since)
    except BaseException:
        _end(client, order)
        raise


def _require_begun(results: EvalResult) -> None:
    for each in results:
        said = json.loads(each.echo or "{}")
        if not each.ok or "code" in said:
            code, message = said.get("code", "no-capture"), said.get("message") or f"{each.error}."
            raise CODES[code][0](f"Rank {each.rank}: {message}", code=code)


def _asked(client: Client, order: Order) -> list[Call]:
    """How it goes, of each rank that captures."""
    links = [link for link in client.links if order.ranks is None or link.rank in order.ranks]
    return [client.send(link, wire.CAPTURE, id=order.id) for link in links]


def _await(client: Client, calls: Sequence[Call]) -> None:
    """Until every rank has told, which hears meanwhile that this command is there."""
    end, late = time.monotonic() + _ENDS_S, [*calls]
    while late and time.monotonic() < end:
        for call in late:
            client.send(call.link, wire.STAY, of=call.id.decode())
        client.wait(calls, time.monotonic() + _STAY_S, None, lambda: any(call.error for call in calls))
        if error := next((call.error for call in calls if call.error), None):
            raise error
        late = [call for call in late if not call.over]
    if late:
        name = late[0].link.name
        raise SilentError(f"{name} has come to no end of a step for {_ENDS_S:.0f} s: its profiler ends with the step.")


def _end(client: Client, order: Order) -> None:
    """Have every rank end its capture, and give it a moment for the boundary at which it does."""
    client.interrupted = False
    with suppress(Interrupted, ProbeError):
        calls = _asked(client, order)
        client.cancel(calls)
        client.wait(calls, time.monotonic() + _GRACE_S)
        client.forget(calls)


def _taken(
    client: Client, calls: Sequence[Call], order: Order, held_s: Mapping[int, float], since: float
) -> list[RankCapture]:
    """All traces, then the rows made of each: that takes longer.  held_s: by the begin of the capture, by rank; since:
    the moment of time.monotonic() after which each rank has heard of this command."""
    with TemporaryDirectory(prefix="probe-capture-") as spare:
        folder, captures = Path(order.folder or spare), list[RankCapture]()
        in_turn = InTurn([Depositor(client, call.link, order.id) for call in calls], since)
        paths = [folder / f"rank{call.link.rank}.pt.trace.json" for call in calls]
        for call, depositor, path in zip(calls, in_turn, paths, strict=True):
            _write(path, depositor.trace(call.result()["bytes"]))
        for call, depositor, path in zip(calls, in_turn, paths, strict=True):
            told, trace = call.result(), depositor.deposit(path.read_bytes(), call.result())
            captures.append(RankCapture(
                call.link.rank, call.link.facts.step_base + told["count"], told["steps"], told["why"],
                told["start_ns"], told["end_ns"], held_s[call.link.rank] + told["stop_ns"] / 1e9,
                told["export_ns"] / 1e9, told["grown_bytes"], len(trace.operators),
                len(trace.kernels) if trace.launches.calls or not told["cuda"] else None,
                str(path) if order.folder else "",
            ))  # fmt: skip
    return captures


def _make_folder(folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror}.") from None


def _write(path: Path, text: bytes) -> None:
    try:
        path.write_bytes(text)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}.") from None
