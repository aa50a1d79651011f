"""The facts that every reader gets first: which process this is, the layout of its rows, the states of its taps."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Protocol
from weakref import proxy

from .. import protocol as wire
from .boundary.boundary import Boundary
from .evals.evals import Evals
from .samplers.sampler_loop import SamplerLoop
from .serve.peers import Peers
from .serve.server import Server
from .steps.sampling import Sampling
from .steps.step_count import Steps
from .storage.rows import Stream
from .taps.torch_taps import TAPS, TorchTaps
from .torch_state import is_distributed


class Described(Protocol):
    """The part of the agent that its facts come from."""

    version: str
    why_no_taps: str
    taps: TorchTaps | None
    streams: dict[str, Stream]
    steps: Steps
    sampling: Sampling
    sampler_loop: SamplerLoop
    peers: Peers
    boundary: Boundary
    server: Server
    evals: Evals


class Facts:
    """now() on the agent's thread: plain data, as described by probe/streams.py and written to the header."""

    def __init__(self, agent: Described, endpoint: str) -> None:
        self._agent: Described = proxy(agent)  # a proxy: the agent holds this object
        self.id = os.urandom(8).hex()  # unique among all agents on all hosts
        self._fixed = {
            "agent": agent.version,
            "protocol": wire.PROTOCOL,
            "pid": os.getpid(),
            "start_ticks": start_ticks(),
            "id": self.id,
            "boot_id": _boot_id(),
            "uid": os.geteuid(),
            "host": os.uname().nodename,
            "python": sys.version.partition(" ")[0],
            "attached_ns": time.perf_counter_ns(),
            "attached_wall_ns": time.time_ns(),
            "endpoint": endpoint,
        }
        self.name = ""  # of the job, as given at attach
        self.tcp: str | None = None  # the endpoint for other hosts
        self.server_key: str | None = None  # the public key by which they recognize this agent

    def now(self) -> dict[str, Any]:
        steps, taps = self._agent.steps, self._agent.taps
        of_torch = taps.states() if taps is not None else dict.fromkeys(TAPS, self._agent.why_no_taps)
        return {
            **self._fixed,
            "name": self.name,
            "tcp": self.tcp,
            "server_key": self.server_key,
            **_group(),
            **_torch(),
            "monotonic_ns": time.perf_counter_ns(),
            "wall_ns": time.time_ns(),
            "streams": {
                name: {"slots": list(stream.slots), "chunks": stream.chunks}
                for name, stream in self._agent.streams.items()
            },
            "step_base": steps.base,
            "step_source": steps.source,
            "step_settled": steps.trainer_step is None,
            "count": steps.count,
            "anchor": steps.anchor_name,
            "step_ns": steps.typical_ns(),
            "last_step_ns": steps.last_ns,
            "sampling": self._agent.sampling.settings(),
            "collectives_ns": taps.collectives.since_ns if taps is not None else None,
            "taps": {**of_torch, **self._agent.sampler_loop.states()},
            "peers": self._agent.peers.state,
            "trouble": self._agent.boundary.trouble or self._agent.server.fault,
            "holder": self._agent.evals.holder(),
        }


def _group() -> dict[str, Any]:
    """Rank and size: from the process group if there is one, else from the launcher's environment variables."""
    distributed_is_up = is_distributed()
    found = {
        "rank": _number("RANK"),
        "world_size": _number("WORLD_SIZE"),
        "local_rank": _number("LOCAL_RANK"),
        "distributed": distributed_is_up,
    }
    if distributed_is_up:
        distributed: Any = sys.modules["torch.distributed"]
        found["rank"], found["world_size"] = distributed.get_rank(), distributed.get_world_size()
    return found


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _torch() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    return {"torch": str(version) if version else None, "torch_cuda": cuda}


def _boot_id() -> str | None:
    """Tells a reader whether this process runs on its own machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:  # a sandbox without the file: its memory is then never read from outside
        return None


def start_ticks() -> int:
    """When this process started, in clock ticks since boot: together with the pid it identifies the process."""
    with open("/proc/self/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[19])
