"""Queries that the server beside a job answers: the same to the last byte as the command's own, and nothing else."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import Terminal
from until import stop, until

from probe.host import agent_memory
from probe.host.processes import read_stat
from target import FAST_IMPORT, PROBE, Probe, Start, Target

NAME = "probe-answers"
ROWS = "SELECT step, module, stage, duration, failed FROM python.torch_trace WHERE step BETWEEN 12 AND 14 ORDER BY ALL"
LONG = "SELECT COUNT(*) AS n FROM range({}) a, range(1000) b WHERE hash(a.range, b.range) % 3 = 0"
FOREVER = LONG.format(10**9)
UNINTERRUPTED = "SELECT levenshtein(repeat('a', 400000), repeat('b', 400000)) AS n"  # one call, of minutes


def answering(job: Target) -> list[int]:
    """The process that answers for the server of this job."""
    facts = agent_memory.facts(job.pid)
    assert facts is not None
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            state = read_stat(pid)
            if (
                state.name == NAME
                and state.state != "Z"
                and str(facts.server) in Path(f"/proc/{pid}/cmdline").read_text()
            ):
                found.append(pid)
    return found


def busy_s(pid: int) -> float:
    """The CPU time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until_it_rests(pid: int) -> None:
    def rests() -> bool:
        used = busy_s(pid)
        time.sleep(0.5)
        return busy_s(pid) == used

    until(rests, 60)


def is_at_work(job: Target) -> bool:
    """Whether it has worked for a while on what was just asked."""
    found = answering(job)
    before = busy_s(found[0]) if found else 0.0
    return bool(found) and bool(until(lambda: busy_s(found[0]) > before + 0.3, 60))


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe) -> Iterator[Target]:
    made = start_once("loop.py", "--sleep", "0.05")
    probe("attach", made.pid)
    probe(made.pid, "set", "sample=1")
    last = "SELECT COALESCE(MAX(step), 0) AS n FROM python.torch_trace"
    until(lambda: int(probe(made.pid, "query", "--format", "csv", last).stdout.split()[1]) > 16, every_s=0.2)
    yield made


def both(probe: Probe, job: Target, *words: str | Path) -> list[subprocess.CompletedProcess[str]]:
    return [probe(job.pid, "query", *words, *more, status=None) for more in ((), ("--no-server",))]


# ---- the same answers


@pytest.mark.parametrize("format", ["table", "csv", "json", "ndjson"])
def test_the_server_writes_what_the_command_writes(job: Target, probe: Probe, format: str) -> None:
    warm, own = both(probe, job, "--format", format, ROWS)
    assert (warm.stdout, warm.returncode) == (own.stdout, 0) and "Sequential" in warm.stdout
    assert ("rows)" in warm.stderr) == (format == "table") == ("rows)" in own.stderr)
    assert answering(job)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "txt"])
def test_a_file_is_the_same_too(job: Target, probe: Probe, tmp_path: Path, suffix: str) -> None:
    files = [tmp_path / f"{name}.{suffix}" for name in ("warm", "own")]
    warm = probe(job.pid, "query", "-o", files[0], ROWS)
    probe(job.pid, "query", "--no-server", "-o", files[1], ROWS)
    assert files[0].read_bytes() == files[1].read_bytes() and f"rows written to {files[0]}" in warm.stderr


def test_a_terminal_gets_a_table_of_its_width_with_colours(job: Target, tmp_path: Path) -> None:
    seen = []
    for more in ((), ("--no-server",)):
        terminal = Terminal(
            job.pid, "query", *more, ROWS.replace("module", "repeat(module, 40) AS module"), state=tmp_path
        )
        assert terminal.wait() == 0
        seen.append(re.sub(r"\d+ of \d+ steps", "N of M steps", terminal.raw))  # the job goes on meanwhile
        text = terminal.text
        terminal.end()
    assert seen[0] == seen[1] and "\x1b[1mstep " in seen[0]
    assert "…" in text and max(map(len, text.split("\n"))) <= 80


@pytest.mark.parametrize("more", [(), ("--no-server",)], ids=["warm", "own"])
def test_a_terminal_gets_the_first_forty_rows_or_all(job: Target, tmp_path: Path, more: tuple[str, ...]) -> None:
    for shown, last, told in (
        ([], 39, r"\(50 rows; the first 40 are shown, --all shows all\)"),
        (["--all"], 49, r"\(50 rows\)"),
    ):
        terminal = Terminal(job.pid, "query", *more, *shown, "FROM range(50)", state=tmp_path)
        assert terminal.wait() == 0
        assert re.search(rf"\n   {last}\n{told}\n", terminal.text)
        terminal.end()


