"""A change made while no other thread runs leaves the job's switch interval as it was.

Standard library only: these tests run on every supported Python (test_every_python.py).
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from probe.agent.inspect.exclusive import exclusively


def test_two_changes_at_once_leave_the_switch_interval_as_it_was() -> None:
    before = sys.getswitchinterval()
    began, order = threading.Event(), []

    def first() -> None:
        began.set()
        time.sleep(0.02)  # no real change sleeps, but to the other thread a lost core looks the same
        order.append("first")

    def second() -> None:
        time.sleep(0.04)
        order.append("second")

    threads = [threading.Thread(target=exclusively, args=(first, lambda code: False))]
    threads[0].start()
    assert began.wait(10)
    threads.append(threading.Thread(target=exclusively, args=(second, lambda code: False)))
    threads[1].start()
    for thread in threads:
        thread.join()
    try:
        assert sys.getswitchinterval() == before and order == ["first", "second"]
    finally:
        sys.setswitchinterval(before)


def test_a_change_that_would_disturb_waits_and_then_gives_up() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        made: list[int] = []
        code = threading.Event.wait.__code__
        assert not exclusively(lambda: made.append(1), lambda each: each is code, patience_s=0.05)
        stop.set()
        thread.join()
        assert exclusively(lambda: made.append(1), lambda each: each is code) and made == [1]
    finally:
        stop.set()
        thread.join()


FIRST_IN_A_PROCESS = """
import sys, threading
from probe.agent.inspect import frame_locals
from probe.agent.inspect.exclusive import exclusively
from probe.agent.inspect.frames import frames_of_others

reads, searching = [], False

def search():
    global searching
    searching = True
    for frame in frames_of_others().values():
        frame_locals.read(frame)
    searching = False

over = threading.Event()
thread = threading.Thread(target=over.wait)
thread.start()
sys.addaudithook(lambda event, args: reads.append((event, args)) if searching and event in ("open", "import") else None)
print(exclusively(search, lambda code: False), reads)
over.set()
thread.join()
"""


def test_no_file_is_read_with_the_first_frames_for_other_threads_would_run_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_IN_A_PROCESS], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True []\n", "")
