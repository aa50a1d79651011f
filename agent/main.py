"""The agent's entry points, called by the bootstrap inside the target: start(), and stop() to make way for another
version."""

from __future__ import annotations

import contextlib
import os
import time
from _thread import allocate_lock
from functools import partial
from typing import Any
from weakref import finalize

from .agent import Agent
from .fork import lay_by_modules
from .noop import noop
from .opened import Opened
from .storage.room import check_descriptors, check_file_size
from .taps import device_policy

_HALT_S = 0.5  # for the agent's thread, when the interpreter ends
_TIMEOUT_S = 10.0  # a detach waits for a boundary between two steps

_agent: Agent | None = None
_lock = allocate_lock()


def start(facts: dict[str, Any]) -> dict[str, Any]:
    """Start the agent, or adopt the one that runs.  Returns a JSON-able reply for the CLI.

    facts: uid of the user who attaches, version, what Agent.adopt() takes, pynvml_path (where the command has
    nvidia-ml-py, if it does), and devices (False: leave them alone).
    """
    global _agent
    with _lock:
        _wait_for_leaving_agent()
        agent = _agent  # read once: the agent may end meanwhile
        already = agent is not None
        if agent is None:
            agent = _agent = _new_agent(facts)
        else:
            agent.server.on_thread(partial(agent.adopt, facts), _TIMEOUT_S)
        current = agent.facts()
    names = ("agent", "pid", "rank", "python", "torch", "endpoint", "served", "taps")
    return {**{name: current[name] for name in names}, "already": already}


def stop() -> list[str]:
    """Remove the agent for another version, and wait for its thread.  Returns what had to stay, in words."""
    agent = _agent
    if agent is None:
        return []
    left = agent.take_out()
    agent.server.stop()
    _wait_for_leaving_agent()
    return left


def _wait_for_leaving_agent() -> None:
    end = time.monotonic() + _TIMEOUT_S
    while (agent := _agent) is not None and agent.leaving:  # read once: the agent may end meanwhile
        if time.monotonic() >= end:
            raise RuntimeError("the agent that is being detached has not ended yet; attach again")
        time.sleep(0.001)


def _new_agent(facts: dict[str, Any]) -> Agent:
    uids, version = {os.geteuid(), int(facts["uid"])}, str(facts["version"])
    owner = os.getpid()
    check_descriptors()
    check_file_size()
    with contextlib.ExitStack() as made:
        agent = Agent(Opened(uids, made), version, facts.get("pynvml_path"))
        made.pop_all()
    listener = agent.server.connections.listener

    def end() -> None:
        """Before the interpreter ends, or a thread that needs it after that could take the process down with it."""
        if os.getpid() != owner:  # a forked child runs its exit handlers
            return
        listener.remove()
        with contextlib.suppress(BaseException):  # a signal handler of the job's may raise: it ends already
            if (running := _agent) is not None and not running.leaving:
                running.captures.finish()
                if running.taps is not None:
                    running.taps.finish()
                running.server.halt(_HALT_S)

    def stopped() -> None:
        """The last thing that the agent's thread does."""
        global _agent
        at_exit.detach()
        listener.remove()
        agent.release()
        agent.on_stopped = noop  # break the cycle: this function holds the agent
        lay_by_modules()
        _agent = None  # last of all: an attach may be waiting for it

    agent.on_stopped = stopped
    at_exit = finalize(agent, end)  # an atexit handler would leave an empty slot behind
    device_policy.leave_all_alone(facts.get("devices") is False)
    try:
        agent.adopt(facts)
        agent.start()
    except BaseException:
        agent.take_out()
        agent.server.close()
        stopped()
        raise
    return agent
