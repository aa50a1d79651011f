"""Plant, meet, hand over: one attach from the first look at the process to the agent's answer.

Called by `attach` with the agent's sources, by tests with sources of their own.  Whatever fails, the
rendezvous is gone when this returns, so nothing starts later in a target that was given up.
"""

from __future__ import annotations

import binascii
import contextlib
import importlib.util
import json
import marshal
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import AttachError
from ..host.kernel_threads import native_threads, told_together
from ..host.process_status import has_thread
from ..host.processes import has_ended
from ..version import __version__
from . import listening, refusals
from .bootstrap import bootstrap_text
from .bundle import Part, digest
from .gil import told_of
from .inject.plant import THREAD, Planted
from .inject.target import OLDEST_PYTHON, Target, examine
from .inject.tracer import plant_from_child
from .meeting import Meeting, TooLate
from .pynvml_loan import pynvml_path
from .rendezvous import Rendezvous
from .withdrawal import Withdrawal
from .zmq_loan import lend

PLANT_SECONDS = 3.0  # for finding a thread at a safe point
_NOTHING: Mapping[str, Any] = {}
ANSWER_SECONDS = 0.5  # of the deadline, kept for the target's refusal to travel


@dataclass(frozen=True)
class Delivered:
    """reply: what the agent's start() returned; python: the target's version; hello_ms: until it ran our text."""

    reply: dict[str, Any]
    python: str
    planted: Planted
    hello_ms: float


def deliver(
    pid: int, bundle: Sequence[Part], timeout: float, with_zmq: bool = True, wanted: Mapping[str, Any] = _NOTHING
) -> Delivered:
    """wanted: of the agent's start().  Raises AttachError, after at most `timeout` seconds and a moment."""
    began = time.monotonic()
    deadline = began + timeout
    with (
        Withdrawal() as withdrawal,
        contextlib.closing(examine(pid)) as target,
        Rendezvous(pid, target.status) as rendezvous,
        Meeting(pid, deadline, withdrawal) as meeting,
    ):
        key = os.urandom(16).hex()
        text = bootstrap_text(rendezvous.path, key)
        planted = plant_from_child(target, text, min(deadline, time.monotonic() + PLANT_SECONDS), withdrawal)
        try:
            hello = meeting.accept(rendezvous.listener, key)
        except TooLate:
            raise _no_hello(target, planted, timeout) from None
        hello_ms = (time.monotonic() - began) * 1e3
        check_interpreter(pid, hello)
        try:
            meeting.send(_order(bundle, hello, meeting.left_seconds, with_zmq, wanted))
            answer = meeting.receive_all()
        except TooLate:
            raise _no_answer(pid, timeout) from None
        return Delivered(understand(pid, answer, hello), ".".join(map(str, hello["version"])), planted, hello_ms)


def check_interpreter(pid: int, hello: dict[str, Any]) -> None:
    """What only the interpreter itself can tell."""
    if tuple(hello["version"][:2]) < OLDEST_PYTHON:
        raise refusals.old_python(pid, ".".join(map(str, hello["version"])))
    if "t" in hello["abiflags"]:
        raise refusals.free_threaded(pid)


def understand(pid: int, answer: bytes, hello: dict[str, Any]) -> dict[str, Any]:
    """The agent's reply.  Raises the AttachError that it stands for."""
    kind, text = answer[:2], answer[2:]
    if kind == b"OK":
        return dict(json.loads(text))
    if kind != b"ER":
        raise refusals.ended(pid) if has_ended(pid) else _agent_failed(pid, "it said nothing")
    code, detail = json.loads(text)
    if code == "no-pyzmq":
        raise refusals.no_pyzmq(pid, detail, hello["executable"])
    if code == "main-thread-busy":
        raise _main_thread_busy(pid, detail)
    if code in ("port-in-use", "cannot-listen", "other-key"):
        raise listening.refused(pid, code, detail)
    if code == "attach-running":
        raise AttachError(f"In process {pid} {detail}.", f"Wait for it, then: probe attach {pid}", code)
    raise _agent_failed(pid, _last_words(detail))


def _order(
    bundle: Sequence[Part], hello: dict[str, Any], seconds: float, with_zmq: bool, wanted: Mapping[str, Any]
) -> bytes:
    """What the target needs to start the agent, with its length in front."""
    loan = {"path": "", "refused": ""} if hello["zmq"] else lend(hello["suffixes"], tuple(hello["version"]))
    code = digest(bundle, __version__)
    order = {
        "patience": max(0.1, seconds - ANSWER_SECONDS),
        "zmq": loan if with_zmq else None,
        "facts": {**wanted, "version": __version__, "zmq_path": loan["path"] or None, "pynvml_path": pynvml_path()},
        "digest": code,
        "modules": [] if hello["has"] == code else modules(bundle, hello["magic"] == importlib.util.MAGIC_NUMBER.hex()),
    }
    text = json.dumps(order).encode()
    return len(text).to_bytes(8, "little") + text


def modules(bundle: Sequence[Part], same_bytecode: bool) -> list[list[Any]]:
    """Name, whether it is a package, source, and bytecode where the target's interpreter takes ours: compiling
    would hold its GIL for some milliseconds a file."""
    if not same_bytecode:
        return [[part.name, part.is_package, part.source, ""] for part in bundle]
    dumped = [binascii.b2a_base64(marshal.dumps(part.code()), newline=False).decode() for part in bundle]
    return [[part.name, part.is_package, "", code] for part, code in zip(bundle, dumped, strict=True)]


def _no_hello(target: Target, planted: Planted, timeout: float) -> AttachError:
    pid = target.pid
    if planted.way != THREAD:
        return _main_thread_busy(pid, f"its main thread did not reach Python code within {timeout:g} s")
    if not has_thread(pid, planted.thread):
        return AttachError(
            f"The interpreter of process {pid} ran our code, but could not connect: its standard library, its "
            "temporary directory or a new thread is out of its reach.",
            "See whether it may read its Python installation, write to /tmp and start threads.",
            "no-connection",
        )
    threads = "; ".join(told_together(native_threads(pid)))
    holds = told_of(target) or f"a thread of it holds the GIL: {threads}"
    return AttachError(
        f"Process {pid} did not answer within {timeout:g} s: {holds}. The request is withdrawn.",
        f"Try again once that call has ended: probe attach {pid}",
        "gil-held",
    )


def _no_answer(pid: int, timeout: float) -> AttachError:
    return AttachError(
        f"The agent in process {pid} did not start within {timeout:g} s. The request is withdrawn.",
        f"Try again with more time: probe attach --timeout 60 {pid}",
        "attach-timeout",
    )


def _agent_failed(pid: int, why: str) -> AttachError:
    return AttachError(
        f"The agent failed in process {pid} and was taken out: {why}.", "Please report this.", "agent-failed"
    )


def _main_thread_busy(pid: int, detail: str) -> AttachError:
    return AttachError(
        f"Process {pid} can be attached to through its main thread only: {detail}.",
        f"Try again while it runs Python code: probe attach {pid}",
        "main-thread-busy",
    )


def _last_words(traceback: str) -> str:
    """The exception of a traceback, and where it was raised."""
    places = re.findall(r'File "([^"]+)", line (\d+)', traceback)
    last = traceback.strip().rpartition("\n")[2]
    return f"{last} ({places[-1][0]}:{places[-1][1]})" if places else last
