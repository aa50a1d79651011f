"""Imports a module once and forks processes that have it, on behalf of tests/forked.py, which see.

usage: fork_server.py MODULE     Its standard input is a socket; it ends with the socket's other end.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import mmap
import os
import select
import signal
import socket
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from types import ModuleType

CLONE_NEWNET = 0x40000000
PR_SET_MM, PR_SET_MM_MAP = 35, 14
# struct prctl_mm_map before the arguments: fields of /proc/self/stat, of which the 0th is the process's state
START_CODE, END_CODE, START_STACK, START_DATA, END_DATA, START_BRK = 23, 24, 25, 42, 43, 44


def serve(connection):
    """Forks a child for each request, and returns the script that this child is to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal of the tests ends them, and they end this
    children = {}  # pidfd -> pid
    while True:
        for ready in select.select([connection.fileno(), *children], [], [])[0]:
            if ready in children:
                pid = children.pop(ready)
                os.close(ready)
                tell(connection, ended=pid, status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                continue
            message, streams, *_ = socket.recv_fds(connection, 1 << 18, 3)
            if not message:
                os._exit(0)
            if (pid := os.fork()) == 0:
                connection.detach()
                return become(**json.loads(message), streams=streams)
            for each in streams:
                os.close(each)
            children[os.pidfd_open(pid)] = pid
            tell(connection, started=pid)


def tell(connection, **what):
    with contextlib.suppress(BrokenPipeError):
        connection.send(json.dumps(what).encode())


def become(namespace, command, launcher, env, cwd, session, streams):
    """This process gets what it would have if it had been started.  With a launcher, it returns in each rank."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if namespace:
        enter(namespace)
    if session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(cwd)
    if launcher:
        env = fork_ranks(command, launcher, env)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    show_in_proc(command, env)
    sys.argv[:], sys.orig_argv[:] = command[1:], command
    sys.path[0] = os.path.dirname(command[1])
    return command[1]


def enter(namespace):
    """The network namespace of this name becomes that of this process."""
    with open(f"/run/netns/{namespace}", "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            sys.exit(f"cannot enter {namespace}: {os.strerror(ctypes.get_errno())}")


def fork_ranks(command, launcher, env):
    """Returns in each rank, with its environment; the process itself goes on as the launcher."""
    import launcher as module

    for each in module.environments(int(launcher[2])):
        if os.fork() == 0:
            return env | each
    return os.execve(launcher[0], launcher, env | {module.STARTED: ""})


def show_in_proc(command, env):
    """As the command line and the initial environment of this process."""
    lines = [*command, *(f"{name}={value}" for name, value in env.items())]
    words = [os.fsencode(line) + b"\0" for line in lines]
    arguments, text = sum(map(len, words[: len(command)])), b"".join(words)
    memory = mmap.mmap(-1, len(text), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(text)
    show_in_proc.memory = memory  # as long as the process lives
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with open("/proc/self/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    numbers = [int(fields[each]) for each in (START_CODE, END_CODE, START_DATA, END_DATA, START_BRK)]
    numbers += [libc.sbrk(0), int(fields[START_STACK])]
    numbers += [start, start + arguments, start + arguments, start + len(text), 0, (1 << 32) - 1 << 32]
    table = (ctypes.c_uint64 * len(numbers))(*numbers)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, table, ctypes.c_ulong(ctypes.sizeof(table)), ctypes.c_ulong(0)):
        sys.exit(f"cannot show its command line: {os.strerror(ctypes.get_errno())}")


def main_module(script):
    """An empty one, as the interpreter makes it for a script."""
    module = ModuleType("__main__")
    module.__dict__.update(
        __file__=script, __cached__=None, __builtins__=sys.modules["builtins"], __annotations__={},
        __loader__=SourceFileLoader("__main__", script),
    )  # fmt: skip
    sys.modules["__main__"] = module
    with open(script, "rb") as file:
        return compile(file.read(), script, "exec", dont_inherit=True), module.__dict__


if __name__ == "__main__":
    importlib.import_module(sys.argv[1])
    exec(*main_module(serve(socket.socket(fileno=0))))
