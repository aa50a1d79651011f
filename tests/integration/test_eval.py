"""Snippets in real jobs: what they do to the job, and what the command says when they go wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from until import until

from target import FAST_IMPORT, PROBE, TARGETS, Probe, Start, Target, stat

ALL_REDUCE = "import torch.distributed as dist\nt = torch.ones(3)\ndist.all_reduce(t)\nprint(t.tolist())"
ENDLESS = "print('in')\nwhile True: pass"


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe) -> Target:
    made = start_once("loop.py", "--sleep", "0.05")
    probe("attach", made.pid)
    return made


@pytest.fixture(scope="module")
def ranks(start_once: Start, probe: Probe) -> Target:
    made = start_once("loop.py", "--sleep", "0.05", ranks=2)
    probe("attach", made.pid)
    return made


def steps_on(job: Target, probe: Probe) -> None:
    """The job takes a step after now."""
    sql = "SELECT MIN(step) AS step FROM (SELECT MAX(step) AS step FROM python.torch_trace GROUP BY rank)"

    def step() -> int:
        return int(json.loads(probe(job.pid, "query", "--format", "json", sql).stdout)[0]["step"])

    now = step()
    until(lambda: step() > now, why=lambda: "the job does not step")


def connections(pid: int) -> int:
    """How many sockets a process has open."""
    return sum(map(Path.is_socket, Path(f"/proc/{pid}/fd").iterdir()))


def cpu_s(pid: int) -> float:
    """What a process has had of the processors."""
    return sum(map(int, stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def test_a_snippet_that_raises_shows_its_own_traceback(job: Target, probe: Probe) -> None:
    done = probe(job.pid, "eval", "def f():\n    return 1 / 0\nf()", status=1)
    assert "return 1 / 0" in done.stderr and "ZeroDivisionError" in done.stderr
    assert "_probe_agent" not in done.stderr and "site-packages/probe" not in done.stderr
    steps_on(job, probe)


@pytest.mark.parametrize("code", ["import sys; sys.exit(3)", "raise SystemExit", "raise KeyboardInterrupt", "1 +"])
def test_sys_exit_in_a_snippet_does_not_end_the_job(job: Target, probe: Probe, code: str) -> None:
    probe(job.pid, "eval", code, status=1)
    steps_on(job, probe)


def test_a_hundred_megabytes_of_output_are_cut_and_counted(job: Target, probe: Probe) -> None:
    done = probe(job.pid, "eval", "for _ in range(1000): print('x' * 100_000)")
    assert len(done.stdout) < 8 << 20 and "dropped" in done.stderr
    steps_on(job, probe)


def test_an_endless_snippet_is_cancelled_at_its_time_out(job: Target, probe: Probe) -> None:
    begin = time.monotonic()
    done = probe(job.pid, "eval", "--timeout", "1", "while True: pass", status=6)
    assert time.monotonic() - begin < 30 and "eval-timeout" in done.stderr
    steps_on(job, probe)


def test_a_flood_of_output_is_cut_and_counted_also_where_only_the_time_out_ends_it(job: Target, probe: Probe) -> None:
    done = probe(job.pid, "eval", "--timeout", "3", "while True: print('x' * 1000)", status=6)
    assert len(done.stdout) == 4 << 20 and "eval-timeout" in done.stderr
    assert re.search(r"^rank 0: \d{6,} bytes of output were dropped$", done.stderr, re.MULTILINE)


def test_a_snippet_stuck_in_c_is_reported_and_the_job_goes_on_after_it(job: Target, probe: Probe) -> None:
    begin = time.monotonic()
    done = probe(job.pid, "eval", "--timeout", "1", "import time; time.sleep(9)", status=6)
    assert time.monotonic() - begin < 7 and "eval-timeout" in done.stderr
    assert "it is still in <module> (<eval>:1); the job waits for it" in done.stderr
    waits = probe(job.pid, "eval", "--timeout", "2", "1", status=6).stderr
    assert "waiting for a step: a snippet of" in waits and "still holds the job" in waits
    assert probe(job.pid, "eval", "1").stdout == "1\n"
    steps_on(job, probe)


def test_a_snippet_that_catches_the_cancel_is_not_said_to_be_in_native_code(job: Target, probe: Probe) -> None:
    code = "import time\nend = time.monotonic() + 7\nwhile time.monotonic() < end:\n"
    code += "    try:\n        time.sleep(0.01)\n    except BaseException:\n        pass"
    done = probe(job.pid, "eval", "--timeout", "2", code, status=6)
    assert re.search(r"it is still in <module> \(<eval>:\d\); the job waits for it", done.stderr), done.stderr
    assert "lets an exception of any type through" in done.stderr
    steps_on(job, probe)


def test_a_job_that_validates_for_seconds_is_waited_for(start: Start, probe: Probe) -> None:
    job = start("pausing.py", "8", ready="pauses")
    probe("attach", job.pid)
    paused = job.output.count("pauses") + 1
    job.wait_for("pauses", times=paused)
    done = probe(job.pid, "eval", "--timeout", "60", "step")
    assert 20 * paused < int(done.stdout) < 20 * paused + 10
    told = r"waiting for a step: the job is in validate \(pausing\.py:\d+\), [1-9] s after "
    assert re.search(told, done.stderr), done.stderr


def test_a_job_that_does_not_step_is_told_so_when_the_time_is_over(start: Start, probe: Probe, tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text(f"{FAST_IMPORT}, time\nx = 5\nprint('ready', flush=True)\nwhile True: time.sleep(0.1)\n")
    job = start(script)
    probe("attach", job.pid)
    begin = time.monotonic()
    done = probe(job.pid, "eval", "--timeout", "3", "print(x)", status=6)
    assert 3 < time.monotonic() - begin < 10 and "no-step" in done.stderr and "--now" in done.stderr
    assert "waiting for a step: the job is in <module> (idle.py:4), " in done.stderr
    assert probe(job.pid, "eval", "--now", "print(x)").stdout == "5\n"


def test_an_eval_that_waits_while_another_command_detaches_is_told_of_that(job: Target, probe: Probe) -> None:
    words = [str(PROBE), str(job.pid), "eval"]
    first = subprocess.Popen([*words, ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert first.stdout is not None and first.stdout.readline() == "in\n"
    before = connections(job.pid)
    second = subprocess.Popen([*words, "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: connections(job.pid) > before)
    probe(job.pid, "detach")
    for command in (first, second):
        _, talk = command.communicate(timeout=60)
        assert command.returncode in (1, 8) and "interrupted" not in talk, talk
    probe("attach", job.pid)
    steps_on(job, probe)


def test_a_rebound_local_variable_is_reported(job: Target, probe: Probe) -> None:
    done = probe(job.pid, "eval", "batch_size = 99")
    assert "changed main().batch_size" in done.stderr
    assert probe(job.pid, "eval", "batch_size").stdout == "99\n"
    assert "changed" not in probe(job.pid, "eval", "--no-write", "batch_size = 7").stderr
    assert probe(job.pid, "eval", "batch_size").stdout == "99\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_killing_the_command_ends_its_snippet(job: Target, probe: Probe, number: signal.Signals) -> None:
    command = subprocess.Popen(
        [str(PROBE), str(job.pid), "eval", ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # whoever runs the tests may ignore it
    )
    assert command.stdout is not None and command.stdout.readline() == "in\n"
    command.send_signal(number)
    _, talk = command.communicate(timeout=60)
    assert command.returncode == 130 and "Traceback" not in talk
    steps_on(job, probe)


def test_a_signal_of_the_job_ends_it_also_while_it_runs_a_snippet(start: Start, probe: Probe, tmp_path: Path) -> None:
    script = tmp_path / "preempted.py"
    script.write_text(
        f"{FAST_IMPORT}, runpy, signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        f"sys.path.insert(0, {str(TARGETS)!r})\nrunpy.run_path({str(TARGETS / 'loop.py')!r}, run_name='__main__')\n"
    )
    job = start(script)
    probe("attach", job.pid)
    words = [str(PROBE), str(job.pid), "eval", ENDLESS]
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert command.stdout is not None and command.stdout.readline() == "in\n"
    os.kill(job.pid, signal.SIGTERM)
    assert job.process.wait(60) == 3
    _, talk = command.communicate(timeout=60)
    assert command.returncode in (1, 8) and "Traceback" not in talk, talk


def test_two_evals_at_once_are_both_answered(job: Target, probe: Probe) -> None:
    words = [[str(PROBE), str(job.pid), "eval", f"print({n})"] for n in range(2)]
    words += [[str(PROBE), str(job.pid), "query", "--format", "csv", "SELECT 7 AS n"]] * 2
    commands = [subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for each in words]
    outputs = [command.communicate(timeout=60)[0] for command in commands]
    assert outputs == ["0\n", "1\n", "n\n7\n", "n\n7\n"]


def test_a_target_that_dies_during_a_query_is_reported(start: Start, probe: Probe) -> None:
    job = start("loop.py")
    probe("attach", job.pid)
    rows = "(SELECT COUNT(*) AS n FROM python.torch_trace) t"
    until(lambda: probe(job.pid, "query", "--format", "csv", f"SELECT n > 0 FROM {rows}").stdout.endswith("true\n"))
    sql = f"SELECT COUNT(*) FROM range(3000000000) r, {rows} WHERE r.range % 7 = n"
    commands = [
        subprocess.Popen([str(PROBE), str(job.pid), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for words in (["eval", ENDLESS], ["query", "--no-server", sql])
    ]
    assert commands[0].stdout is not None and commands[0].stdout.readline() == "in\n"
    until(lambda: cpu_s(commands[1].pid) > 2)  # to start and to fetch the rows takes less
    os.kill(job.pid, signal.SIGKILL)
    _, talk = commands[0].communicate(timeout=60)
    assert commands[0].returncode == 8 and "gone" in talk and "Traceback" not in talk, talk
    commands[1].send_signal(signal.SIGINT)
    _, talk = commands[1].communicate(timeout=60)
    assert commands[1].returncode in (8, 130) and "Traceback" not in talk, talk


def test_all_ranks_run_it_at_the_same_step_and_equal_output_is_printed_once(ranks: Target, probe: Probe) -> None:
    done = probe(ranks.pid, "eval", ALL_REDUCE)
    assert done.stdout == "ranks 0-1:\n[2.0, 2.0, 2.0]\n"
    sql = "SELECT COUNT(DISTINCT step) AS steps, COUNT(DISTINCT rank) AS ranks FROM probe.evals"
    assert json.loads(probe(ranks.pid, "query", "--format", "json", sql).stdout) == [{"steps": 1, "ranks": 2}]
    steps_on(ranks, probe)


def test_a_one_sided_collective_is_refused_and_the_job_goes_on(ranks: Target, probe: Probe) -> None:
    code = "import torch.distributed as dist\ndist.all_reduce(torch.ones(3))"
    done = probe(ranks.pid, "eval", "--rank", "0", code, status=1)
    assert "rank 1" in done.stderr
    first = next(pid for pid, rank in re.findall(r"ready (\d+) rank=(\d)", ranks.output) if rank == "0")
    done = probe(first, "eval", code, status=1)
    assert "rank 1" in done.stderr
    done = probe(ranks.pid, "eval", "--now", code, status=1)
    assert "without --now" in done.stderr
    steps_on(ranks, probe)


def test_a_rank_attached_just_now_runs_at_the_step_of_the_others(start: Start, probe: Probe) -> None:
    """It has not seen a step yet: which one the job has come to is known only with the next."""
    job = start("loop.py", "--sleep", "1", ranks=2)
    pids = dict(re.findall(r"ready (\d+) rank=(\d)", job.output))
    first = next(pid for pid, rank in pids.items() if rank == "0")
    probe("attach", first)
    steps = "SELECT COUNT(DISTINCT step) FROM python.torch_trace"
    until(lambda: int(probe(first, "query", "--format", "csv", steps).stdout.split()[-1]))
    probe("attach", job.pid)
    done = probe(job.pid, "eval", ALL_REDUCE)
    assert done.stdout == "ranks 0-1:\n[2.0, 2.0, 2.0]\n"
    steps_on(job, probe)
