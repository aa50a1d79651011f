"""Every format writes the same rows."""

from __future__ import annotations

import csv
import gc
import io
import json
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from probe.cli.entry import run
from probe.cli.output.formats import Output
from probe.cli.output.result import ArrowResult, Records, Tabular, interval, unique
from probe.cli.output.writers import WRITERS, Paper
from probe.errors import UsageError

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901)
TABLE = pa.table(
    {
        "module": ["h.0.é", None],
        "duration": [0.1 + 0.2, float("nan")],
        "count": pa.array([7, None], pa.int64()),
        "total": pa.array([Decimal("12345678901234567890"), None], pa.decimal128(38, 0)),
        "ranks": [[0, 1], None],
        "time": pa.array([MOMENT, None], pa.timestamp("us")),
        "instant": pa.array([MOMENT.replace(tzinfo=timezone.utc), None], pa.timestamp("us", "Asia/Tokyo")),
        "took": pa.array([(0, 1, 1_500_000_000), None], pa.month_day_nano_interval()),
    }
)
FIRST = {
    "module": "h.0.é",
    "duration": 0.1 + 0.2,
    "count": 7,
    "total": 12345678901234567890,
    "ranks": [0, 1],
    "time": "2026-01-02T03:04:05.678901",
    "instant": "2026-01-02T03:04:05.678901Z",
    "took": "1 day 00:00:01.5",
}


def written(format: str, result: Tabular) -> bytes:
    sink = io.BytesIO()
    WRITERS[format](result, sink, Paper())
    return sink.getvalue()


def test_json_is_one_array_of_objects_in_utf8() -> None:
    rows = json.loads(written("json", ArrowResult(TABLE)))
    assert rows == [FIRST, dict.fromkeys(FIRST)]
    assert "é".encode() in written("json", ArrowResult(TABLE))


def test_json_of_no_rows_is_an_empty_array() -> None:
    assert json.loads(written("json", ArrowResult(TABLE.slice(0, 0)))) == []


def test_ndjson_is_one_object_a_line() -> None:
    rows = [json.loads(line) for line in written("ndjson", ArrowResult(TABLE)).splitlines()]
    assert rows == [FIRST, dict.fromkeys(FIRST)]


def test_csv_keeps_every_digit_and_leaves_null_empty() -> None:
    header, first, second = csv.reader(io.StringIO(written("csv", ArrowResult(TABLE)).decode()))
    assert header == list(FIRST)
    assert first == ["h.0.é", "0.30000000000000004", "7", "12345678901234567890", "[0, 1]", FIRST["time"],
                     FIRST["instant"], FIRST["took"]]  # fmt: skip
    assert second == ["", "nan", "", "", "", "", "", ""]


def test_a_map_is_an_object_and_one_with_nested_keys_a_list_of_pairs() -> None:
    plain = pa.array([[("a", 1), ("b", None)], None], pa.map_(pa.string(), pa.int64()))
    nested = pa.array([[([1], 2)], []], pa.map_(pa.list_(pa.int64()), pa.int64()))
    result = ArrowResult(
        pa.table({"plain": plain, "inside": pa.array([[[("c", 2)]], []], pa.list_(plain.type)), "nested": nested})
    )
    first, second = json.loads(written("json", result))
    assert first == {"plain": {"a": 1, "b": None}, "inside": [{"c": 2}], "nested": [[[1], 2]]}
    assert second == {"plain": None, "inside": [], "nested": []}
    assert written("csv", result).decode().splitlines()[1] == '"{""a"": 1, ""b"": null}","[{""c"": 2}]","[[[1], 2]]"'
    assert written("table", result).decode().splitlines()[2].split("  ")[0] == "{a: 1, b: NULL}"


def test_parquet_and_arrow_are_the_table_itself() -> None:
    plain = TABLE.drop_columns(["took"])  # parquet has no interval of months, days and nanoseconds
    assert str(parquet.read_table(io.BytesIO(written("parquet", ArrowResult(plain)))).to_pylist()) == str(
        plain.to_pylist()
    )
    assert str(pa.ipc.open_stream(written("arrow", ArrowResult(TABLE))).read_all()) == str(TABLE)


def test_a_type_that_parquet_lacks_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="Parquet cannot hold this"):
        written("parquet", ArrowResult(TABLE))


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_every_format_writes_records(format: str) -> None:
    assert written(format, Records(("pid", "command"), [(4242, "train.py"), (4243, None)]))


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_text_that_is_no_utf8_is_escaped(format: str) -> None:
    """As a snippet may print what os.listdir() gives."""
    result = Records(("output", "changed"), [("caf\udce9", ["\ud800"])])
    assert b"caf" in written(format, result)
    if format == "json":
        assert json.loads(written(format, result)) == [{"output": "caf\udce9", "changed": ["\ud800"]}]


