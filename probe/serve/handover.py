"""What `launch` hands to the keeper, the keeper to the server, and that to who answers: numbers of descriptors, and how
to run a module.  Of the environment they get what loads this Python, and nothing else.

Standard library only: the keeper loads nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

SERVER, KEEPER = "probe-server", "probe-keeper"  # the processes, in ps and top
ANSWERS, STACKS, PROFILER = "probe-answers", "probe-stacks", "probe-profiler"
SERVER_MODULE, KEEPER_MODULE = "probe.serve.server", "probe.serve.keeper"
STACKS_MODULE, PROFILER_MODULE = "probe.serve.stack_reader", "probe.serve.profiler"
ANSWERS_MODULE = "probe.cli.answers"  # named here only: it writes answers as the command does
IPC, CONFIG, TCP = 3, 4, 5  # descriptors: the two sockets listen, the file has what config() returns
LAST = TCP
SOCKET = "server"  # in its folder
_MOST_BYTES = 1 << 20
_FREE = 10  # a descriptor that no process uses by number


def config() -> dict[str, Any]:
    """As `launch` has written it: endpoint, folder, role, key, tcp, pid, uid, gid, python_path."""
    return dict(json.loads(os.pread(CONFIG, _MOST_BYTES, 0)))


def command(module: str, endpoint: str) -> list[str]:
    """What runs main() of this module, with the import path of the config and none of the user's settings.  endpoint:
    for who reads the process list."""
    path = f"json.loads(os.pread({CONFIG}, {_MOST_BYTES}, 0))['python_path']"
    code = f"import json, os, sys; sys.path[:] = {path}; from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-B", "-c", code, module, endpoint]


def loading() -> dict[str, str]:
    """Where the loader finds the libraries that this Python may need, as an environment: our own, never the job's."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    path = ":".join(filter(os.path.isabs, folders))  # what the others are depends on where one is
    return {"LD_LIBRARY_PATH": path} if path else {}


def is_there(child: int) -> bool:
    """Whether the child runs; one that has ended is reaped."""
    try:
        return os.waitpid(child, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def spawn(command: list[str], descriptors: Mapping[int, int]) -> int:
    """Start a process with these descriptors (its number: ours), none of our signals' settings and a session of its
    own; its pid.  command: from command().

    Raises OSError.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    # first away from the numbers that they shall get
    sources = {to: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _FREE) for to, source in descriptors.items()}
    actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, source, to) for to, source in sources.items()]
    how: dict[str, Any] = {"file_actions": actions, "setsigmask": [], "setsigdef": range(1, 32)}
    try:
        return os.posix_spawn(command[0], command, loading(), setsid=True, **how)
    except NotImplementedError:  # a Python built for glibc before 2.26, as conda's and uv's are
        return os.posix_spawn(command[0], _leaving_our_session(command), loading(), **how)
    finally:
        for each in (null, *sources.values()):
            os.close(each)


def remove(folder: str) -> None:
    """Remove the folder of the server's socket.  Imports nothing: its user perhaps cannot read this Python."""
    for remove, path in ((os.unlink, f"{folder}/{SOCKET}"), (os.rmdir, folder)):
        with contextlib.suppress(OSError):  # a folder with something else in it stays
            remove(path)


def _leaving_our_session(command: list[str]) -> list[str]:
    """What command() gives, for a process that makes a session of its own before anything else."""
    *options, code, module, endpoint = command
    return [*options, f"import os; os.setsid(); {code}", module, endpoint]
