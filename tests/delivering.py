"""Attaching with an agent of a few lines, so that nothing but the attach itself is under test."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probe.attach.bundle import Part, bundle_of
from probe.attach.delivery import Delivered, deliver
from target import Target

AGENT = """
import os, sys
starts = []
def start(facts):
    starts.append(1)
    return {
        "facts": facts, "already": len(starts) > 1, "pid": os.getpid(), "path": sys.path,
        "main": sorted(vars(sys.modules["__main__"])), "modules": sorted(sys.modules),
    }
def stop():
    pass
"""


def agent(text: str = AGENT) -> list[Part]:
    return bundle_of({"agent": "", "agent.main": text})


def put(target: Target | int, text: str = AGENT, timeout: float = 10.0) -> Delivered:
    return deliver(target if isinstance(target, int) else target.pid, agent(text), timeout)


def as_another_user(work: Callable[[], Any]) -> Any:
    """What `work` returns in a process that is nobody's; only root can become somebody else."""

    def nobody() -> Any:
        os.setgid(65534)
        os.setuid(65534)
        return work()

    return in_child(nobody)


def held_at_once(pid: int) -> int:
    """How many threads a tracer holds at one moment, that between two looks at each thread: one that it let go of
    meanwhile has been switched in and out again."""
    before, after = _held(pid), _held(pid)
    return sum(after.get(thread) == switches for thread, switches in before.items())


def _held(pid: int) -> dict[str, list[str]]:
    """How often each of these threads was switched out."""
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):  # it ended
            lines = Path(f"/proc/{pid}/task/{tid}/status").read_text().splitlines()
            if "State:\tt (tracing stop)" in lines:
                found[tid] = lines[-2:]
    return found


def in_child_of_user(uid: int, work: Callable[[], Any]) -> Any:
    """in_child(), for this user and group alone."""

    def become() -> Any:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        return work()

    return in_child(become)


def interpreters() -> list[tuple[str, str]]:
    """Other CPythons of this machine, from pyenv or PATH: version, path."""
    found = {}
    pyenv = shutil.which("pyenv")
    root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip() if pyenv else ""
    for minor in range(10, 16):
        for path in sorted(Path(root, "versions").glob(f"3.{minor}.*/bin/python")) if root else []:
            found[f"3.{minor}"] = str(path)
        on_path = shutil.which(f"python3.{minor}")
        if on_path and subprocess.run([on_path, "-c", ""], capture_output=True).returncode == 0:
            found.setdefault(f"3.{minor}", on_path)
    return sorted(found.items())


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns, from a process of its own: only the thread that seized a tracee may ask about it.  None if
    that process was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(work()).encode())
        except BaseException as error:
            os.write(writer, json.dumps({"raised": repr(error)}).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        answer = file.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else None