def test_many_rows_arrive_whole(job: Target, probe: Probe) -> None:
    warm, own = both(probe, job, "--format", "csv", "SELECT range AS n, n * 7 AS m FROM range(1500000)")
    assert len(warm.stdout) > 1 << 24 and warm.stdout == own.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["SELEC 1"],
        ["SELECT nope FROM python.torch_trace"],
        ["SELECT * FROM python.torch_tracee"],
        ["SELECT error('x' || MAX(step)) FROM python.torch_trace WHERE step < 12"],
        ["--max-fetch", "1kB", "SELECT COUNT(module) FROM python.torch_trace"],
        ["--min-ranks", "3", "SELECT 1"],
        ["CREATE TABLE mine AS SELECT 1 AS a"],
        ["--format", "parquet", "-o", "/dev/null", "SELECT INTERVAL 1 DAY AS v"],
    ],
)
def test_an_error_is_the_same(job: Target, probe: Probe, words: list[str]) -> None:
    warm, own = both(probe, job, *words)
    # the process that answers has fetched most of the rows before
    told = [re.sub(r"(in|about) \d+(\.\d)? (s|kB|MB)", r"\1 … \3", each.stderr) for each in (warm, own)]
    assert (warm.stdout, told[0], warm.returncode) == (own.stdout, told[1], own.returncode) and own.returncode


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AS a; SELECT 2 AS b",
        "CREATE TABLE mine AS SELECT 1 AS a; SELECT * FROM mine",
        "SET threads = 1; SELECT current_setting('threads') AS n",
        "DESCRIBE python.torch_trace",
        "PIVOT (SELECT stage, step FROM python.torch_trace WHERE step = 12) ON stage",
        "SELECT content FROM read_text('{file}')",
        "FROM '{file}'",
    ],
)
def test_what_is_no_select_from_the_tables_runs_in_the_command(
    job: Target, probe: Probe, tmp_path: Path, sql: str
) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("a,b\n1,2\n")
    warm, own = both(probe, job, "--format", "json", sql.format(file=file))
    assert (warm.stdout, warm.returncode) == (own.stdout, 0)


def test_ranks_that_are_silent_are_told_as_soon(start: Start, probe: Probe) -> None:
    job = start("loop.py", "--sleep", "0.05", ranks=2)
    probe("attach", job.pid)
    sql = "SELECT rank, COUNT(*) > 0 AS some FROM python.torch_trace GROUP BY 1 ORDER BY 1"
    assert "answered 2/2 ranks" in probe(job.pid, "query", sql).stderr
    until(lambda: probe(job.pid, "query", "--format", "csv", sql).stdout == "rank,some\n0,true\n1,true\n")
    rank = int(probe(job.pid, "query", "--format", "csv", "SELECT pid FROM probe.agents WHERE rank = 1").stdout[4:])
    stop(rank)
    try:
        warm = probe(job.pid, "query", "--format", "csv", sql, timeout=8)
        assert warm.stdout == "rank,some\n0,true\n1,true\n"
        assert "answered 1/2 ranks" in warm.stderr and "silent: 1" in warm.stderr
    finally:
        os.kill(rank, signal.SIGCONT)
    until(lambda: "answered 2/2 ranks" in probe(job.pid, "query", sql).stderr)


def test_the_servers_own_endpoint_is_answered_too(job: Target, probe: Probe) -> None:
    facts = agent_memory.facts(job.pid)
    assert facts is not None and facts.server is not None
    command = [sys.executable, "-X", "importtime", str(PROBE), facts.server, "query", "--format", "csv", ROWS]
    asked = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "duckdb" not in asked.stderr
    assert asked.stdout == probe(job.pid, "query", "--no-server", "--format", "csv", ROWS).stdout


# ---- the cost


def test_the_command_imports_neither_duckdb_nor_pyarrow(job: Target, probe: Probe) -> None:
    probe(job.pid, "query", ROWS)
    command = [sys.executable, "-X", "importtime", str(PROBE), str(job.pid), "query", ROWS]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert " zmq" in imported and not any(name in imported for name in ("duckdb", "pyarrow", "numpy"))