def test_a_field_of_csv_with_any_line_end_is_quoted() -> None:
    fields = [("40 %\r50 %", "a\nb", "c\r\n", "d")]
    text = written("csv", Records(("a", "b", "c", "d"), fields)).decode()
    assert text == 'a,b,c,d\n"40 %\r50 %","a\nb","c\r\n",d\n'
    assert [*csv.reader(io.StringIO(text, newline=""))][1:] == [[*fields[0]]]


@pytest.mark.parametrize("format", sorted({*WRITERS} - {"parquet", "arrow"}))
def test_a_stream_stays_open_after_ctrl_c(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the shell goes on writing to it."""

    def interrupted(self: Records) -> Iterator[list[list[object]]]:
        yield [[1]]
        raise KeyboardInterrupt

    sink = io.BytesIO()
    monkeypatch.setattr(Records, "batches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        WRITERS[format](Records(("a",), []), sink, Paper())
    gc.collect()
    assert not sink.closed


def test_columns_of_the_same_name_are_numbered() -> None:
    assert unique(["step", "step", "step_1", "step"]) == ["step", "step_1", "step_1_1", "step_2"]
    doubled = pa.table([[1], [2]], names=["a", "a"])
    assert json.loads(written("json", ArrowResult(doubled))) == [{"a": 1, "a_1": 2}]


def test_an_interval_reads_as_duckdb_writes_it() -> None:
    assert interval(0, 0, 0) == "00:00:00"
    assert interval(1, 2, 3_600_000_000_000) == "1 month 2 days 01:00:00"
    assert interval(0, 0, -500_000_000) == "-00:00:00.5"


def test_the_suffix_of_the_file_chooses_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.parquet"
    Output(file=str(file)).show(Records(("a",), [(1,)]))
    assert parquet.read_table(file).to_pylist() == [{"a": 1}]
    assert capsys.readouterr() == ("", f"1 row written to {file}\n")
    assert (Output("csv", "x.parquet").kind, Output(None, "x").kind, Output().kind) == ("csv", "table", "table")


def test_the_row_count_goes_to_stderr(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Output().show(Records(("a",), [(1,), (2,)]))
    assert capfdbinary.readouterr() == (b"a\n-\n1\n2\n", b"(2 rows)\n")


@pytest.mark.parametrize("result", [Records(("n",), [(n,) for n in range(9)]), ArrowResult(pa.table({"n": range(9)}))])
def test_a_terminal_shows_the_first_rows_and_says_so(
    result: Tabular, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    Output(most_rows=3).show(result)
    assert capfd.readouterr() == ("n\n-\n0\n1\n2\n", "(9 rows; the first 3 are shown, --all shows all)\n")
    Output(most_rows=9).show(result)
    assert capfd.readouterr().err == "(9 rows)\n"
    Output("csv", most_rows=3).show(result)
    assert capfd.readouterr() == ("n\n" + "".join(f"{n}\n" for n in range(9)), "")


def test_a_pipe_and_a_file_get_all_rows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result, file = Records(("n",), [(n,) for n in range(9)]), tmp_path / "rows"
    Output(most_rows=3).show(result)
    assert capfd.readouterr() == ("n\n-\n" + "".join(f"{n}\n" for n in range(9)), "(9 rows)\n")
    Output(file=str(file), most_rows=3).show(result)
    assert len(file.read_text().splitlines()) == 11


def test_a_binary_format_is_refused_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(UsageError, match="parquet is binary"):
        Output("parquet")


def test_a_file_that_cannot_be_written_is_refused_when_the_output_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot write"):
        Output(file=str(tmp_path / "nowhere" / "rows.csv"))
    with pytest.raises(UsageError, match="Cannot write"):
        Output(file=str(tmp_path))


@pytest.fixture
def not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Access is what a user has who owns nothing."""
    monkeypatch.setattr(os, "access", lambda path, mode: os.stat(path).st_mode & mode == mode)


@pytest.mark.usefixtures("not_root")
def test_what_is_there_already_is_asked_whether_it_can_be_written_not_its_folder(tmp_path: Path) -> None:
    Output(file="/dev/null")
    rows = tmp_path / "rows.csv"
    rows.touch(0o444)
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match=r"rows\.csv: it is read-only"):
        Output(file=str(rows))
    Output(file=str(tmp_path / "others.csv"))


@pytest.mark.parametrize("line", ["export --perfetto", "memory --history --snapshot"])
def test_other_files_are_checked_before_the_work_too(
    line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["4242", *line.split(), f"{tmp_path}/nowhere/file"]) == 2
    assert f"file: no such folder, or not writable. Give another: {line.split()[-1]} FILE" in capfd.readouterr().err
