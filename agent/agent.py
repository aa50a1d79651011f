"""The agent: its streams, its taps and its thread, installed at start and removed at stop.

Invariant: everything that is put into the process has its removal beside it, and stop() calls them all.
"""

from __future__ import annotations

import contextlib
import sys
from _thread import start_new_thread
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import protocol as wire
from ..streams import SAMPLES, SPANS, STEPS
from . import fork
from .boundary.boundary import Boundary
from .capture.captures import Captures
from .evals.evals import Evals
from .facts import current, identity, line, served_by
from .fault import in_words
from .inspect.threads import Threads
from .memory.tensors import Tensors
from .names.modules import Modules
from .opened import Opened
from .samplers.sampler_loop import SamplerLoop
from .serve.own_memory import OwnMemory
from .serve.peers import Peers
from .serve.profiles import Profiles
from .serve.scans import Scans
from .serve.server import Key, Refused
from .steps.sampling import Sampling
from .steps.step_count import Steps
from .steps.step_ends import StepEnds
from .taps.collectives.flight_recorder import dumps, groups
from .taps.device_policy import are_recorded
from .taps.tap import TapContext
from .taps.torch_taps import NO_TORCH, TorchTaps, states_without_torch
from .torch_state import torch_is_imported
from .trace.traces import Traces

_STEP_LIMIT = 1 << 53  # on the step numbers that a reader may send
_REMAIN_S = 60.0  # for the agent's thread


