"""Snippets with operations between ranks, cancelled at any moment or one-sided: the job goes on, equal on all ranks.

CANCELS, KILLS and ONE_SIDED say how often each is tried.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from until import until

from probe.host import agent_memory
from target import PROBE, Probe, Start, Target, descendants

CANCELS = int(os.environ.get("CANCELS", "4"))
KILLS = int(os.environ.get("KILLS", "1"))
ONE_SIDED = int(os.environ.get("ONE_SIDED", "2"))
HEAD = """
import torch.distributed as dist, time
size, weight = dist.get_world_size(), next(model.parameters()).data
t, received, all_of_it = torch.full((3,), 1.0 + rank), torch.zeros(3), [None] * size
def backward():
    optimizer.zero_grad()
    train_model(torch.ones(4, 8)).square().mean().backward()
print("begun", flush=True)
"""
# What each repeats; a weight is changed after an operation, so ranks that stop elsewhere would differ.
STYLES = {
    "equal": "dist.all_reduce(t); weight.add_(1e-6)",
    "unequal": "time.sleep(0.004 * rank); dist.all_reduce(t); weight.add_(1e-6); time.sleep(0.003 * (size - rank))",
    "async": "work = dist.all_reduce(t, async_op=True); weight.add_(1e-6); work.wait()",
    "objects": "dist.all_gather_object(all_of_it, {'rank': rank}); weight.add_(1e-6)",
    "barrier and broadcast": "dist.barrier(); dist.broadcast(t, 0); weight.add_(1e-6)",
    "training": "loss = train_model(torch.ones(4, 8)).square().mean(); loss.backward(); optimizer.step()",
    "function": "backward(); optimizer.step()",
    "ring": "sent = dist.isend(t, (rank + 1) % size); dist.recv(received, (rank - 1) % size); sent.wait()",
}
WEIGHTS = "import hashlib; [hashlib.sha256(p.detach().numpy().tobytes()).hexdigest() for p in model.parameters()]"
ONE_SIDED_BARRIER = "import torch.distributed as dist\nif rank == 0: dist.barrier()"


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.long)])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def two(start_once: Start, probe: Probe) -> Target:
    return attached(start_once, probe, 2)


@pytest.fixture(scope="module")
def job(ranks: int, two: Target, start_once: Start, probe: Probe) -> Target:
    return two if ranks == 2 else attached(start_once, probe, ranks)


def attached(start: Start, probe: Probe, ranks: int) -> Target:
    made = start("loop.py", "--sleep", "0.05", ranks=ranks)
    probe("attach", made.pid)
    return made


def started(job: Target, style: str, *options: str) -> subprocess.Popen[str]:
    """An endless eval of this style."""
    words = [str(PROBE), str(job.pid), "eval", *options, f"{HEAD}\nwhile True: {STYLES[style]}"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def begun(job: Target, style: str) -> subprocess.Popen[str]:
    """The same, once all ranks have begun it."""
    made = started(job, style)
    assert made.stdout is not None
    assert "begun" in made.stdout.readline() + made.stdout.readline()
    return made


def goes_on(job: Target, probe: Probe, at_most_s: float = 30.0) -> None:
    """The job trains, and its ranks have the same weights at the same step."""
    done = probe(job.pid, "eval", WEIGHTS, timeout=at_most_s)
    assert len(done.stdout.splitlines()) == 2 and done.stdout.startswith("ranks 0-"), done.stdout
    pid = next(pid for pid in descendants(job.pid) if agent_memory.facts(pid) is not None)

    def count() -> int:
        facts = agent_memory.facts(pid)
        assert facts is not None
        return int(facts.count)

    before = count()
    until(lambda: count() > before, why=lambda: f"it does not step:\n{job.output}")


@pytest.mark.timeout(3600)
def test_a_snippet_cancelled_amid_collectives_ends_at_the_same_one_on_all_ranks(
    ranks: int, job: Target, probe: Probe
) -> None:
    chance = random.Random(CANCELS)
    for number in range(CANCELS):
        style = [*STYLES][(number + ranks) % len(STYLES)]
        after_s = chance.random() * 0.4
        by_timeout = chance.random() < 0.3
        if by_timeout:  # on a busy machine it may be over before the ranks have begun
            command = started(job, style, "--timeout", f"{after_s + 0.3:.3f}")
        else:
            command = begun(job, style)
            time.sleep(after_s)
            command.send_signal(signal.SIGINT)
        _, talk = command.communicate(timeout=20)
        assert command.returncode == (6 if by_timeout else 130) and "did not stop" not in talk, (style, talk)
        goes_on(job, probe)


@pytest.mark.timeout(3600)
def test_a_command_that_is_killed_leaves_no_rank_in_a_collective(two: Target, probe: Probe) -> None:
    chance = random.Random(KILLS)
    for number in range(KILLS):
        command = begun(two, ("unequal", "equal", "objects")[number % 3])
        time.sleep(chance.random() * 0.05)
        command.kill()
        command.communicate()
        # Agents hear nothing of that: they wait for a word for 5 s.
        until(lambda: probe(two.pid, "eval", "1", status=None).returncode == 0, 20, every_s=0.5)
        goes_on(two, probe)


def test_a_detach_amid_collectives_ends_the_snippet_at_the_same_one(two: Target, probe: Probe) -> None:
    command = begun(two, "unequal")
    assert probe(two.pid, "detach").stdout.count("detached") == 2
    _, talk = command.communicate(timeout=20)
    assert command.returncode in (1, 6), talk
    assert "cancelled" in talk
    probe("attach", two.pid)
    goes_on(two, probe)


@pytest.mark.timeout(3600)
def test_a_one_sided_barrier_is_told_and_holds_nobody(two: Target, probe: Probe) -> None:
    for _ in range(ONE_SIDED):
        done = probe(two.pid, "eval", ONE_SIDED_BARRIER, status=1)
        assert "barrier on group '0' was not begun: rank 1 has ended the snippet without it" in done.stderr
        assert "Not hung" in probe(two.pid, "hang").stdout
        goes_on(two, probe)
        assert probe(two.pid, "detach").stdout.count("detached") == 2
        probe("attach", two.pid)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("if rank == 1: 1 / 0\ndist.barrier()", "rank 1 has ended the snippet without it (ZeroDivisionError"),
        ("dist.barrier() if rank else dist.all_reduce(t)", "in front of barrier"),
        ("if rank < 2: dist.recv(received, 1 - rank)", "in front of recv"),
    ],
)
def test_ranks_that_do_not_meet_in_an_operation_are_told_so(job: Target, probe: Probe, code: str, why: str) -> None:
    done = probe(job.pid, "eval", HEAD + code, status=1)
    assert why in done.stderr and "was not begun" in done.stderr
    assert "<probe>" not in done.stderr and "in kernel" not in done.stderr  # the traceback ends in torch
    goes_on(job, probe)


def test_a_snippet_blocked_in_c_is_named_by_all_that_it_keeps_waiting(
    two: Target, probe: Probe, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    blocks = f"import os\nif rank == 0: os.open({str(tmp_path / 'fifo')!r}, os.O_RDONLY)"
    done = probe(two.pid, "eval", "--timeout", "2", blocks, status=6)
    assert re.search(r"did not stop on rank 0 \(pid \d+\): it is still in <module> \(<eval>:2\); the job", done.stderr)
    until(lambda: "has held rank 0 for" in probe(two.pid, "hang").stdout, every_s=0.5)
    again = probe(two.pid, "eval", "--timeout", "3", "1", status=6).stderr
    assert "[held]" in again and "holds rank 0" in again
    held = probe(two.pid, "detach", status=11)
    assert "[still-held] Still attached: Rank 0: a snippet of " in held.stderr
    assert "rank 1" in held.stdout and "rank 0" not in held.stdout
    (tmp_path / "fifo").write_bytes(b"")  # it opens
    until(lambda: "Not hung" in probe(two.pid, "hang").stdout, 60, every_s=0.5)
    probe("attach", two.pid)
    goes_on(two, probe)
