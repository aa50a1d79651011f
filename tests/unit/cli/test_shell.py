"""What a line of input does in the shell, over a fake connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import probe
from probe.cli.entry import run
from probe.cli.output.result import ArrowResult
from probe.cli.questions import read
from probe.cli.shell.dot_commands import COMMANDS, FORMATS, offered
from probe.cli.shell.dot_commands import run as run_line
from probe.cli.shell.shell import Answer, Shell, what_next
from probe.cli.shell.watch import frame
from probe.errors import EndpointError, QueryError, UsageError
from probe.host.facts import Facts
from probe.query.result import Cost, Coverage, Note, Result

NO_COST = Cost((), 0.0, {}, 0.0)


class FakeConnection:
    """`asked` are the statements, each answered by its number."""

    is_unwanted = staticmethod(lambda: False)

    def __init__(self, endpoint: str = "4242") -> None:
        self.endpoint, self.agents = endpoint, [Facts(rank=0, pid=4242, attached_ns=5)]
        self.notes: list[str] = []
        self.told = (Note("tap-off", "rank 0: backward is off"),)
        self.asked: list[tuple[str, bool]] = []
        self.closed = False

    def query(self, sql: str, *, open_steps: bool = False) -> Any:
        self.asked.append((sql, open_steps))
        if "wrong" in sql:
            raise QueryError("It is wrong.")
        table = pa.table({"n": range(len(self.asked))} if "nothing" not in sql else {})
        return Result(table, Coverage((0,), (), (), 0.1), self.told, NO_COST)

    def restore_servers(self) -> None: ...

    def require_one_job(self) -> None: ...

    def close(self) -> None:
        self.closed = True


Captured = pytest.CaptureFixture[str]
Make = Callable[..., Shell]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeConnection]:
    """The connections that were made."""
    connections: list[FakeConnection] = []

    def connect(endpoint: str, *, timeout: float, key: str | None = None) -> FakeConnection:
        if endpoint == "99":
            raise EndpointError("There is no process 99.", "Run: probe list")
        connections.append(FakeConnection(endpoint))
        return connections[-1]

    monkeypatch.setattr(probe, "connect", connect, raising=False)
    return connections


@pytest.fixture
def shell(made: list[FakeConnection]) -> Shell:
    return Shell("4242", 10.0, "csv", False, at_terminal=False)


def test_statements_run_one_after_the_other_on_one_connection(
    shell: Shell, made: list[FakeConnection], capfd: Captured
) -> None:
    run_line(shell, "SELECT 1; SELECT 'a;b'\n;")
    run_line(shell, "SELECT 3;")
    assert [sql for sql, _ in made[0].asked] == ["SELECT 1", "SELECT 'a;b'", "SELECT 3"] and len(made) == 1
    out, err = capfd.readouterr()
    assert out == "n\n0\nn\n0\n1\nn\n0\n1\n2\n"
    assert [line.split(",")[0] for line in err.splitlines()[::2]] == ["rank 0: backward is off"] * 3
    assert [line.split(",")[0] for line in err.splitlines()[1::2]] == ["(1 row", "(2 rows", "(3 rows"]


def test_that_steps_have_no_rows_is_said_once_of_a_job(
    shell: Shell, made: list[FakeConnection], capfd: Captured
) -> None:
    made[0].told += (Note("unsampled", "5 of 9 steps were sampled"),)
    run_line(shell, "SELECT 1; SELECT 2;")
    run_line(shell, "SELECT 3;")
    err = capfd.readouterr().err
    assert (err.count("5 of 9 steps"), err.count("backward is off")) == (1, 3)
    run_line(shell, ".connect 4300")
    made[1].told = made[0].told
    run_line(shell, "SELECT 4;")
    assert capfd.readouterr().err.count("5 of 9 steps") == 1


def test_a_question_is_asked_by_its_name(shell: Shell, made: list[FakeConnection], capfd: Captured) -> None:
    run_line(shell, ".ask loader")
    assert made[0].asked == [(read("loader").sql, False)] and shell.last == read("loader").sql
    assert "`none_ready_pct` is how often" in capfd.readouterr().err
    run_line(shell, ".ask")
    assert "\nloader,Does the loader run dry?\n" in capfd.readouterr().out


def test_a_failing_statement_ends_the_line(shell: Shell, made: list[FakeConnection]) -> None:
    with pytest.raises(QueryError):
        run_line(shell, "SELECT 1; SELECT wrong; SELECT 3;")
    assert len(made[0].asked) == 2


def test_a_statement_without_a_result_prints_no_result(shell: Shell, capfd: Captured) -> None:
    run_line(shell, "PRAGMA nothing;")
    out, err = capfd.readouterr()
    assert out == "" and "(no result, " in err


def test_a_statement_without_effect_is_never_sent(shell: Shell, made: list[FakeConnection]) -> None:
    with pytest.raises(QueryError, match="CREATE has no effect"):
        run_line(shell, "CREATE TABLE mine AS SELECT 1;")
    assert made[0].asked == []


def test_sql_that_is_not_utf8_is_a_usage_error(shell: Shell) -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        run_line(shell, "SELECT '\udcff';")


def test_settings_apply_to_later_statements(shell: Shell, made: list[FakeConnection], capfd: Captured) -> None:
    run_line(shell, ".open on")
    run_line(shell, ".format ndjson;")
    run_line(shell, "SELECT 1;")
    assert made[0].asked == [("SELECT 1", True)]
    assert capfd.readouterr().out == '{"n": 0}\n'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (".opne on", "No such command: .opne. Did you mean .open?"),
        (".open maybe", "'maybe' is not one of on, off."),
        (".format parquet", "'parquet' is not one of table, csv, json, ndjson."),
        (".rows few", "'few' is not a number of rows."),
        (".ask loadr", "No question named loadr. Did you mean loader?"),
        (".watch", "'' is not a number of seconds."),
        (".watch nan SELECT 1", "'nan' is not a number of seconds."),
        (".watch 1", "There is no statement to repeat yet."),
        (".watch 1 SELECT 1; SELECT 2", "Only one statement at a time can be watched."),
        (".schema python.torch", "No table named python.torch. Did you mean"),
    ],
)
def test_each_wrong_command_has_its_error(shell: Shell, line: str, said: str) -> None:
    with pytest.raises((UsageError, QueryError)) as caught:
        run_line(shell, line)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (".sc", [".schema"]),
        (".format ", list(FORMATS)),
        (".open of", ["off"]),
        (".ask le", ["leak"]),
        (".schema torch", ["python.torch_trace"]),
        (".schema host.g", ["host.gpu_trace"]),
        (".help ", []),
        (".nonsense x", []),
    ],
)
def test_dot_commands_and_their_arguments_are_completed(line: str, words: list[str]) -> None:
    assert [each.text for each in offered(line)] == words


@pytest.mark.parametrize("line", [".quit", "quit", "exit;", " .quit "])
def test_quit_and_exit_end_the_shell_with_or_without_a_dot(shell: Shell, line: str) -> None:
    run_line(shell, line)
    assert shell.ended


def test_help_names_every_command(shell: Shell, capfd: Captured) -> None:
    run_line(shell, ".help")
    out = capfd.readouterr().out
    assert all(f"{command.usage} " in out for command in COMMANDS.values())
    assert all(len(line) <= 80 for line in out.splitlines())
    assert all(format in COMMANDS[".format"].words for format in FORMATS)


def test_tables_and_schema_print_what_probe_tables_prints(shell: Shell, capfd: Captured) -> None:
    for line, words in ((".tables", []), (".schema torch_trace", ["torch_trace"])):
        run_line(shell, line)
        shown = capfd.readouterr()
        assert run(["tables", "--format", "csv", *words]) == 0
        assert capfd.readouterr() == shown
    run_line(shell, ".schema")
    assert "\nprobe.drops,kept,BIGINT,\n" in capfd.readouterr().out


def test_connect_keeps_the_old_connection_if_the_new_one_fails(shell: Shell, made: list[FakeConnection]) -> None:
    with pytest.raises(EndpointError):
        run_line(shell, ".connect 99")
    assert shell.connection is made[0] and not made[0].closed
    run_line(shell, ".connect 4300")
    assert shell.connection is made[1] and made[0].closed and made[1].endpoint == "4300"
    run_line(shell, ".connect")
    assert made[2].endpoint == "4300"


def test_new_agents_replace_those_that_are_gone(shell: Shell, made: list[FakeConnection]) -> None:
    assert list(what_next(shell)) == [] and shell.connection is made[0] and made[1].closed
    made[0].agents[0] = made[0].agents[0]._replace(attached_ns=6)
    assert list(what_next(shell)) == ["There are new agents: 4242, 1 rank. Ask again."]
    assert shell.connection is made[2] and made[0].closed and not made[2].closed
    made[2].endpoint = "99"
    assert list(what_next(shell)) == [
        "There is no process 99. Run: probe list",
        "Then ask again, or ask another job: .connect PID",
    ]


def test_a_lost_shell_reconnects_before_the_next_statement(shell: Shell, made: list[FakeConnection]) -> None:
    made[0].endpoint = "99"
    list(what_next(shell))
    with pytest.raises(EndpointError):
        run_line(shell, "SELECT 1;")
    made[0].endpoint, made[0].agents = "4242", []
    run_line(shell, "SELECT 2;")
    assert made[0].asked == [] and [sql for sql, _ in made[1].asked] == ["SELECT 2"]
    run_line(shell, "SELECT 3;")
    assert len(made) == 2


def answer(columns: dict[str, Any], *notes: str) -> Answer:
    return Answer(ArrowResult(pa.table(columns)), 0.02, [Note("tap-off", note) for note in notes])


def test_a_watched_result_fits_the_screen() -> None:
    long = answer({"step": range(1000), "text": ["x" * 200] * 1000}, "n" * 100)
    wide = answer({f"column_{number}": [number] for number in range(40)})
    for each in (long, wide):
        lines = frame(each, "every 2 s: SELECT" * 10, columns=60, lines=12)
        assert len(lines) == 12 and max(map(len, lines)) <= 60 and "…" in lines
    assert frame(answer({"step": [7]}), "title", 60, 12) == ["title", "", "step", "----", "   7"]
    assert len(frame(long, "title", 60, 2)) == 2
