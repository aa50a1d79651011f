"""A recorder beside the job: a process of its own, which a command starts and leaves, and which ends with the job.

start() is called by `record --detach`, `run` and `attach`; main() is that process.  Invariant: the command knows
whether it records before it goes on.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import CODES, ProbeError, SilentError
from ..host.system_calls import memfd_create
from ..serve.confinement import confine
from ..serve.handover import CONFIG, IPC, command, config, spawn

_MODULE, _NAME = "probe.record.detached", "probe-recorder"
_READY_S = 60.0  # for its imports, on a busy machine
_MOST_BYTES = 1 << 16


def start(endpoint: str, order: Mapping[str, Any], key: str | None = None) -> str:
    """The folder of the job, once it is being recorded.  order: fields of Order, its folder as text.

    Raises ProbeError, as the recorder does.
    """
    ours, theirs = socket.socketpair()
    descriptor = memfd_create("probe-config")
    path = [str(Path(__file__).parents[2]), *filter(os.path.isabs, sys.path)]
    try:
        said = {"python_path": path, "endpoint": endpoint, "order": dict(order), "key": key}
        os.pwrite(descriptor, json.dumps(said).encode(), 0)
        spawn(command(_MODULE, endpoint), {IPC: theirs.fileno(), CONFIG: descriptor})
    finally:
        os.close(descriptor)
        theirs.close()
    with ours:
        ours.settimeout(_READY_S)
        return _answered(ours)


def _answered(ours: socket.socket) -> str:
    try:
        answer = json.loads(ours.recv(_MOST_BYTES) or "{}")
    except TimeoutError:
        answer = {}
    if "folder" in answer:
        return str(answer["folder"])
    if answer.get("code") in CODES:
        raise CODES[answer["code"]][0](answer["message"], answer["hint"], answer["code"])
    raise SilentError("The recorder did not start.", "Record in the foreground: probe ENDPOINT record DIR")


def main() -> None:
    """Of the process that start() has started: record until the job ends."""
    given, theirs = config(), socket.socket(fileno=IPC)
    confine(_NAME)
    from threading import Event

    from .recorder import Order, Recorder, agents_of
    from .retention import Keep

    order = given["order"]
    keep = Keep(order.pop("bytes", None), order.pop("days", None))
    try:
        recorder = Recorder(
            agents_of(given["endpoint"]), Order(**{**order, "folder": Path(order["folder"]), "keep": keep}),
            key=given["key"],
        )  # fmt: skip
    except ProbeError as error:
        theirs.sendall(json.dumps({"code": error.code, "message": error.message, "hint": error.hint}).encode())
        return
    theirs.sendall(json.dumps({"folder": str(recorder.folder)}).encode())
    theirs.close()
    recorder.run(Event().wait)
