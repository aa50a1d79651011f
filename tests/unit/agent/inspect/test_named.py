"""What the agent tells of a thread."""

from __future__ import annotations

import os
import threading

from probe.agent.inspect.frames import named


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
