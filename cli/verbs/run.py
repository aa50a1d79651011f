"""`probe run -- COMMAND …`."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Sequence

import click

from probe.errors import ProbeError, UsageError

from ..attaching import is_launcher, line, who
from ..session import say

LOOK_S = 0.2  # how often new ranks are looked for
SI_KERNEL = 0x80  # asm-generic/siginfo.h: the terminal sent it, to the command's process group as well as to us
PASSED_ON = {
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
}  # fmt: skip


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def command(words: Sequence[str]) -> int:
    """Start a command and attach to each of its ranks as it appears.

    Nothing is set or installed in the command's environment. Signals are passed on to it, and its exit status
    is passed back.

    \b
    Example:
      probe run -- torchrun --nproc-per-node 8 train.py
    """
    if not words:
        raise UsageError("Run what?", "For example: probe run -- torchrun --nproc-per-node 2 train.py")
    # Blocked here and taken one by one below: none is lost, and none interrupts an attach.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    try:
        return watch(start(words, before))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(words: Sequence[str], mask: set[int]) -> subprocess.Popen[bytes]:
    """The command, in our process group and with the signal mask we were started with.  Raises UsageError."""
    try:
        return subprocess.Popen(words, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask))
    except OSError as error:
        raise UsageError(f"Cannot start {words[0]}: {error.strerror}.") from error


def watch(child: subprocess.Popen[bytes]) -> int:
    """Pass signals on until the child has ended, while a thread attaches; its exit status as a shell gives it."""
    ended = threading.Event()
    threading.Thread(target=attach_as_they_come, args=(child.pid, ended), daemon=True).start()
    while child.poll() is None:
        caught = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, 1.0)
        if caught and caught.si_signo != signal.SIGCHLD and caught.si_code != SI_KERNEL:
            child.send_signal(caught.si_signo)
    ended.set()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def attach_as_they_come(parent: int, ended: threading.Event) -> None:
    """Attach once to each rank below `parent` that has loaded torch, telling each on stderr."""
    from probe.attach import attach
    from probe.host import processes

    tried: set[tuple[int, object]] = set()
    while not ended.wait(LOOK_S):
        for rank in processes.ranks_below(parent):
            process = rank.pid, processes.program(rank.pid)
            if not rank.has_torch or is_launcher(rank) or process in tried:
                continue
            tried.add(process)
            try:
                say(line(attach(rank.pid)))
            except ProbeError as error:
                say(f"probe: [{error.code}] {who(rank.rank, rank.pid)}: {error}")
