"""Stacks are taken in the agent and folded in the reader."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from probe.agent.inspect.frames import named, stacks
from probe.snapshot.stacks import Frame, Thread, folded, short, threads_of


def deeper(depth: int, then: threading.Event, ready: threading.Event) -> None:
    if depth:
        deeper(depth - 1, then, ready)
    else:
        ready.set()
        then.wait(30)


def test_every_other_thread_is_reported_innermost_frame_first() -> None:
    then, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=deeper, args=(300, then, ready), name="deep")
    thread.start()
    ready.wait()
    try:
        reported = {each["name"]: each for each in stacks()}
    finally:
        then.set()
        thread.join()
    assert threading.current_thread().name not in reported  # the calling thread is left out
    deep = reported["deep"]
    assert (deep["native_id"], deep["is_main"]) == (thread.native_id, False)
    names = [function.rpartition(".")[2] for _, _, function in deep["frames"]]
    assert names[:2] == ["wait", "wait"] and names[-1] == "deeper" and len(names) == 200 and deep["cut"] > 100
    assert deep["frames"][2][0] == __file__
    (one,) = threads_of({"threads": [deep]})
    assert one.frames[2].line > 0 and one.cut == deep["cut"]


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


ALONE = """
import sys, time, _thread, os
sys.path[:0] = {path!r}
from probe.agent.inspect.frames import named, stacks
if {gone}:
    sys.modules.pop("threading", None)
found = []
_thread.start_new_thread(lambda: found.append(stacks()), ())
while not found:
    time.sleep(0.01)
(thread,) = found[0]
print(thread["is_main"], thread["name"], thread["native_id"] == os.getpid())
"""


@pytest.mark.parametrize("gone", [True, False], ids=["without threading", "with threading"])
def test_the_one_thread_of_a_program_is_its_main_thread(gone: bool) -> None:
    """A program that has not imported threading has no main thread by that name."""
    code = ALONE.format(path=sys.path, gone=gone)
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (told.stdout, told.stderr) == ("True MainThread True\n", "")


def test_in_a_forked_child_the_main_thread_has_the_id_of_the_process() -> None:
    """threading still has that of the parent's thread."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        main = threading.main_thread()
        os.write(writer, b"right" if named(main, True)["native_id"] == threading.get_native_id() else b"wrong")
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 9) == b"right" and os.waitpid(child, 0)[1] == 0
    os.close(reader)
