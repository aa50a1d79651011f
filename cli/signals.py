"""Signals that wait for the end of an import.

Used by every part of the command that handles a signal.  An exception from a handler while a library's C code is being
initialized may be swallowed there, or abort the process, as in `import duckdb`.  Invariant: no handler of the command
runs during an import; its signal comes again until the import is over.
"""

from __future__ import annotations

import _thread
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

_IMPORT = "<frozen importlib._bootstrap>"
_AGAIN_S = 0.02

Handler = Callable[[int, "FrameType | None"], None]


def after_imports(call: Callable[[], object]) -> Handler:
    """A handler that calls `call`, once the main thread is not importing anything."""

    def handle(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            _thread.start_new_thread(_send_again, (number, _thread.get_ident()))
        else:
            call()

    return handle


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            return True
        frame = frame.f_back
    return False


def _send_again(number: int, thread: int) -> None:
    time.sleep(_AGAIN_S)
    signal.pthread_kill(thread, number)


def _interrupt() -> None:
    raise KeyboardInterrupt


def let_ctrl_c_wait() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt only after an import, unless the command was started to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, after_imports(_interrupt))


@contextmanager
def on_signals(numbers: Iterable[signal.Signals], call: Callable[[], object]) -> Iterator[None]:
    """Each of these signals calls `call`, but not if nohup or a shell ignores it; then all is as before."""
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, after_imports(call)) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
