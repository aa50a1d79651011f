"""Which operations between ranks are a part of a call into torch that has to come to its end."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

import pytest
import torch

from probe.agent.inspect import call_around as looked_at
from probe.agent.inspect.call_around import call_around

TORCH = os.path.dirname(torch.__file__)
SNIPPET = "<eval>"


def called_through(*files: str) -> FrameType:
    """The frame of a function in the last of these files, which those before it, from the outermost on, have called."""
    innermost: list[FrameType] = []
    call: Any = lambda: innermost.append(sys._getframe(1))  # noqa: E731
    for file in reversed(files):
        package = looked_at.__package__ if file == "kernel" else "torch"
        names: dict[str, Any] = {"call": call, "__package__": package}
        exec(compile("def outer():\n    call()\n", os.path.join(TORCH, file) if ".py" in file else file, "exec"), names)
        call = names["outer"]
    call()
    return innermost[0]


@pytest.mark.parametrize(
    "files",
    [
        (SNIPPET, "autograd/graph.py"),
        (SNIPPET, "nn/modules/module.py", "job", "distributed/distributed_c10d.py"),
        (SNIPPET, "job", "optim/optimizer.py", "kernel"),
        ("job", SNIPPET, "distributed/checkpoint/state_dict_saver.py", "distributed/c10d_logger.py"),
    ],
)
def test_what_torchs_own_code_does_is_a_part_of_a_call(files: tuple[str, ...]) -> None:
    frame = call_around(called_through(*files), SNIPPET)
    assert frame is not None and frame.f_code.co_filename == SNIPPET


@pytest.mark.parametrize(
    "files",
    [
        (SNIPPET, "distributed/c10d_logger.py", "distributed/distributed_c10d.py", "kernel"),
        (SNIPPET, "job", "distributed/distributed_c10d.py"),
        ("autograd/graph.py", SNIPPET, "distributed/_functional_collectives.py"),
        (SNIPPET, "kernel"),
        ("job", "nn/modules/module.py"),  # no snippet
    ],
)
def test_what_a_snippet_or_the_job_itself_asks_for_is_not(files: tuple[str, ...]) -> None:
    assert call_around(called_through(*files), SNIPPET) is None


def test_a_thread_that_runs_no_snippet_is_in_no_call() -> None:
    assert call_around(None, SNIPPET) is None
