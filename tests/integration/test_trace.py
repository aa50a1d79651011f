"""Traces of functions in real jobs: their times are those that the job measured, and nothing stays but rows."""

from __future__ import annotations

import csv
import io
import re
import signal
import socket
import statistics
import subprocess
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from until import until

import probe as library
from target import PROBE, Probe, Start, Target, links

REQUESTS = 60
PARALLEL = 3


class Job:
    def __init__(self, target: Target, probe: Probe) -> None:
        self.pid, self._probe = target.pid, probe
        self.http, self.asyncio = map(int, re.findall(r"ready (\d+) (\d+)", target.output)[0])
        probe("attach", target.pid)

    def rows(self, sql: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self._probe(self.pid, "query", "--format", "csv", sql).stdout)))

    def traced(self) -> list[str]:
        """As the job itself sees it: the functions whose code has a constant of ours."""
        code = (
            "print([name for name, each in {**globals(), **vars(Handler), **vars(Worker)}.items() if 'Hook' in "
            "[type(one).__name__ for one in getattr(getattr(each, '__code__', None), 'co_consts', ())]])"
        )
        return re.findall(r"'(\w+)'", self._probe(self.pid, "eval", "--now", code).stdout)

    def tracing(self, *words: str) -> subprocess.Popen[str]:
        command = [str(PROBE), str(self.pid), "trace", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe) -> Job:
    return Job(start_once("requested.py"), probe)


Answer = tuple[float, float, float, float]  # how long the handler took and the request had waited: at least, at most


def http_get(job: Job) -> list[Answer]:
    found = []
    for _ in range(REQUESTS // PARALLEL):
        with urllib.request.urlopen(f"http://127.0.0.1:{job.http}/", timeout=20) as response:
            found.append(tuple(map(float, response.read().split())))
    return found  # type: ignore[return-value]


def asyncio_ask(job: Job) -> list[Answer]:
    found = []
    with socket.create_connection(("127.0.0.1", job.asyncio), 20) as connection, connection.makefile("rwb") as stream:
        for _ in range(REQUESTS // PARALLEL):
            stream.write(b"request\n")
            stream.flush()
            found.append(tuple(map(float, stream.readline().split())))
    return found  # type: ignore[return-value]


@pytest.mark.parametrize(
    "function, since, ask",
    [("requested.py:serve", "arrived", http_get), ("__main__:answer", "arrived", asyncio_ask)],
    ids=["http.server", "asyncio"],
)
def test_percentiles_of_service_and_waiting_are_those_of_the_load_generator(
    job: Job, function: str, since: str, ask: Callable[[Job], list[Answer]]
) -> None:
    tracing = job.tracing(function, "--since", since, "--seconds", "60", "--format", "csv")
    until(lambda: bool(job.traced()))
    with ThreadPoolExecutor(PARALLEL) as pool:
        answers = [each for found in pool.map(ask, [job] * PARALLEL) for each in found]
    with library.connect(str(job.pid)) as connection:
        connection.stop_traces()
    out, err = tracing.communicate(timeout=30)
    assert tracing.returncode == 0, err
    (row,) = csv.DictReader(io.StringIO(out))
    assert int(row["calls"]) == len(answers) == REQUESTS and row["failed"] == "0"
    took, around, waited, inside = ([1e3 * each[place] for each in answers] for place in range(4))
    for least, most, name, part in (
        (took, around, "p50_ms", 50), (took, around, "p90_ms", 90), (waited, inside, "queued_p50_ms", 50)
    ):  # fmt: skip
        shown, least_ms, most_ms = float(row[name]), percentile(least, part), percentile(most, part)
        assert least_ms - 0.1 <= shown <= most_ms + 0.1, name
    assert not job.traced()


def percentile(values: list[float], part: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[part - 1]


def test_a_trace_that_stays_has_rows_of_what_failed_and_how_large_it_was(job: Job, probe: Probe) -> None:
    kept = probe(job.pid, "trace", "__main__:Worker.work", "--seconds", "0.3", "--keep", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(kept.stdout))
    assert float(row["calls_per_s"]) == pytest.approx(int(row["calls"]) / 0.3) and int(row["calls"]) <= 0.3 / 0.005
    assert "still traced" in kept.stderr and job.traced() == ["work"]
    until(lambda: len(job.rows("FROM python.call_trace WHERE function = '__main__:Worker.work'")) > 30)
    assert "[already-traced]" in probe(job.pid, "trace", "Worker.work", status=7).stderr
    assert "__main__:Worker.work" in probe(job.pid, "trace").stdout
    assert "__main__:Worker.work" in probe(job.pid, "trace", "--stop").stdout and not job.traced()
    assert "__main__" not in probe(job.pid, "trace").stdout
    found = job.rows("SELECT size, BOOL_OR(failed) AS failed, MIN(queued) AS queued FROM python.call_trace "
                     "WHERE function = '__main__:Worker.work' GROUP BY 1 ORDER BY 1")  # fmt: skip
    assert [(row["size"], row["failed"], row["queued"]) for row in found] == [
        ("0", "true", ""), ("1", "false", ""), ("2", "false", ""),
    ]  # fmt: skip


def test_what_is_called_too_often_or_not_there_is_refused(job: Job, probe: Probe) -> None:
    told = probe(job.pid, "trace", "__main__:often", status=7).stderr
    assert re.search(r"\[trace-ended\] Rank 0: __main__:often .* is called [\d,]{6,} times a second", told)
    assert not job.traced() and told.count("\n") == 1
    told = probe(job.pid, "trace", "Wroker.work", status=7).stderr
    assert "has no function Wroker.work. The job has __main__:Worker.work." in told


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_a_command_that_ends_takes_its_trace_off(job: Job, number: signal.Signals) -> None:
    tracing = job.tracing("__main__:run_worker", "--seconds", "60", "--keep")
    until(lambda: job.traced() == ["run_worker"])
    tracing.send_signal(number)
    tracing.communicate(timeout=30)
    assert tracing.returncode == (130 if number == signal.SIGINT else -number)
    until(lambda: not job.traced())


def test_detach_gives_every_function_its_code_back(start: Start, probe: Probe) -> None:
    job = Job(start("requested.py"), probe)
    for function in ("Worker.work", "answer"):
        probe(job.pid, "trace", f"__main__:{function}", "--seconds", "0.3", "--keep")
    assert sorted(job.traced()) == ["answer", "work"]
    probe(job.pid, "detach")
    probe("attach", job.pid)
    assert not job.traced() and job.rows("SELECT COUNT(*) AS n FROM python.call_trace") == [{"n": "0"}]
    probe(job.pid, "detach")
    assert not [link for link in links(job.pid) if "probe" in link]
