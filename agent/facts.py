"""What a process says about itself: which one it is, its rank, its torch, its clocks."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from .torch_state import is_distributed


def identity() -> dict[str, Any]:
    """What stays the same as long as this agent runs."""
    return {
        "pid": os.getpid(),
        "start_ticks": start_ticks(),
        "id": os.urandom(8).hex(),  # unique among all agents on all hosts
        "boot_id": _boot_id(),
        "uid": os.geteuid(),
        "host": os.uname().nodename,
        "python": sys.version.partition(" ")[0],
        "attached_ns": time.perf_counter_ns(),
        "attached_wall_ns": time.time_ns(),
    }


def current(group: dict[str, Any]) -> dict[str, Any]:
    """What may change: rank and size, torch, the clocks.  group: {} at first; it keeps rank and size of the last
    process group, since a job that destroys its group and lives on is the same rank as before."""
    torch = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    return {
        **_group(group),
        "torch": str(version) if version else None,
        "torch_cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "monotonic_ns": time.perf_counter_ns(),
        "wall_ns": time.time_ns(),
    }


def _group(last: dict[str, Any]) -> dict[str, Any]:
    """Rank and size: from the process group if there is one, else from the launcher's environment variables, else from
    the last process group."""
    distributed_is_up = is_distributed()
    found = {
        "rank": _number("RANK"),
        "world_size": _number("WORLD_SIZE"),
        "local_rank": _number("LOCAL_RANK"),
        "distributed": distributed_is_up,
    }
    if distributed_is_up:
        distributed: Any = sys.modules["torch.distributed"]
        last |= {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
        return found | last
    return found | {name: value for name, value in last.items() if found[name] is None}


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


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


def served_by(said: Any) -> dict[str, Any]:
    """Where the job's server is, as a client says it (Agent.adopt).

    Raises LookupError, TypeError or ValueError: readers leave an agent out whose facts are not what they have to be.
    """
    port = said["tcp"]
    if port is not None:
        most = {"host": 256, "address": 256, "public": 256, "key_file": 4096}
        port = {"port": port["port"], **{name: line(port[name], length) for name, length in most.items()}}
        if type(port["port"]) is not int or not 0 < port["port"] < 1 << 16:
            raise ValueError("no port")
        port["other_network"] = said["tcp"].get("other_network") is True
    return {"server": line(said["server"], 256), "tcp": port}


def line(text: Any, most: int) -> str:
    """This text of one line, of at most so many characters.  Raises ValueError."""
    if type(text) is not str or len(text) > most or not text.isprintable():
        raise ValueError("no text of one line")
    return text
