"""`probe run -- COMMAND …`."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Thread

import click

from probe.errors import ProbeError, UsageError

from ...attaching import Wanted, attach_as_they_come, checked_name, name_option
from ...recording import Recorded, keep_options, record_option, telling

SI_KERNEL = 0x80  # asm-generic/siginfo.h: the terminal sent it, to the command's process group as well as to us
PASSED_ON = {
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
}  # fmt: skip
_ENDS_S = 2.0  # after the command, in which the thread that attaches says if it has attached to nothing


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@name_option
@record_option
@keep_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def command(
    words: Sequence[str], name: str | None, recorded: str | None, keep: float | None, keep_days: float | None
) -> int:
    """Start a command and attach to its ranks as they appear.

    The command's environment is left unchanged. Signals are passed on to it, and its exit status is passed back. With
    --record, that is once the last rows are in the files.

    \b
    Example:
      probe run -- torchrun --nproc-per-node 8 train.py
      probe run --record runs --name exp7 -- python train.py
    """
    if not words:
        raise UsageError("No command given.", "For example: probe run -- torchrun --nproc-per-node 2 train.py")
    if words[0].startswith("-"):
        raise UsageError(f"No such option {words[0]!r}.", "Run: probe run --help")
    wanted = Wanted(name=checked_name(name))
    # Blocked here and taken one by one below: none is lost, and none interrupts an attach.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    try:
        try:  # in our process group, and with the signal mask that we were started with
            child = subprocess.Popen(words, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before))
        except OSError as error:
            raise UsageError(f"Cannot start {words[0]}: {error.strerror}.") from error
        into = Recorded(recorded, keep, keep_days) if recorded else None
        status = watch(child, wanted, into)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if into is not None:
        into.wait()
    return status


def watch(child: subprocess.Popen[bytes], wanted: Wanted, recorded: Recorded | None) -> int:
    """Pass signals on until the child ends, while a thread attaches to its ranks, and has them recorded.

    Returns the child's exit status as a shell reports it.
    """
    attaching = Thread(target=attach_to_ranks, args=(child.pid, wanted, recorded), daemon=True)
    attaching.start()
    while child.poll() is None:
        caught = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, 1.0)
        if caught and caught.si_signo != signal.SIGCHLD and caught.si_code != SI_KERNEL:
            child.send_signal(caught.si_signo)
    attaching.join(_ENDS_S)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def attach_to_ranks(pid: int, wanted: Wanted, recorded: Recorded | None) -> None:
    """Until the process ends; attaching and failing to are reported on stderr and do not concern the command."""
    with suppress(ProbeError):
        attach_as_they_come([pid], replace(wanted, tell=telling([pid], recorded)), needs_torch=True)
