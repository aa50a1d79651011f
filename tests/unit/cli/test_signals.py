"""Ctrl-C during an import is neither swallowed there nor lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from until import until

from probe.cli import signals

SWALLOWS = """
import signal
try:
    signal.raise_signal(signal.{})
except BaseException:
    swallowed = True
"""


@pytest.fixture
def swallows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module whose import swallows the exception of any handler, as C code does; its signal comes in its midst."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "swallows_signals.py"
    sys.modules.pop("swallows_signals", None)


def test_ctrl_c_during_an_import_comes_after_it(swallows: Path) -> None:
    swallows.write_text(SWALLOWS.format("SIGINT"))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signals.let_ctrl_c_wait()
        import swallows_signals  # type: ignore[import-not-found]

        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
        assert not hasattr(swallows_signals, "swallowed")
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_that_is_handled_comes_after_an_import_too(swallows: Path) -> None:
    swallows.write_text(SWALLOWS.format("SIGTERM"))
    came: list[bool] = []
    with signals.on_signals((signal.SIGTERM,), lambda: came.append("swallows_signals" in sys.modules) or sys.exit()):
        with pytest.raises(SystemExit):
            import swallows_signals

            until(lambda: came)
        assert came == [True] and not hasattr(swallows_signals, "swallowed")


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As nohup starts commands, which then go on after the logout."""
    before, came = signal.signal(signal.SIGHUP, signal.SIG_IGN), list[bool]()
    try:
        with signals.on_signals((signal.SIGHUP,), lambda: came.append(True)):
            signal.raise_signal(signal.SIGHUP)
        assert not came and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    """As the shell starts commands in the background."""
    code = "import signal; from cli.signals import let_ctrl_c_wait as wait; wait(); print(signal.getsignal(2))"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert told.stdout.strip() in ("1", "Handlers.SIG_IGN"), told.stderr