def test_without_a_server_there_is_no_process_that_answers(start: Start, probe: Probe) -> None:
    job = start("loop.py", "--sleep", "0.05")
    probe("attach", job.pid)
    probe(job.pid, "query", "--no-server", "SELECT 1")
    assert not answering(job)
    probe(job.pid, "query", "SELECT 1")
    (found,) = answering(job)
    probe(job.pid, "detach")
    until(lambda: not Path(f"/proc/{found}").exists())


# ---- its end, and that of who asks


def test_ctrl_c_ends_the_question(job: Target, probe: Probe) -> None:
    probe(job.pid, "query", "SELECT 1")
    asking = subprocess.Popen([PROBE, str(job.pid), "query", FOREVER], stderr=subprocess.PIPE, text=True)
    assert is_at_work(job)
    before = answering(job)
    asking.send_signal(signal.SIGINT)
    assert asking.communicate(timeout=10)[1] == "probe: [interrupted] Interrupted.\n" and asking.returncode == 130
    until_it_rests(before[0])
    assert probe(job.pid, "query", "--format", "csv", "SELECT 1 AS n").stdout == "n\n1\n" and answering(job) == before


def test_a_question_of_a_command_that_was_killed_ends_too(job: Target, probe: Probe) -> None:
    probe(job.pid, "query", "SELECT 1")
    asking = subprocess.Popen([PROBE, str(job.pid), "query", FOREVER])
    assert is_at_work(job)
    before = answering(job)
    asking.kill()
    asking.wait()
    until_it_rests(before[0])
    assert answering(job) == before


@pytest.mark.parametrize("is_stopped", [False, True], ids=["busy", "stopped"])
def test_a_process_that_does_not_end_a_withdrawn_question_is_ended(job: Target, probe: Probe, is_stopped: bool) -> None:
    probe(job.pid, "query", "SELECT 1")
    asking = subprocess.Popen(
        [PROBE, str(job.pid), "query", FOREVER if is_stopped else UNINTERRUPTED], stderr=subprocess.DEVNULL
    )
    assert is_at_work(job)
    (before,) = answering(job)
    if is_stopped:
        os.kill(before, signal.SIGSTOP)  # the server may end it before it has been seen to stand still
    asking.send_signal(signal.SIGINT)
    assert asking.wait(10) == 130
    until(lambda: before not in answering(job), 15)

    def is_answered_beside_the_job() -> bool:  # or by the command, where the server is too slow for it
        assert probe(job.pid, "query", "--format", "csv", "SELECT 1 AS n").stdout == "n\n1\n"
        return len(answering(job)) == 1

    until(is_answered_beside_the_job, 15)
    assert before not in answering(job)


def test_a_process_that_is_stopped_is_ended_and_the_command_answers_itself(job: Target, probe: Probe) -> None:
    probe(job.pid, "query", "SELECT 1")
    (found,) = answering(job)
    os.kill(found, signal.SIGSTOP)  # as above
    assert probe(job.pid, "query", "--format", "csv", "SELECT 1 AS n").stdout == "n\n1\n"
    assert found not in answering(job)


@pytest.mark.long
@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT 1::TINYINT AS a, 1::TINYINT AS b FROM range(2200000)", 2_200_000),
        ("SELECT repeat('x', 7000) AS a FROM range(10000)", 10_000),
    ],
    ids=["cells", "bytes"],
)
def test_a_large_result_is_written_by_the_command(job: Target, probe: Probe, sql: str, rows: int) -> None:
    probe(job.pid, "query", "SELECT 1")
    (found,) = answering(job)
    before = busy_s(found)
    assert probe(job.pid, "query", "--format", "csv", sql, timeout=120).stdout.count("\n") == rows + 1
    assert busy_s(found) < before + 1.5


