"""The stand-ins of sys.stdout and sys.stderr against threads that are in the midst of a print()."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from probe.agent.evals.output import Output, capture, release

PRINTING = """
import sys, threading, time
from probe.agent.evals.output import Output, capture, release

class Slow:
    def write(self, text):
        time.sleep(0.001)  # in there the snippet ends
    def flush(self):
        pass

own = sys.stdout = Slow()

def prints():
    while True:
        print("a", "b", "c", flush=True)

threading.Thread(target=prints, daemon=True).start()
for _ in range(200):
    capture(Output(lambda kind, fields: None))
    time.sleep(0.002)
    release()
    spoilt = [bytearray(64 + 8 * each) for each in range(400)]  # where something was that has been freed
assert sys.stdout is own
"""


def test_a_thread_that_prints_while_a_snippet_ends_does_no_harm() -> None:
    """print() borrows sys.stdout from the first of what it writes to the last."""
    done = subprocess.run([sys.executable, "-c", PRINTING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_has_one_stand_in_whatever_the_number_of_snippets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(original: Any) -> Any:
        monkeypatch.setattr(sys, name, original)
        capture(Output(lambda kind, fields: None))
        seen = getattr(sys, name)
        release()
        assert getattr(sys, name) is original is not seen
        return seen

    first, second = [], []
    one, other = type("One", (), {})(), type("Other", (), {})()
    for _ in range(100):
        first.append(stand_in(one))
        second.append(stand_in(other))
    assert len(set(map(id, first))) == len(set(map(id, second))) == 1
    for _ in range(100):
        stand_in(type("Another", (), {})())
    assert len(vars(sys)["_probe_streams"]) <= 8
