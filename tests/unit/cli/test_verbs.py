"""What the verbs ask of a job and print, over a fake connection."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import probe
from probe.attach import Attached
from probe.cli.attaching import Wanted, attach_each, line
from probe.cli.entry import run
from probe.cli.options import parse_ranks
from probe.cli.questions import read
from probe.client.agent_requests import Unreached
from probe.diagnose.hang.report import Report
from probe.errors import AttachError, EvalError, Interrupted, QueryError, SilentError
from probe.evals.snippet import RankResult
from probe.host.facts import Facts
from probe.host.processes import is_launcher
from probe.protocol import UNWANTED
from probe.query.result import Cost, Coverage, Note
from probe.query.result import Result as QueryResult

FACTS = (Facts(rank=0, pid=4250000), Facts(rank=1, pid=4250001))


@dataclass
class Result:
    rank: int
    ok: bool = True
    output: str = ""
    echo: str | None = None
    error: str | None = None
    traceback: str | None = None
    step: int | None = 1203
    held_s: float = 0.4
    changed: list[str] = field(default_factory=list)
    ran: bool = True


@dataclass
class Job:
    """Takes the place of probe.connect(): remembers what it was asked."""

    agents: tuple[Facts, ...] = FACTS
    notes: list[str] = field(default_factory=list)
    skipped: tuple[str, ...] = ()
    results: list[Result] = field(default_factory=lambda: [Result(0), Result(1)])
    printed: list[tuple[list[int], str, str]] = field(default_factory=list)
    table: pa.Table = field(default_factory=lambda: pa.table({"module": ["h.0"], "seconds": [0.25]}))
    fails: Callable[[], object] | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    cancelled: int = 0
    unreached: list[Unreached] = field(default_factory=list)
    coverage: Coverage = field(default_factory=lambda: Coverage((0,), (), (), 0.1))
    query_notes: tuple[Note, ...] = ()
    reports: list[Report] = field(default_factory=list)

    def connect(self, endpoint: str, *, timeout: float = 10.0, key: str | None = None) -> Job:
        self.asked.update(endpoint=endpoint, patience=timeout)
        return self

    def restore_servers(self) -> None: ...

    def require_one_job(self) -> None: ...

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def query(
        self, sql: str, *, open_steps: bool = False, min_ranks: int = 1, max_fetch: float | None = None
    ) -> QueryResult:
        self.asked.update(sql=sql, open_steps=open_steps, min_ranks=min_ranks)
        if self.fails is not None:
            self.fails()
        return QueryResult(self.table, self.coverage, self.query_notes, Cost((), 0.0, {}, 0.0))

    def eval(self, code: str, *, on_output: Callable[[list[int], str, str], None], **asked: Any) -> list[Result]:
        self.asked.update(code=code, **asked)
        for ranks, stream, text in self.printed:
            on_output(ranks, stream, text)
        if self.fails is not None:
            self.fails()
        return self.results

    def detach(self) -> list[str]:
        return ["pass-through kernels on c10d stay: no boundary came in time"]

    def set(self, **settings: Any) -> list[dict[str, Any]]:
        return [{"rank": 0, "sample": 5, "every": 5, "budget_pct": 1.0, "backward": True, "cost_ns": None}]

    def hang(self) -> Report:
        return self.reports.pop(0) if self.reports[1:] else self.reports[0]

    def cancel(self) -> None:
        self.cancelled += 1

    def looked_at(self, *_: object, ranks: list[int] | None, **options: object) -> list[Any]:
        self.asked.update(ranks=ranks)
        raise SilentError("No rank answers.")

    profile = trace = capture = looked_at


MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(monkeypatch: pytest.MonkeyPatch) -> MakeJob:
    def make_job(**parts: Any) -> Job:
        job = Job(**parts)
        monkeypatch.setattr(probe, "connect", job.connect, raising=False)
        return job

    return make_job


Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "words",
    [
        ["4242", "query", "SELECT 1"],
        ["query", "4242", "SELECT 1"],
        ["-t", "4242", "query", "SELECT 1"],
        ["-t 4242", "query", "SELECT 1"],
        ["query", "-t", "4242", "SELECT 1"],
        ["query", "SELECT 1", "-t", "4242"],
        ["-t", "4242", "query", "4242", "SELECT 1"],
    ],
)
def test_the_endpoint_may_stand_anywhere(words: list[str], make_job: MakeJob) -> None:
    job = make_job()
    assert run(words) == (2 if words.count("4242") == 2 else 0)
    assert job.asked.get("endpoint", "4242") == "4242"


def test_query_writes_rows_to_stdout_and_notes_to_stderr(make_job: MakeJob, capfd: Captured) -> None:
    coverage = Coverage((0,), (1,), (), 0.84)
    notes = Note("silent", str(coverage), (1,)), Note("tap-off", "rank 0: forward is off", (0,))
    job = make_job(coverage=coverage, query_notes=notes)
    assert run(["4242", "query", "--open", "--timeout", "3", "--min-ranks", "1", "SELECT 1"]) == 0
    assert job.asked == {"endpoint": "4242", "patience": 3.0, "sql": "SELECT 1", "open_steps": True, "min_ranks": 1}
    out, err = capfd.readouterr()
    assert out == "module  seconds\n------  -------\nh.0        0.25\n"
    assert err == "rank 0: forward is off\n(1 row)\nanswered 1/2 ranks in 0.8 s, silent: 1\n"


@pytest.mark.parametrize(
    ("coverage", "last"),
    [
        (Coverage((0,), (), (), 0.2), "(1 row)"),
        (Coverage((0, 1, 2, 3), (), (), 0.2), "answered 4/4 ranks in 0.2 s"),
        (
            Coverage(tuple({*range(512)} - {17, 301}), (17, 301), (), 0.84),
            "answered 510/512 ranks in 0.8 s, silent: 17, 301",
        ),
        (Coverage((), (0,), (0,), 5.0), "answered 0/1 ranks in 5.0 s, silent: 0; read from memory: rank 0"),
    ],
)
def test_the_last_line_says_which_of_several_ranks_answered(
    coverage: Coverage, last: str, make_job: MakeJob, capfd: Captured
) -> None:
    make_job(coverage=coverage)
    assert run(["4242", "query", "SELECT 1"]) == 0
    assert capfd.readouterr().err.splitlines()[-1] == last


def test_many_silent_ranks_are_shortened() -> None:
    silent = (*range(0, 40, 2), *range(400, 411))
    told = str(Coverage(tuple({*range(512)} - {*silent}), silent, (), 1.0))
    assert told.endswith("silent: 0, 2, 4, 6, 8, 10, 12, 14 and 23 more")


@pytest.mark.parametrize("verb", [["profile"], ["trace", "app:predict"], ["capture"]], ids=lambda verb: verb[0])
@pytest.mark.parametrize(("words", "ranks"), [([], None), (["--rank", "0,2-3"], [0, 2, 3])])
def test_only_some_ranks_are_looked_at(
    verb: list[str], words: list[str], ranks: list[int] | None, make_job: MakeJob, capfd: Captured
) -> None:
    job = make_job()
    assert run(["-t", "4242", *verb, *words]) == SilentError.exit_status
    assert job.asked["ranks"] == ranks and "No rank answers." in capfd.readouterr().err


def test_sql_comes_from_a_file_or_stdin_too(make_job: MakeJob, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job()
    file = tmp_path / "slow.sql"
    file.write_text("SELECT 2")
    assert run(["4242", "query", "-f", str(file)]) == 0
    assert job.asked["sql"] == "SELECT 2"
    monkeypatch.setattr("sys.stdin", SimpleNamespace(read=lambda: "SELECT 3"))
    assert run(["4242", "query", "-"]) == 0
    assert job.asked["sql"] == "SELECT 3"


def test_a_question_is_asked_by_its_name_and_explained(make_job: MakeJob, capfd: Captured) -> None:
    job = make_job()
    for words in (["4242", "ask", "loader"], ["ask", "4242", "loader"], ["ask", "loader", "-t", "4242"]):
        assert run(words) == 0
        assert (job.asked["endpoint"], job.asked["sql"]) == ("4242", read("loader").sql)
    out, err = capfd.readouterr()
    assert out.count("h.0") == 3 and err.count("\nDoes the loader run dry?\n`none_ready_pct` is") == 3
    assert run(["4242", "ask", "loader", "--format", "csv"]) == 0
    assert capfd.readouterr() == ("module,seconds\nh.0,0.25\n", "")


def test_questions_are_listed_and_their_sql_is_shown_without_a_job(capfd: Captured) -> None:
    for words in (["ask"], ["4242", "ask"]):
        assert run(words) == 0
        assert "\nloader       Does the loader run dry?\n" in capfd.readouterr().out
    assert run(["ask", "loader", "--sql"]) == 0
    assert capfd.readouterr() == (f"{read('loader').sql}\n", "")
    assert run(["ask", "--sql"]) == 2 and run(["ask", "loader", "late-rank", "-t", "1"]) == 2
    assert run(["ask", "loadr"]) == 2
    assert capfd.readouterr().err.endswith("[usage] No question named loadr. Did you mean loader?\n")


@pytest.mark.parametrize("chosen", [["--format", "json"], ["--json"], ["--json", "--format", "json"]])
def test_json_goes_to_stdout_alone(chosen: list[str], make_job: MakeJob, capfd: Captured) -> None:
    make_job()
    assert run(["4242", "query", *chosen, "SELECT 1"]) == 0
    out, err = capfd.readouterr()
    assert (json.loads(out), err) == ([{"module": "h.0", "seconds": 0.25}], "")


def test_an_eval_has_a_row_per_rank_in_place_of_its_text(make_job: MakeJob, capfd: Captured) -> None:
    made = [RankResult(rank, True, "GPT\n", str(rank), None, None, 7, 0.1, ["main().lr"]) for rank in (0, 1)]
    make_job(printed=[([0, 1], "stdout", "GPT\n"), ([0], "waiting", "waits\n")], results=made)
    assert run(["4242", "eval", "--json", "print(model); rank"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == [asdict(each) for each in made]
    assert err == "waits\nchanged main().lr\nran at step 7, training held 0.1 s\n"


def test_wrong_sql_ends_with_status_5(make_job: MakeJob, capfd: Captured) -> None:
    def fail() -> None:
        raise QueryError("No table named python.torch.", "Did you mean python.torch_trace?", code="unknown-table")

    make_job(fails=fail)
    assert run(["4242", "query", "SELECT 1"]) == 5
    assert capfd.readouterr().err == (
        "probe: [unknown-table] No table named python.torch. Did you mean python.torch_trace?\n"
    )


def test_ctrl_c_cancels_and_ends_with_130(make_job: MakeJob) -> None:
    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise Interrupted("Interrupted.")

    job = make_job(fails=press)
    assert run(["4242", "query", "SELECT 1"]) == 130
    assert job.cancelled == 1


def test_ctrl_c_in_an_eval_that_cannot_be_cancelled_says_so(make_job: MakeJob, capfd: Captured) -> None:
    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise EvalError("Rank 0 is blocked in native code.", code="eval-timeout")

    make_job(fails=press)
    assert run(["4242", "eval", "wait()"]) == 130
    assert "Rank 0 is blocked" in capfd.readouterr().err


def test_equal_output_of_ranks_is_printed_once(make_job: MakeJob, capfd: Captured) -> None:
    make_job(
        printed=[([0], "stdout", "GPT\n"), ([1], "stdout", "GPT\n")], results=[Result(0, echo="7"), Result(1, echo="7")]
    )
    assert run(["4242", "eval", "print(model); 7"]) == 0
    out, err = capfd.readouterr()
    assert out == "ranks 0-1:\nGPT\n7\n"
    assert err == "ran at step 1203, training held 0.4 s\n"


def test_a_single_rank_has_no_header(make_job: MakeJob, capfd: Captured) -> None:
    make_job(agents=FACTS[:1], printed=[([0], "stdout", "GPT\n")], results=[Result(0, changed=["main().model"])])
    assert run(["4242", "eval", "print(model)"]) == 0
    out, err = capfd.readouterr()
    assert out == "GPT\n"
    assert err == "changed main().model\nran at step 1203, training held 0.4 s\n"


def test_a_snippet_that_raises_ends_with_1_and_its_own_traceback(make_job: MakeJob, capfd: Captured) -> None:
    traceback = 'Traceback (most recent call last):\n  File "<eval>", line 1, in <module>\nNameError: x\n'
    failed = [Result(rank, ok=False, error="NameError: x", traceback=traceback) for rank in (0, 1)]
    make_job(results=failed)
    assert run(["4242", "eval", "x"]) == 1
    err = capfd.readouterr().err
    assert err.count("Traceback") == 1 and err.startswith("ranks 0-1:\nTraceback")
    assert err.endswith("probe: [snippet] NameError: x (ranks 0-1)\n")


def test_the_options_of_eval_are_passed_to_the_connection(make_job: MakeJob) -> None:
    job = make_job()
    assert run(["4242", "eval", "--rank", "0,3", "--now", "--timeout", "5", "--no-write", "--frame", "fit", "-x"]) == 0
    assert job.asked == {
        "endpoint": "4242", "patience": 5.0, "code": "-x", "ranks": [0, 3], "now": True, "timeout": 5.0,
        "write": False, "filename": "<eval>", "frame": "fit",
    }  # fmt: skip


def test_detach_reports_what_stays(make_job: MakeJob, capfd: Captured) -> None:
    make_job()
    assert run(["4242", "detach"]) == 0
    out, err = capfd.readouterr()
    assert out == "detached  rank 0  pid 4250000\ndetached  rank 1  pid 4250001\n"
    assert err == "pass-through kernels on c10d stay: no boundary came in time\n"
    assert run(["4242", "detach", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == [{"rank": 0, "pid": 4250000}, {"rank": 1, "pid": 4250001}]


def test_a_rank_that_was_not_reached_is_a_failure(make_job: MakeJob, capfd: Captured) -> None:
    why = "Rank 1 (pid 4250001) is stopped (to let it go on: kill -CONT 4250001)"
    make_job(unreached=[Unreached(1, 4250001, "", why)])
    assert run(["4242", "detach"]) == 8
    out, err = capfd.readouterr()
    assert out == "detached  rank 0  pid 4250000\n"
    assert "[silent] Still attached: Rank 1 (pid 4250001) is stopped (to let it go on: kill -CONT 4250001)." in err
    assert run(["4242", "set", "sample=5"]) == 8
    assert "[silent] 1 of the ranks did not change." in capfd.readouterr().err
    assert run(["4242", "set"]) == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--fail-on", "warning"], "--fail-on warning"),
        (["--seconds", "5"], "--seconds 5"),
        (["--seconds", "5", "--fail-on", "hint"], "--seconds 5 and --fail-on hint"),
    ],
)
def test_what_is_asked_of_a_diagnosis_is_not_asked_of_a_change(
    options: list[str], named: str, make_job: MakeJob, capfd: Captured
) -> None:
    job = make_job()
    assert run(["job", "why", "--since-change", *options]) == 2 and not job.asked
    assert f"it does not go with {named}." in capfd.readouterr().err


@pytest.mark.parametrize(
    ("last", "status", "says"),
    [
        (Report("stopped", "Rank 1 is stopped.", True, (1,)), 10, "[hung] Nothing has moved for 0.001 s."),
        (Report("ended", "Ranks 0-1 have ended.", False, (0, 1)), 8, "[gone] No rank is left to watch."),
    ],
)
def test_watching_ends_when_the_job_hangs_or_ends(
    make_job: MakeJob, capfd: Captured, last: Report, status: int, says: str
) -> None:
    make_job(reports=[Report("not-hung", "Not hung.", False), last])
    assert run(["4242", "hang", "--watch", "0.001"]) == status
    out, err = capfd.readouterr()
    assert out.startswith(f"Verdict  {last.verdict}\n") and says in err


@pytest.mark.parametrize(("text", "ranks"), [("0", [0]), ("3,0", [0, 3]), ("0-2,7", [0, 1, 2, 7])])
def test_ranks_are_listed_or_spanned(text: str, ranks: list[int]) -> None:
    assert parse_ranks(text) == ranks


def attached(pid: int, **other: Any) -> Attached:
    given = {
        "rank": 0,
        "milliseconds": 7.4,
        "python": "3.11.7",
        "torch": "2.13.0+cpu",
        "already": False,
        "version": "1",
    }
    return Attached(pid=pid, **{**given, **other})


def test_the_line_of_an_attached_rank() -> None:
    assert line(attached(4250000)) == "attached  rank 0  pid 4250000  7 ms   python 3.11.7, torch 2.13.0"
    assert line(attached(4250000, already=True)) == "already   rank 0  pid 4250000         python 3.11.7, torch 2.13.0"
    assert line(attached(4250000, rank=None, torch=None)).endswith("python 3.11.7, no torch: its tables stay empty")


@pytest.mark.parametrize(
    ("torch", "says"),
    [
        ("2.2.2+cu121", "torch 2.2.2: no steps or modules before 2.3, no collectives before 2.4"),
        ("2.3.0", "torch 2.3.0: no collectives before 2.4"),
        ("2.4.0a0+git1234", "torch 2.4.0a0"),
        ("2.13.0+cpu", "torch 2.13.0"),
        ("parrot", "torch parrot"),
    ],
)
def test_the_line_of_an_attached_rank_tells_what_its_torch_is_too_old_for(torch: str, says: str) -> None:
    assert line(attached(4250000, torch=torch)).endswith(f"python 3.11.7, {says}")


def test_a_rank_that_fails_does_not_stop_attaching_to_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    def attach(pid: int, *_: object) -> Attached:
        if pid == 4250001:
            raise AttachError("A debugger traces 4250001 already.", "End it first.", code="traced")
        return attached(pid)

    monkeypatch.setattr("probe.attach.attach", attach)
    told: list[Attached] = []
    with pytest.raises(AttachError, match="1 of 3 ranks") as caught:
        attach_each({4250000: 0, 4250001: 1, 4250002: 2}, Wanted(tell=told.append))
    assert (caught.value.code, told) == ("traced", [attached(4250000), attached(4250002)])
    assert capfd.readouterr().err.startswith("failed    rank 1  pid 4250001  [traced] A debugger")


@pytest.mark.parametrize(("failing", "status"), [(0, 0), (4250001, 4)])
def test_an_attach_has_a_row_per_rank_that_has_its_agent(
    failing: int, status: int, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    def attach(pid: int, *_: object) -> Attached:
        if pid == failing:
            raise AttachError("A debugger traces it already.", "End it first.", code="traced")
        return attached(pid)

    monkeypatch.setattr("probe.attach.attach", attach)
    monkeypatch.setattr("probe.cli.verbs.job.attach.ranks_of", lambda pids, *_: dict.fromkeys(pids))
    assert run(["attach", "4250000", "4250001", "--json"]) == status
    rows = json.loads(capfd.readouterr().out)
    assert rows == [asdict(attached(pid)) for pid in (4250000, 4250001) if pid != failing]


def test_taps_that_are_off_on_gpus_are_reported_once_for_all_ranks(
    monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    off = f"off: CUDA is in use, {UNWANTED}"
    taps = {"forward": "on", "device": off, "collectives": off, "gpu": "off: no NVML"}
    monkeypatch.setattr("probe.attach.attach", lambda pid, *_: attached(pid, rank=pid - 4250000, taps=taps))
    attach_each({4250000: 0, 4250001: 1, 4250002: 2}, Wanted(tell=lambda line: None))
    said = f"device times and memory, collectives and the Flight Recorder are {off}"
    assert capfd.readouterr().err == f"ranks 0-2: {said}\n"


@pytest.mark.parametrize(
    ("command", "launches"),
    [
        ("/usr/bin/python /usr/bin/torchrun --nproc-per-node 2 train.py", True),
        ("python -m torch.distributed.run train.py", True),
        ("python /opt/bin/accelerate launch train.py", True),
        ("python -m accelerate.commands.launch train.py", True),
        ("python -u -m deepspeed.launcher.launch --world_info=e30= train.py", True),
        ("python train.py --launcher torchrun", False),
        ("python deepspeed.launcher.py", False),
        ("python torchrunner.py", False),
    ],
)
def test_a_launcher_is_recognised_by_its_command(command: str, launches: bool) -> None:
    assert is_launcher(SimpleNamespace(rank=None, command=command)) is launches  # type: ignore[arg-type]


@pytest.mark.parametrize(("ending", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("pass", 0)])
def test_run_ends_with_the_status_of_its_command(ending: str, status: int) -> None:
    assert run(["run", "--", sys.executable, "-c", f"import os, sys; {ending}"]) == status


def test_run_says_that_it_has_attached_to_nothing(capfd: Captured) -> None:
    assert run(["run", "--", "sleep", "0.5"]) == 0
    assert "Nothing was attached to: no Python process with torch was seen." in capfd.readouterr().err


def test_run_passes_signals_on() -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(30)"
    )
    main = "from probe.cli import main; main()"
    words = [sys.executable, "-c", main, "run", "--", sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None and command.stdout.readline() == "up\n"
        command.terminate()
        assert command.wait(20) == 7