def test_a_command_whose_answer_is_lost_answers_itself(job: Target, probe: Probe) -> None:
    probe(job.pid, "query", "SELECT 1")
    sql = LONG.format(10**5)
    asking = subprocess.Popen(
        [PROBE, str(job.pid), "query", "--format", "csv", sql],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert is_at_work(job)
    for pid in answering(job):
        os.kill(pid, signal.SIGKILL)
    out, err = asking.communicate(timeout=60)
    assert out.startswith("n\n333") and (err, asking.returncode) == ("", 0)


def test_an_answer_whose_rows_are_read_outlives_the_job(start: Start, probe: Probe) -> None:
    job = start("loop.py", "--sleep", "0.05")
    probe("attach", job.pid)
    probe(job.pid, "query", "SELECT COUNT(*) FROM python.torch_trace")
    sql = f"SELECT n, (SELECT COUNT(*) FROM python.torch_trace) < 0 AS none FROM ({LONG.format(10**5)})"
    asking = subprocess.Popen(
        [PROBE, str(job.pid), "query", "--format", "csv", sql],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert is_at_work(job)
    (found,) = answering(job)
    job.process.kill()
    job.process.wait()
    out, err = asking.communicate(timeout=60)
    assert out.startswith("n,none\n333") and out.endswith(",false\n") and asking.returncode == 0, err
    until(lambda: not Path(f"/proc/{found}").exists())


def test_one_that_is_asked_while_another_waits_answers_itself(job: Target, probe: Probe) -> None:
    asking = subprocess.Popen([PROBE, str(job.pid), "query", FOREVER], stderr=subprocess.DEVNULL)
    try:
        assert probe(job.pid, "query", "--format", "csv", "SELECT 1 AS n", timeout=30).stdout == "n\n1\n"
    finally:
        asking.send_signal(signal.SIGINT)
        asking.wait(30)


@pytest.mark.long
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("count", [100_000_000, 1_500_000, 25_000], ids=["large", "many pieces", "one piece"])
def test_a_reader_that_closes_its_pipe_ends_the_answer(
    job: Target, probe: Probe, count: int, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = f"{PROBE} {job.pid} query --format csv 'SELECT range AS n FROM range({count})' | head -2"
    told = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert (told.stdout, told.stderr, told.returncode) == ("n\n0\n", "", 141)
    assert probe(job.pid, "query", "--format", "csv", "SELECT 1 AS n").stdout == "n\n1\n"


MANY = "SELECT range AS n FROM range(1500000)"


@pytest.mark.parametrize("to", ["a pipe", "a named pipe"])
def test_ctrl_c_ends_an_answer_that_nobody_reads(job: Target, tmp_path: Path, to: str) -> None:
    reader, writer = os.pipe()
    words = ["--format", "csv"]
    if to == "a named pipe":
        os.mkfifo(tmp_path / "read")
        os.close(reader)
        reader = os.open(tmp_path / "read", os.O_RDONLY | os.O_NONBLOCK)
        words += ["-o", str(tmp_path / "read")]
    command = [PROBE, str(job.pid), "query", *words, MANY]
    asking = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    try:
        until(lambda: unread(reader) >= 1 << 16)
        asking.send_signal(signal.SIGINT)
        assert asking.wait(20) == 130
        assert asking.stderr is not None and asking.stderr.read() == "probe: [interrupted] Interrupted.\n"
    finally:
        asking.kill()
        asking.communicate()
        os.close(reader)


def unread(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.long
def test_a_pager_may_be_left_open(job: Target, probe: Probe) -> None:
    command = f"{PROBE} {job.pid} query --format csv '{MANY}' | (sleep 13; tail -1)"
    asking = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(6)
    probe(job.pid, "query", "--format", "csv", "SELECT 1 AS n")  # the process that answers has ended its work
    assert asking.communicate(timeout=60) == ("1499999\n", "") and asking.returncode == 0


AS_NOBODY = f"""
{FAST_IMPORT}, os, time
os.setgid(65534)
os.setuid(65534)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may attach for another user")
def test_for_a_user_who_may_not_read_our_python_the_command_answers_itself(
    start: Start, probe: Probe, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(AS_NOBODY)
    job = start(tmp_path / "job.py", env={"TMPDIR": "/tmp"})
    probe("attach", job.pid)
    for _ in range(2):
        done = probe(job.pid, "query", "--format", "csv", "SELECT pid FROM probe.agents")
        assert (done.stdout, done.stderr) == (f"pid\n{job.pid}\n", "")
    facts = agent_memory.facts(job.pid)
    assert facts is not None
    folder = Path(str(facts.server).removeprefix("ipc://")).parent
    assert folder.is_dir()
    probe(job.pid, "detach")
    until(lambda: not folder.exists(), 30)
