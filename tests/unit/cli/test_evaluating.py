"""What is shown of an eval while it runs."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from until import until

from probe.cli import evaluating
from probe.cli.output import rank_output


def test_a_line_of_one_rank_is_shown_while_the_snippet_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module in (evaluating, rank_output):
        monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    out, masks = list[str](), list[set[signal.Signals]]()

    def shown() -> bool:
        out.append(capfd.readouterr().out)
        return "epoch 1\n" in "".join(out)

    def evaluate(*_: Any, on_output: Any, **__: Any) -> list[Any]:
        on_output([0], "stdout", "epoch 1\n")
        until(shown, 10, why=lambda: "nothing is shown")
        return []

    write = rank_output.RankOutput.look
    monkeypatch.setattr(rank_output.RankOutput, "look", lambda self: masks.append(blocked()) or write(self))
    agents = [SimpleNamespace(rank=rank) for rank in (0, 1)]
    connection: Any = SimpleNamespace(agents=agents, eval=evaluate)
    evaluating.evaluate(connection, "epoch()")
    assert "".join(out) == "rank 0:\nepoch 1\n"
    # In the main thread a signal would be handled even while an eval has it deferred.
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= masks[0]
    assert not any(each.name == "probe-output" for each in threading.enumerate())


def blocked() -> set[signal.Signals]:
    return {*map(signal.Signals, signal.pthread_sigmask(signal.SIG_BLOCK, ()))}
