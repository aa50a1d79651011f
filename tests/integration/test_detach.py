"""After detach the process is as it was found, but for the few things that docs/internals/what-stays.md lists."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from until import until

from probe import keys
from probe.host import agent_memory
from probe.host.facts import Facts
from target import Probe, Start, Target, descendants

# What one attach leaves, once: imported modules of the standard library, inert globals, a fork callback; torch keeps
# the last kernel of each collective.
STAYS = {"modules", "of_an_agent", "globals", "os", "maps", "rss_pages", "step"}


def state(file: Path) -> dict[str, Any]:
    """What the target sees of itself, taken after now."""
    ask = file.with_suffix(".ask")
    ask.touch()
    until(lambda: not ask.exists(), why=lambda: "it does not step")
    return dict(json.loads(file.read_text()))


def state_without_agent(file: Path, before: dict[str, Any]) -> dict[str, Any]:
    """Once the agent's thread has ended, so that there are as many as before: it says itself that it goes, as the last
    thing."""
    threads = Path(f"/proc/{before['pid']}/task")  # to look from here costs the target nothing
    until(lambda: len(os.listdir(threads)) == before["threads"], why=lambda: state(file))
    return until(lambda: found if (found := state(file))["threads"] == before["threads"] else None)


def agents(target: Target) -> list[Facts]:
    return [facts for pid in descendants(target.pid) if (facts := agent_memory.facts(pid)) is not None]


def all_taps_are_in(target: Target) -> bool:
    """The kernels on c10d come at a boundary between two steps: an agent that leaves at once may not have had them."""
    return [facts.taps["collectives"] for facts in agents(target)] == ["on", "on"]


def published(target: Target) -> dict[str, Any] | None:
    """Rank 0, once it has told the others where it is."""
    return next((facts for facts in agents(target) if facts.rank == 0 and facts.peers == "on"), None)


def compared(state: dict[str, Any], stays: set[str]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in stays}


@pytest.fixture(params=[pytest.param(0, marks=pytest.mark.long), 2], ids=["one process", "two ranks"])
def target(request: pytest.FixtureRequest, short_folder: Path, start: Start, tmp_path: Path) -> Target:
    gloo = ["--gloo"] if request.param else []
    return start("witness.py", str(tmp_path / "state"), *gloo, ranks=request.param, env={"TMPDIR": str(short_folder)})


def test_nothing_is_left_of_an_agent_that_has_listened_and_told_the_others_where(
    short_folder: Path, start: Start, tmp_path: Path, probe: Probe
) -> None:
    file, key = tmp_path / "state", tmp_path / "job.key"
    target = start("witness.py", str(file), "--gloo", ranks=2, env={"TMPDIR": str(short_folder)})
    keys.create(str(key))
    attach = ("attach", "--listen", "127.0.0.1", "--key", key, target.pid)
    bare = state(file)
    probe("attach", target.pid)
    until(lambda: all_taps_are_in(target))
    probe(target.pid, "detach")
    before = state_without_agent(file, bare)  # what any attach leaves is there
    for _ in range(4):
        probe(*attach)
        ranks = agents(target)
        first = until(lambda: published(target))
        place = first.tcp.replace("tcp", "job")
        assert probe(place, "query", "--key", key, "SELECT 1", status=None).returncode == 0
        probe(place, "detach", "--key", key)
        while any(agent_memory.facts(facts.pid) for facts in ranks):
            probe(target.pid, "detach", status=None)  # the other one, if it had not left its record yet
    after = state_without_agent(file, bare)
    varies = {"maps", "rss_pages", "step", "modules"}
    assert compared(after, varies) == compared(before, varies)
    assert {name.split(".")[0] for name in set(after["modules"]) - set(before["modules"])} <= set(
        sys.stdlib_module_names
    )
    assert after["maps"] - before["maps"] < 30


def test_detach_leaves_no_garbage_cycles(start: Start, tmp_path: Path, probe: Probe) -> None:
    """In a large job it comes once in hours, and walks through everything then."""
    file, key = tmp_path / "state", tmp_path / "job.key"
    target = start("witness.py", str(file), "--gloo", "--uncollected", ranks=2)
    keys.create(str(key))
    left, bare = [], state(file)
    for _ in range(6):  # one object a round is seen
        probe("attach", "--listen", "127.0.0.1", "--key", key, target.pid)
        probe(target.pid, "query", "SELECT COUNT(*) FROM python.torch_trace")
        probe(target.pid, "eval", "print(model)")
        assert state(file)["of_an_agent"] > 60
        probe(target.pid, "detach")
        left.append(state_without_agent(file, bare)["of_an_agent"])
    # Torch keeps the last kernel of each operation.  A call under way at the end may meet a module in our absence.
    assert left[0] < 40 and left[-1] <= left[0] + 4


def test_nothing_is_left_after_detach_and_twenty_rounds_leave_no_more_than_one(
    target: Target, probe: Probe, tmp_path: Path
) -> None:
    file = tmp_path / "state"
    before = state(file)
    probe("attach", target.pid)
    inside = state(file)
    assert compared(inside, STAYS) != compared(before, STAYS)
    probe(target.pid, "query", "SELECT COUNT(*) FROM python.torch_trace")
    probe(target.pid, "eval", "print(model)")
    probe(target.pid, "detach")
    once = state_without_agent(file, before)
    assert compared(once, STAYS) == compared(before, STAYS)
    new = {name.split(".")[0] for name in set(once["modules"]) - set(before["modules"])}
    assert new <= set(sys.stdlib_module_names)
    for round in range(19):
        probe("attach", target.pid)
        if round % 4 == 0:  # taken out while the taps on modules, or all taps, are closed
            probe(target.pid, "set", f"sample={(2, 100)[round % 8 == 0]}")
        probe(target.pid, "detach")
    often = state_without_agent(file, before)
    assert compared(often, {"maps", "rss_pages", "step"}) == compared(once, {"maps", "rss_pages", "step"})
    assert often["maps"] - once["maps"] < 30
    # What an agent leaves to the collector and to malloc's arenas levels off; 1 MiB an attach would be a leak.
    assert often["rss_pages"] - once["rss_pages"] < 19 * 256


TAKES_AWAY = """
import sys
for name in ("_thread", "threading", "json", "struct", "select", "weakref", "traceback", "ctypes", "socket", "ast"):
    sys.modules.pop(name, None)
"""


def test_an_agent_leaves_whatever_a_snippet_has_taken_out_of_sys_modules(target: Target, probe: Probe) -> None:
    probe("attach", target.pid)
    probe(target.pid, "eval", TAKES_AWAY)
    assert "rank" in probe(target.pid, "query", "SELECT rank, MAX(step) FROM python.torch_trace GROUP BY rank").stdout
    assert "2" in probe(target.pid, "eval", "print(1 + 1)").stdout
    probe(target.pid, "detach")
    assert not agents(target)