class Agent:
    """Made by main.start(); _run() is the agent's thread."""

    def __init__(self, opened: Opened, version: str, pynvml_path: str | None = None) -> None:
        self.name = ""  # of the job, as given at attach
        self._served: dict[str, Any] | None = None  # by the server of the job on this host
        self._last_group: dict[str, Any] = {}
        self._opened, self.server, self.streams = opened, opened.server, opened.streams
        self._identity = {"agent": version, "protocol": wire.PROTOCOL, "endpoint": self.server.endpoint, **identity()}
        self.header, self.log, self.boundary, self.sampling = opened.header, opened.log, Boundary(), Sampling()
        self.modules, self.threads = Modules(self.log), Threads(self.log)
        self.sampler_loop = SamplerLoop(self.streams[SAMPLES], self.log, pynvml_path)
        self.steps = Steps(self.streams[STEPS], self.boundary.stepped, self.sampling)
        self.step_ends = StepEnds(self.steps, self.streams[SPANS].position)
        self.steps.rss_bytes = opened.rss.read
        self.boundary.wake, self.boundary.steps = self.steps.wake, lambda: self.steps.count
        self.profiles = Profiles(self.server, self.streams, self.log, self.steps)
        self.captures = Captures(self.server, self.streams, self.log, self.boundary, self.steps, self.sampling)
        self.evals = Evals(self.server, self.boundary, self.steps, self.log, self.streams[SPANS], self.captures)
        self.traces = Traces(self.server, self.streams, self.log)
        self.tensors = Tensors(self.server, self.boundary, self.steps)
        self.taps: TorchTaps | None = None
        self.why_no_taps, self.leaving = NO_TORCH, False
        self._detach_requests: list[Key] = []
        self._left_behind: list[str] = []  # what could not be removed, in words
        self.peers = Peers(self.server, self._identity["id"])
        self.on_stopped: Callable[[], None] = lambda: None
        self._wire_up()
        fork.in_child(self._in_forked_child)

    def _wire_up(self) -> None:
        server = self.server
        Scans(server, self.streams, self.log)
        OwnMemory(server, self.profiles, self.threads.told)
        server.on_tick, server.on_cancel = self._tick, partial(self.evals.cancel, by_client=True)
        server.handlers |= {
            wire.HELLO: self._hello,
            wire.SNAPSHOT: self._snapshot,
            wire.FLIGHT: self._flight,
            wire.SERVE: self._serve,
            wire.ALIGN: self._align,
            wire.SET: self._set,
            wire.ARM: self.evals.arm,
            wire.GO: self.evals.go,
            wire.STAY: self.evals.stay,
            wire.RUN: self.evals.run,
            wire.PASS: self.evals.decide,
            wire.DETACH: self._detach,
        }

    def start(self) -> None:
        """Install the taps and start the thread.  On the bootstrap's thread."""
        self._look_for_torch()
        self._write_log()
        start_new_thread(self._run, ())

    def adopt(self, wanted: dict[str, Any]) -> None:
        """Apply what an attach asks of a new or a running agent.  Before start(), after that on the agent's thread.

        name: of the job, if it is to have one; served: the endpoint of the job's server on this host (server), and
        where it listens for other hosts, if it does (tcp: host, address, port, public key, and whether that is in
        another network namespace than this process's; or null).
        """
        if (served := wanted.get("served")) is not None:
            self.peers.served(served["tcp"])
            self._served = {"server": served["server"], "tcp": served["tcp"]}
        self.name = wanted.get("name") or self.name
        self.header.write(self.facts())

    def facts(self) -> dict[str, Any]:
        """What every reader gets first, as described by probe/streams.py: plain data.  On the agent's thread."""
        steps, taps = self.steps, self.taps
        of_torch = taps.states() if taps is not None else states_without_torch(self.why_no_taps)
        return {
            **self._identity,
            **current(self._last_group),
            "name": self.name,
            "served": self._served,
            "streams": {name: {"slots": [*each.slots], "chunks": each.chunks} for name, each in self.streams.items()},
            "step_base": steps.base,
            "step_source": steps.source,
            "step_settled": steps.trainer_step is None,
            "devices": are_recorded(),
            "count": steps.count,
            "anchor": steps.anchor_name,
            "step_ends": self.step_ends.by,
            "step_ns": steps.typical_ns(),
            "last_step_ns": steps.last_ns,
            "sampling": self.sampling.settings(),
            "collectives_ns": taps.since_ns("collectives") if taps is not None else None,
            "taps": {**of_torch, **self.sampler_loop.states()},
            "peers": self.peers.state,
            "trouble": self.boundary.trouble or self.server.trouble or self.log.trouble,
            "holder": self.evals.holder(),
            "held_since_ns": self.evals.held_since_ns,
            "freed_ns": self.evals.freed_ns,
            "training": steps.training_thread or self.streams[SPANS].last_value("thread"),
            "layout": self.profiles.layout,
        }

    def _run(self) -> None:
        # ctypes is loaded in every job that has torch; while it is being imported it has less
        pythonapi = getattr(sys.modules.get("ctypes"), "pythonapi", None)
        if pythonapi is not None:  # top and py-spy then show whose thread it is
            # PR_SET_NAME, without a CDLL of our own: that would make a class, a reference cycle.
            pythonapi["prctl"](15, b"probe-agent", 0, 0, 0)
        try:
            self.server.run()
        finally:
            if not self.server.halted:
                self.header.close()  # first of all, or an attach that comes now takes this agent for a running one
                for key in self._detach_requests:
                    self.server.post(key, wire.DETACHED, left=self._left_behind)
                self.server.close()
                self.on_stopped()

    # ---- taps

    def _look_for_torch(self) -> None:
        """Install the taps once torch is imported: at attach, or when the job imports it later."""
        if self.taps is None and self.why_no_taps == NO_TORCH and torch_is_imported():
            try:
                parts = self.streams, self.log, self.modules, self.steps, self.sampling, self.boundary
                hooks = self.server.tick_soon, self.step_ends.are_calls
                self.taps = TorchTaps(TapContext(*parts, self.evals.current, {}, {}, *hooks))
            except Exception as error:  # an unknown torch: the rest of the agent is still useful
                self.why_no_taps = f"off: not this torch: {in_words(error)}"
        if self.taps is not None and not self.leaving:
            self.taps.tend()

    def _tick(self) -> float:
        """Once a second or sooner, on the agent's thread."""
        due = self.sampler_loop.tick()
        self._look_for_torch()
        self.profiles.search()
        self.step_ends.look()
        self.peers.tick()
        self.traces.tick()
        self._write_log()
        return min(due, self.evals.tick(), self.tensors.tick(), 1.0 if self.taps is None else self.taps.due_s)

    def _write_log(self) -> None:
        self.threads.tell()
        self.modules.name()
        self.log.write()
        self.header.write(self.facts())

    # ---- requests

    def _hello(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if request["protocol"] != wire.PROTOCOL:
            raise Refused("protocol", f"this agent speaks protocol {wire.PROTOCOL}, not {request['protocol']}")
        self.server.reply(key, wire.WELCOME, facts=self.facts(), role=key[0].role)

    def _snapshot(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if self.taps is not None:
            self.taps.drain()
        self._write_log()
        at = {name: stream.position() for name, stream in self.streams.items()}
        self.server.reply(key, wire.AT, streams=at, log=self.log.committed, facts=self.facts())

    def _flight(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        texts, why_not = dumps()
        self.server.reply(key, wire.ENTRIES, texts=texts, why_not=why_not, groups=groups())

    def _serve(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self.adopt({"served": served_by(request["served"])})
        self.server.reply(key, wire.END, rows=0)

    def _align(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        base, source = request["base"], line(request["source"], 40)
        if type(base) is not int or abs(base) > _STEP_LIMIT:
            raise Refused("protocol", "no step to count from")
        self.steps.align(base, source)
        self.server.reply(key, wire.END, rows=0)

    def _set(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self.sampling.set(request["settings"], self.steps.typical_ns())
        self.steps.resample()
        self.server.reply(key, wire.SETTINGS, settings=self.sampling.settings())

    def _detach(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if not self._detach_requests:
            # Removal waits for the training thread, so it must not keep the server from posting what that thread sends.
            start_new_thread(self._leave, ())  # it raises where the system has no thread left: the next one may have
        self._detach_requests.append(key)

    def _leave(self) -> None:
        if why := self.evals.end() or self.captures.end():
            with contextlib.suppress(TimeoutError):  # it is done once the agent's thread has time
                self.server.on_thread(partial(self._remain, why), _REMAIN_S)
            return
        self._left_behind = self.take_out()
        self.server.stop()

    def _remain(self, why: str) -> None:
        """A detach cannot be obeyed: taking the agent out leaves nobody who could tell of what goes on, or end it."""
        for key in self._detach_requests:
            self.server.post(key, wire.ERROR, code="still-held", message=why)
        self._detach_requests = []

    def take_out(self) -> list[str]:
        """Remove everything from the job except the server.  Returns what had to stay, in words.

        Not on the agent's thread.
        """
        self.leaving = True
        self.peers.remove()
        self.traces.close()
        left = self.evals.close() + (self.taps.remove() if self.taps is not None else [])
        self.boundary.close()
        fork.clear()
        return left

    def release(self) -> None:
        """After the thread has ended: release the memory."""
        if self.taps is not None:
            self.taps.release()
        self.steps.release()
        self.evals.release()
        self.modules.close()
        self.sampler_loop.close()
        for part in self._opened.memory():
            part.close()

    def _in_forked_child(self) -> None:
        """First in a forked child: remove the taps, close descriptors, leave locks and sockets alone."""
        fork.clear()
        self.traces.close()
        self.captures.forget()
        self.tensors.forget()
        self.boundary.close()  # a child forked while the back edge is traced would inherit the trace
        if self.taps is not None:
            self.taps.forget()
        self.sampler_loop.forget()
        for part in self._opened.memory():
            with contextlib.suppress(BufferError):  # the server, whose thread does not exist here, was sending from it
                part.close()
        self.server.connections.abandon()
        fork.forget_modules()
