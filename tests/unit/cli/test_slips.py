"""Wrong input, closed streams and full disks: each has its own error line and exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from probe.cli import entry
from probe.cli.options import endpoint_and_text, parse_ranks
from probe.cli.output.formats import Output
from probe.cli.output.result import ArrowResult
from probe.errors import UsageError


@pytest.mark.parametrize("text", ["3-1", "7-0", "0-100000000", "a", "-1", ""])
def test_an_invalid_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_ranks(text)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["1", "query", "   "], "The SQL is empty"),
        (["1", "query", ";"], "The SQL is empty"),
        (["1", "eval", "print('\udcff')"], "The code is not UTF-8 text."),
        (["1", "eval", "--timeout", "nan", "1"], "not a number of seconds"),
        (["1", "query", "--timeout", "inf", "select 1"], "not a number of seconds"),
        (["1", "query", "--timeout", "x", "select 1"], "'x' is not a valid number of seconds"),
        (["tables", "-o", "steps.xlsx"], "No format has the suffix"),
        (["1", "trace", "--rank", "0"], "--rank needs a FUNCTION."),
        (["1", "capture", "--rank", "0-x"], "'0-x' is not a list of ranks."),
        (["1", "profile", "--rank", "0-"], "'0-' is not a list of ranks."),
        (["run", "--nme", "x", "--", "true"], "No such option '--nme'."),
        (["key"], "probe key needs an action."),
        (["key", "crate", "f"], "probe key has no action 'crate'."),
        (["key", "create"], "probe key create needs 1 file name, not 0."),
        (["key", "share", "f"], "probe key share needs 2 file names, not 1."),
        (["key", "share", "--read-only", "f", "g"], "probe key share takes no --read-only"),
    ],
)
def test_an_invalid_value_is_named(line: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(line) == 2
    assert says in capsys.readouterr().err


def test_list_reports_a_pid_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(["list", "99999999"]) == 3
    assert "There is no process 99999999" in capsys.readouterr().err


def test_an_arrow_file_has_the_ipc_file_format(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2]})
    Output(None, str(tmp_path / "x.feather")).show(ArrowResult(table))
    with pa.ipc.open_file(tmp_path / "x.feather") as file:
        assert file.read_all().equals(table)


def test_a_file_named_dash_is_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert entry.run(["tables", "-o", "-", "--format", "csv"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"table,") and not os.listdir(tmp_path)


def run(*words: str, stdout: int) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from probe.cli import main; main()", *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE)


@pytest.mark.parametrize("format", ["table", "csv", "json", "ndjson", "parquet", "arrow"])
def test_a_closed_pipe_prints_nothing_in_any_format(format: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = run("tables", "--format", format, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_is_an_output_error() -> None:
    with open("/dev/full", "wb") as full:
        done = run("tables", "--format", "csv", stdout=full.fileno())
    assert done.returncode == 9 and b"[output]" in done.stderr and b"No space left" in done.stderr


@pytest.mark.parametrize(
    ("closed", "words", "status", "told"),
    [
        (1, ["tables"], 9, b"could not be written: Bad file descriptor. Open it for writing."),
        (2, ["tables"], 0, b""),
        (0, ["query", "-"], 2, b"Cannot read the SQL from -: Bad file descriptor"),
    ],
)
def test_a_closed_standard_stream_is_an_error_only_if_it_is_used(
    closed: int, words: list[str], status: int, told: bytes
) -> None:
    command = [sys.executable, "-c", "from probe.cli import main; main()", *words]
    done = subprocess.run(["bash", "-c", f'exec "$@" {closed}>&-', "-", *command], capture_output=True)
    assert done.returncode == status and told in done.stderr
    assert b"Traceback" not in done.stderr


def test_text_of_a_c_locale_is_read_as_utf_8() -> None:
    assert endpoint_and_text(["1"], ["SELECT '\udcc3\udca9'"], None, "SQL")[1] == "SELECT 'é'"
