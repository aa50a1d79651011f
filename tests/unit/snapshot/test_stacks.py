"""Stacks of ranks are folded in the reader."""

from __future__ import annotations

from probe.snapshot.stacks import Frame, Thread, folded, threads_of, told
from probe.text import short


def thread(name: str, *functions: str, is_main: bool = False) -> Thread:
    return Thread(1, 1, name, is_main, tuple(Frame("a.py", 1, function) for function in functions))


def test_ranks_with_equal_stacks_are_merged_main_threads_first() -> None:
    same, other, worker = thread("Main", "x", is_main=True), thread("Main", "y", is_main=True), thread("w", "z")
    found = folded({0: [same, worker], 1: [other], 2: [same, worker]})
    assert [(one.thread.frames[0].function, one.ranks) for one in found] == [("x", (0, 2)), ("y", (1,)), ("z", (0, 2))]


def test_a_path_is_shortened_to_its_meaningful_part() -> None:
    assert short("/v/lib/python3.11/site-packages/torch/nn/modules/module.py") == "torch/nn/modules/module.py"
    assert short("/usr/lib/python3.11/threading.py") == "threading.py"
    assert short("/usr/lib/python3.11/multiprocessing/queues.py") == "multiprocessing/queues.py"
    assert short("/home/me/train.py") == "train.py"


def test_a_stack_that_has_travelled_is_the_same() -> None:
    frames = (Frame("a.py", 3, "inner"), Frame("b.py", 5, "outer"))
    gone = Thread(7, None, "loader", False, frames, cut=2, is_training=True, holds_gil=False)
    assert threads_of({"threads": [told(gone)]}) == [gone]
