"""A folder of recordings as an endpoint: which rows count, what is told of other files, and what is refused."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from recorded import folder_of, plant, plant_manifest

import probe
from probe.diagnose.hang.report import Report
from probe.errors import Interrupted, QueryError, SilentError, UsageError
from probe.record.recorder import agents_of
from probe.record.stored import About
from probe.tables import TABLES
from target import Probe

STEPS = "python.step_trace"


def rows(folder: Path, sql: str) -> list[dict[str, Any]]:
    with probe.connect(str(folder)) as recording:
        return recording.query(sql).to_pylist()


def test_rows_of_all_files_and_ranks_are_one_table(tmp_path: Path) -> None:
    for rank in (0, 1):
        plant(tmp_path, STEPS, [{"step": 1, "duration": 0.5}, {"step": 2, "duration": 0.5}], rank)
    plant(tmp_path, STEPS, [{"step": 3, "duration": 2.0}], 1)
    sql = "SELECT rank, MAX(step) AS last, SUM(duration) AS s FROM step_trace GROUP BY 1 ORDER BY 1"
    assert rows(tmp_path, sql) == [
        {"rank": 0, "last": 2, "s": 1.0}, {"rank": 1, "last": 3, "s": 3.0},
    ]  # fmt: skip


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_table_without_rows_has_its_declared_columns(tmp_path: Path, table: Any) -> None:
    plant_manifest(tmp_path)
    if table.final == "never":
        return
    described = rows(tmp_path, f"DESCRIBE SELECT * FROM {table.name}")
    assert [(each["column_name"], each["column_type"]) for each in described] == [
        (column.name, column.type) for column in table.columns
    ]


@pytest.mark.parametrize("table", [each for each in TABLES if not each.derive_catalogue], ids=lambda table: table.name)
def test_a_table_with_rows_has_its_declared_types_too(tmp_path: Path, table: Any) -> None:
    has_rank = any(column.name == "rank" for column in table.columns)
    plant(tmp_path, table.name, [{"device": "3"} if "device" in {c.name for c in table.columns} else {}],
          0 if has_rank else None)  # fmt: skip
    if table.final == "never":
        return
    described = rows(tmp_path, f"DESCRIBE SELECT * FROM {table.name}")
    assert [(each["column_name"], each["column_type"]) for each in described] == [
        (column.name, column.type) for column in table.columns
    ]


def test_several_jobs_have_a_column_job_and_one_has_it_where_it_is_asked_for(tmp_path: Path) -> None:
    plant(tmp_path, STEPS, [{"step": 1}], job="a")
    assert "job" not in rows(tmp_path, f"SELECT * FROM {STEPS}")[0]
    assert rows(tmp_path, f"SELECT job, step FROM {STEPS}") == [{"job": "a", "step": 1}]
    plant(tmp_path, STEPS, [{"step": 5}], job="b")
    assert [(row["job"], row["step"]) for row in rows(tmp_path, f"SELECT * FROM {STEPS} ORDER BY job")] == [
        ("a", 1),
        ("b", 5),
    ]
    assert [row["step"] for row in rows(tmp_path / "job=b", f"SELECT * FROM {STEPS}")] == [5]


def test_what_another_file_replaces_does_not_count(tmp_path: Path) -> None:
    first = plant(tmp_path, STEPS, [{"step": 1}])
    second = plant(tmp_path, STEPS, [{"step": 2}])
    plant(tmp_path, STEPS, [{"step": 1}, {"step": 2}], about=About(replaces=(first.name, second.name)), kind="m1")
    assert rows(tmp_path, f"SELECT step FROM {STEPS} ORDER BY 1") == [{"step": 1}, {"step": 2}]
    second.unlink()
    assert len(rows(tmp_path, f"SELECT step FROM {STEPS}")) == 2


def test_truncated_and_foreign_files_are_named_and_skipped(tmp_path: Path) -> None:
    whole = plant(tmp_path, STEPS, [{"step": 1}])
    folder = folder_of(tmp_path, STEPS)
    (folder / "cut.parquet").write_bytes(whole.read_bytes()[:-20])
    (folder / "empty.parquet").touch()
    pq.write_table(pa.table({"step": [7]}), folder / "foreign.parquet")
    (folder / ".rows-x.parquet.part").write_bytes(b"PAR1")
    with probe.connect(str(tmp_path)) as recording:
        result = recording.query(f"SELECT step FROM {STEPS}")
    assert result.to_pylist() == [{"step": 1}]
    assert [(note.code, note.text.partition(" is skipped: ")[2]) for note in result.notes] == [
        ("skipped-file", "it is cut off or no Parquet."), ("skipped-file", "it is cut off or no Parquet."),
        ("skipped-file", "no recorder has written it."),
    ]  # fmt: skip


def test_a_pipe_that_is_named_like_a_file_is_skipped_and_not_waited_for(tmp_path: Path) -> None:
    plant(tmp_path, STEPS, [{"step": 1}])
    pipe = folder_of(tmp_path, STEPS) / "rows-pipe.parquet"
    os.mkfifo(pipe)
    keeps_it_open = os.open(pipe, os.O_RDWR)  # whoever opens it reads nothing, and waits
    late = threading.Timer(5, os.close, [keeps_it_open])  # so that a reader fails, and does not hang
    late.start()
    with probe.connect(str(tmp_path)) as recording:
        result = recording.query(f"SELECT step FROM {STEPS}")
    assert late.is_alive(), "the pipe was waited for"
    late.cancel()
    os.close(keeps_it_open)
    assert result.to_pylist() == [{"step": 1}]
    assert [note.text.partition(" is skipped: ")[2] for note in result.notes] == ["it is no regular file."]


def test_what_is_written_meanwhile_is_in_the_next_answer(tmp_path: Path) -> None:
    plant(tmp_path, STEPS, [{"step": 1}])
    with probe.connect(str(tmp_path)) as recording:
        assert len(recording.query(f"SELECT * FROM {STEPS}")) == 1
        plant(tmp_path, STEPS, [{"step": 2}])
        assert len(recording.query(f"SELECT * FROM {STEPS}")) == 2


@pytest.mark.parametrize("keep", ["CREATE VIEW v AS {}", "CREATE MACRO v() AS TABLE {}", "PREPARE v AS {}"])
@pytest.mark.parametrize("what", ["step", "*", "job, step"])
def test_a_query_that_is_kept_under_a_name_sees_the_files_of_each_moment(tmp_path: Path, keep: str, what: str) -> None:
    first = plant(tmp_path, STEPS, [{"step": 1}])
    read = "EXECUTE v" if "PREPARE" in keep else "FROM v()" if "MACRO" in keep else "FROM v"
    with probe.connect(str(tmp_path)) as recording:
        recording.query(keep.format(f"SELECT {what} FROM step_trace"))
        recording.query("SELECT job FROM step_trace")
        recording.query("SELECT * FROM step_trace")
        assert len(recording.query(read)) == 1
        plant(tmp_path, STEPS, [{"step": 2}])
        assert len(recording.query(read)) == 2
        plant(tmp_path, STEPS, [{"step": 1}, {"step": 2}, {"step": 3}], about=About(replaces=(first.name,)), kind="m1")
        first.unlink()
        assert len(recording.query(read)) == 4


@pytest.mark.parametrize("later", ["CREATE VIEW w AS SELECT step FROM step_trace", "SELECT step FROM step_trace"])
def test_a_view_that_reads_job_does_so_beside_a_query_that_does_not(tmp_path: Path, later: str) -> None:
    plant(tmp_path, STEPS, [{"step": 1}])
    with probe.connect(str(tmp_path)) as recording:
        recording.query("CREATE VIEW v AS SELECT job, step FROM step_trace")
        recording.query(later)
        assert recording.query("FROM v").to_pylist() == [{"job": "exp7", "step": 1}]
        assert len(recording.query("SELECT v.step FROM v JOIN step_trace USING (step)")) == 1


def test_a_view_sees_everything_again_after_what_looked_at_the_last_run(tmp_path: Path) -> None:
    restarted(tmp_path)
    with probe.connect(str(tmp_path)) as recording:
        recording.query(f"CREATE VIEW v AS FROM {STEPS}")
        recording.why()
        assert len(recording.query("FROM v")) == 500


def test_plain_readers_see_the_same_rows(tmp_path: Path) -> None:
    for rank in (0, 1):
        plant(tmp_path, STEPS, [{"step": 4, "duration": 0.25}], rank)
    plant(tmp_path, "probe.collectives", [{"step": 4, "arrived": [0, 1]}], None)
    pattern = f"{tmp_path}/job=*/table={STEPS}/*/*.parquet"
    assert duckdb.sql(f"SELECT job, rank, step, duration FROM '{pattern}' ORDER BY rank").fetchall() == [
        ("exp7", 0, 4, 0.25), ("exp7", 1, 4, 0.25)]  # fmt: skip
    whole = ds.dataset(tmp_path / "job=exp7" / f"table={STEPS}", partitioning="hive").to_table(["rank", "step"])
    assert whole.sort_by("rank").to_pylist() == [{"rank": 0, "step": 4}, {"rank": 1, "step": 4}]
    every = f"SELECT rank, step FROM '{tmp_path}/*/*/*/*.parquet' WHERE rank IS NULL"
    assert duckdb.sql(every).fetchall() == [(None, 4)]


def test_the_command_reads_a_recording_and_refuses_what_needs_a_job(tmp_path: Path, probe: Probe) -> None:
    plant(tmp_path, STEPS, [{"step": 1}, {"step": 2}])
    plant_manifest(tmp_path, 1)
    done = probe(tmp_path, "query", "--format", "csv", f"SELECT COUNT(*) AS n FROM {STEPS}")
    assert done.stdout == "n\n2\n"
    assert "2" in probe(tmp_path, "sql", input=f"SELECT MAX(step) FROM {STEPS};").stdout
    for words in (("eval", "1"), ("hang",), ("set", "sample=1"), ("detach",), ("stack",), ("profile",), ("memory",)):
        refused = probe(tmp_path, *words, status=2)
        assert refused.stderr.startswith("probe: [recording]") and refused.stderr.count("\n") == 1, refused.stderr
    refused = probe(tmp_path, "query", "SELECT * FROM python.stack", status=5)
    assert refused.stderr.startswith("probe: [not-recorded]")
    (tmp_path / "none").mkdir()
    assert "holds no recording" in probe(tmp_path / "none", "query", "SELECT 1", status=3).stderr


def test_a_question_is_asked_of_one_job(tmp_path: Path, probe: Probe) -> None:
    for job in ("a", "b"):
        plant(tmp_path, STEPS, [{"step": 1}, {"step": 2}], job=job)
    said = f"probe: [recording] {tmp_path} holds job=a, job=b. Give one: {tmp_path}/job=NAME\n"
    asked = probe(tmp_path, "ask", "ranks", status=2)
    assert (asked.stdout, asked.stderr) == ("", said)
    assert said in probe(tmp_path, "sql", input=".ask ranks\n", status=2).stderr
    for words in (("export", "--perfetto", tmp_path / "trace"), ("flame", "-o", tmp_path / "flame.html")):
        assert probe(tmp_path, *words, status=2).stderr == said
    assert "How far back" in probe(tmp_path / "job=b", "ask", "retention").stderr


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Europe/Berlin"])
def test_the_last_hour_is_the_same_in_every_time_zone(
    tmp_path: Path, probe: Probe, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    now = datetime.now(timezone.utc).replace(tzinfo=None)
    times = (now - timedelta(minutes=minutes) for minutes in (5, 180))
    plant(tmp_path, STEPS, [{"step": step, "time": time} for step, time in enumerate(times)])
    monkeypatch.setenv("TZ", zone)
    sql = f"SELECT step FROM {STEPS} WHERE time > now() - INTERVAL 1 HOUR"
    assert probe(tmp_path, "query", "--format", "csv", sql, fresh=True).stdout == "step\n0\n"


def test_a_result_of_more_bytes_than_allowed_is_refused_and_the_next_query_is_answered(tmp_path: Path) -> None:
    plant(tmp_path, STEPS, [{"step": step} for step in range(5000)])
    with probe.connect(str(tmp_path)) as recording:
        with pytest.raises(QueryError, match="more than 10,000 bytes") as refused:
            recording.query(f"SELECT step FROM {STEPS}", max_fetch=1e4)
        assert refused.value.code == "max-fetch"
        assert len(recording.query(f"SELECT step FROM {STEPS}", max_fetch=1e5)) == 5000
        assert recording.query(f"SELECT SUM(step) AS s FROM {STEPS}", max_fetch=1e4).to_pylist() == [{"s": 12497500}]


def test_an_error_in_the_midst_of_a_result_is_duckdbs_own(tmp_path: Path) -> None:
    sql = "SELECT CAST(CASE WHEN range = 900000 THEN 'x' ELSE '1' END AS INT) AS n FROM range(1000000)"
    plant(tmp_path, STEPS, [{"step": 1}])
    with probe.connect(str(tmp_path)) as recording, pytest.raises(QueryError, match="Could not convert string 'x'"):
        recording.query(sql)


def test_a_query_is_cancelled_in_the_midst_of_a_result(tmp_path: Path) -> None:
    plant(tmp_path, STEPS, [{"step": 1}])
    with probe.connect(str(tmp_path)) as recording:
        asked = iter([False] * 3)
        recording.is_unwanted = lambda: next(asked, True)
        with pytest.raises(Interrupted):
            recording.query("SELECT range FROM range(100000000000) WHERE range < 1000000 OR range % 1000003 = 0")


def test_without_a_profile_the_flame_graph_of_a_recording_says_how_one_gets_there(tmp_path: Path, probe: Probe) -> None:
    plant(tmp_path, STEPS, [{"step": 1}])
    said = "There is no profile to show. A recorder keeps what is taken while it records: probe PID profile\n"
    assert probe(tmp_path, "flame", "-o", tmp_path / "flame.html", status=8).stderr == f"probe: [no-profile] {said}"


def test_why_does_not_judge_a_few_steps(tmp_path: Path) -> None:
    plant(tmp_path, STEPS, [{"step": step, "duration": 0.5, "start_ns": step * 10**9} for step in range(1, 10)], 0)
    with probe.connect(str(tmp_path)) as recording, pytest.raises(SilentError, match="9 steps are too few"):
        recording.why()


BEGAN = datetime(2026, 1, 1)
PHASES = {"data": 0.0, "forward": 0.3, "backward": 0.3, "validation": 0.0, "optimizer": 0.3, "comm": 0.0, "other": 0.1}


def stepped(count: int, step_s: float, **phases: float | None) -> list[dict[str, Any]]:
    """Rows of step_trace, one step after another.  phases: their shares of the step, None if unknown."""
    shares = {**PHASES, **phases}.items()
    parts = {f"{name}_duration": None if share is None else share * step_s for name, share in shares}
    return [
        {"step": step, "duration": step_s, "start_ns": step * 10**8, "time": BEGAN + timedelta(seconds=step * step_s),
         "sampled": True, **parts}
        for step in range(count)
    ]  # fmt: skip


def test_what_keeps_a_recorded_job_from_being_healthy_is_told_as_it_is(tmp_path: Path) -> None:
    plant(tmp_path / "untold", STEPS, stepped(100, 1.0, forward=0.1, backward=0.1, other=0.5))
    plant(tmp_path / "lost", STEPS, stepped(100, 1.0, **dict.fromkeys(PHASES)))
    for name, sentence, remedy in (
        ("untold", "no profile was taken while these steps were recorded.", "probe $ENDPOINT profile"),
        (
            "lost",
            "known of 0 of 100 sampled steps of 1.0 s, 40 are needed: rows of the others have been overwritten.",
            "",
        ),
    ):
        with probe.connect(str(tmp_path / name)) as recording:
            told = recording.why()
        assert told.code == "unknown" and told.sentence.endswith(sentence), told.sentence
        assert told.findings[0].finding.remedy == remedy


def test_few_steps_of_a_long_recording_and_a_short_recording_have_different_remedies(tmp_path: Path) -> None:
    plant(tmp_path / "long", STEPS, stepped(100, 1.0))
    plant(tmp_path / "short", STEPS, stepped(8, 1.0))
    for name, seconds, remedy in (("long", 9, "why --seconds 99"), ("short", 70, "The recording has 8 in 7 s")):
        with probe.connect(str(tmp_path / name)) as recording, pytest.raises(SilentError, match=remedy):
            recording.why(seconds)


def hang(
    folder: Path, missing: list[int], hung_s: int = 300, begins_s: int = 100, step: int | None = 1000,
    size: int | None = 64,
) -> None:  # fmt: skip
    """Two ranks step for 100 s at 10 steps a second; a collective stays in flight, and samples go on."""
    for rank in (0, 1):
        plant(folder, STEPS, stepped(1000, 0.1), rank)
        plant(folder, "host.process_trace", [{"time": BEGAN + timedelta(seconds=100 + hung_s)}], rank)
    row = {
        "step": step, "operation_type": "all_reduce", "group_name": "0", "bytes": size, "state": "in_flight",
        "first_time": BEGAN + timedelta(seconds=begins_s), "missing": missing,
        "arrived": [rank for rank in (0, 1) if rank not in missing],
    }  # fmt: skip
    plant(folder, "probe.collectives", [row], None)


def test_a_recording_that_ends_in_a_hang_has_this_verdict(tmp_path: Path) -> None:
    hang(tmp_path / "one", [1])
    with probe.connect(str(tmp_path / "one")) as recording:
        told = recording.why()
    assert (told.code, told.causes[0].code, told.causes[0].finding.ranks) == ("hung", "waiting", (1,))
    assert "rank 1 had not reached the all_reduce of step 1000" in told.sentence and "for 300 s" in told.sentence
    hang(tmp_path / "all", [])
    with probe.connect(str(tmp_path / "all")) as recording:
        assert recording.why().causes[0].code == "collective"
    hang(tmp_path / "barrier", [1], step=None, size=None)
    with probe.connect(str(tmp_path / "barrier")) as recording:
        assert "had not reached the all_reduce (group 0), in which rank 0" in recording.why().sentence


def in_flight(folder: Path, **ranks: list[int]) -> None:
    """A host's row of the operation that hang() has."""
    row = {"step": 1000, "operation_type": "all_reduce", "group_name": "0", "bytes": 64, "state": "in_flight",
           "first_time": BEGAN + timedelta(seconds=101)}  # fmt: skip
    plant(folder, "probe.collectives", [row | ranks], None)


def test_a_rank_that_ended_has_not_arrived_and_what_the_recorder_saw_of_it_counts(tmp_path: Path) -> None:
    hang(tmp_path, [1])
    for file in folder_of(tmp_path, "probe.collectives", None).iterdir():
        file.unlink()
    in_flight(tmp_path, arrived=[0], missing=[], unknown=[1])
    with probe.connect(str(tmp_path)) as recording:
        told = recording.why()
        assert "rank 1 had ended by then, or was not recorded" in told.sentence and "all ranks" not in told.sentence
        assert told.causes[0].finding.ranks == (1,)
    noted(tmp_path, "gone", hung=True, after_s=300)
    with probe.connect(str(tmp_path)) as recording:
        assert recording.why().causes[0].code == "gone"


def test_what_each_host_knows_of_an_operation_is_put_together(tmp_path: Path) -> None:
    hang(tmp_path, [])
    for file in folder_of(tmp_path, "probe.collectives", None).iterdir():
        file.unlink()
    in_flight(tmp_path, arrived=[0, 1], missing=[], unknown=[2, 3])
    in_flight(tmp_path, arrived=[2], missing=[3], unknown=[0, 1])
    with probe.connect(str(tmp_path)) as recording:
        told = recording.why()
    assert "rank 3 had not reached the all_reduce" in told.sentence and "ranks 0-2 had been" in told.sentence


def restarted(folder: Path) -> None:
    """A job of one rank that trained for 300 steps of 0.1 s, and 200 of 0.2 s after it was started anew."""
    plant(folder, STEPS, stepped(300, 0.1))
    later = [row | {"time": row["time"] + timedelta(hours=1)} for row in stepped(200, 0.2)]
    plant(folder, STEPS, [row | {"rss_mb": 100.0, "samples": 32} for row in later])
    plant_manifest(folder)


def test_of_a_job_that_was_started_anew_only_what_came_after_it_is_judged(tmp_path: Path) -> None:
    restarted(tmp_path)
    with probe.connect(str(tmp_path)) as recording:
        told = recording.why()
        assert told.step_s == pytest.approx(0.2) and told.steps <= 200
        assert "was started anew" in recording.notes[0] and "2026-01-01 01:00:00 UTC" in recording.notes[0]
        assert recording.query(f"SELECT COUNT(*) AS n FROM {STEPS}").to_pylist() == [{"n": 500}]


def test_a_clock_that_was_set_back_does_not_start_a_job_anew(tmp_path: Path) -> None:
    rows = stepped(300, 0.1)
    plant(tmp_path, STEPS, rows[:200] + [row | {"time": row["time"] - timedelta(seconds=25)} for row in rows[200:]])
    plant_manifest(tmp_path)
    with probe.connect(str(tmp_path)) as recording, recording.last_run():  # type: ignore[attr-defined]
        assert recording.notes == []


def test_a_job_was_started_anew_that_goes_on_before_what_was_recorded_first(tmp_path: Path) -> None:
    rows = stepped(300, 0.1)
    later = [row | {"time": row["time"] + timedelta(hours=1), "start_ns": 10**13 + row["start_ns"]} for row in rows]
    plant(tmp_path, STEPS, rows[200:] + later[:100])
    plant_manifest(tmp_path)
    with probe.connect(str(tmp_path)) as recording, recording.last_run():  # type: ignore[attr-defined]
        assert len(recording.notes) == 1 and "2026-01-01 01:00:00 UTC" in recording.notes[0]


def test_a_server_is_started_anew_with_an_attach_and_not_where_its_calls_are_numbered_anew(tmp_path: Path) -> None:
    for name, attached_s, told in (("recorder", -1, []), ("server", 3600, ["01:00:00 UTC"])):
        restarted(tmp_path / name)
        attached = BEGAN.replace(tzinfo=timezone.utc) + timedelta(seconds=attached_s)
        said = {"step_ends": "call", "attached_wall_ns": int(attached.timestamp() * 1e9)}
        plant_manifest(tmp_path / name, asked=said)
        with probe.connect(str(tmp_path / name)) as recording, recording.last_run():  # type: ignore[attr-defined]
            assert [note.split(" 2026-01-01 ")[0] for note in recording.notes] == [
                "The job was started anew: what was before" for _ in told
            ]
            (row,) = recording.query(f"SELECT COUNT(*) AS n FROM {STEPS}").to_pylist()
            assert row["n"] == (200 if told else 500)


@pytest.fixture
def one_started_anew(tmp_path: Path) -> tuple[str, str]:
    """Two recordings, of which the first is of a job that was started anew."""
    restarted(tmp_path / "a")
    plant(tmp_path / "b", STEPS, [row | {"samples": 32} for row in stepped(200, 0.2)])
    plant_manifest(tmp_path / "b")
    return str(tmp_path / "a"), str(tmp_path / "b")


def test_a_comparison_says_what_does_not_count(one_started_anew: tuple[str, str], probe: Probe) -> None:
    assert "was started anew" in probe("compare", *one_started_anew).stderr


def test_a_comparison_does_not_take_another_start_for_another_rank(one_started_anew: tuple[str, str]) -> None:
    told = probe.compare(*one_started_anew)
    assert told.step.before == pytest.approx(0.2) and told.before.ranks == [1] and told.before.steps <= 200


def test_a_change_is_looked_for_in_one_job(tmp_path: Path) -> None:
    for job in ("a", "b"):
        plant(tmp_path, STEPS, stepped(100, 0.1), job=job)
    with probe.connect(str(tmp_path)) as recording, pytest.raises(UsageError, match="job=a, job=b"):
        recording.since_change(50)


@pytest.mark.parametrize("told", [{"hung_s": 20}, {"begins_s": 50}])
def test_a_collective_in_flight_for_a_moment_or_before_other_steps_is_no_hang(
    tmp_path: Path, told: dict[str, Any]
) -> None:
    hang(tmp_path, [1], **told)
    with probe.connect(str(tmp_path)) as recording:
        assert recording.why().code != "hung"


def noted(folder: Path, code: str, hung: bool, after_s: float) -> None:
    """What the recorder saw so long after the first step."""
    when = (BEGAN + timedelta(seconds=after_s)).replace(tzinfo=timezone.utc)
    seen = Report(
        code, f"It is {code}.", hung, (1,), ["a reason"], ["rank 1:", "  wait (train.py:7)"], ["probe 7 hang"]
    )
    plant_manifest(folder, 2, asked={"stands": {"wall_ns": int(1e9 * when.timestamp()), **asdict(seen)}})


def test_what_the_recorder_saw_of_a_job_that_stood_is_the_verdict(tmp_path: Path) -> None:
    plant(tmp_path, STEPS, stepped(100, 1.0))
    noted(tmp_path, "waiting", hung=True, after_s=200)
    with probe.connect(str(tmp_path)) as recording:
        told = recording.why()
    (cause,) = told.causes
    assert (told.code, cause.code, cause.severity, told.sentence) == ("hung", "waiting", "critical", "It is waiting.")
    assert cause.finding.why[0].startswith("As the recorder saw at 2026-01-01 00:03:20 UTC")
    assert cause.finding.why[1:] == ["a reason", "rank 1:", "  wait (train.py:7)"] and not cause.finding.remedy


def test_once_steps_have_come_again_it_does_not_count(tmp_path: Path) -> None:
    plant(tmp_path, STEPS, stepped(100, 1.0))
    noted(tmp_path, "waiting", hung=True, after_s=50)
    with probe.connect(str(tmp_path)) as recording:
        assert recording.why().code != "hung"


def test_a_job_that_only_rested_is_judged_by_its_steps_if_it_has_enough(tmp_path: Path) -> None:
    plant(tmp_path / "many", STEPS, stepped(100, 1.0))
    plant(tmp_path / "few", STEPS, stepped(5, 1.0))
    for name, code in (("many", "healthy"), ("few", "compiling"), ("none", "compiling")):
        noted(tmp_path / name, "compiling", hung=False, after_s=200)
        with probe.connect(str(tmp_path / name)) as recording:
            assert recording.why().code == code


@pytest.mark.parametrize(
    "asked",
    [
        {"stands": 7},
        {"stands": {"code": "waiting"}},
        {"values": [1]},
        {},
        *(
            {
                "stands": {
                    "code": "waiting",
                    "verdict": "It waits.",
                    "hung": True,
                    "ranks": [],
                    "why": why,
                    "stacks": [],
                    "next": [],
                    "wall_ns": wall_ns,
                }
            }
            for why, wall_ns in ((7, 1e18), ([], 1e40), ([], float("nan")), ([], "1"))
        ),
    ],
)
def test_a_manifest_that_says_what_no_recorder_does_is_no_error(tmp_path: Path, asked: dict[str, Any]) -> None:
    plant(tmp_path, STEPS, stepped(100, 1.0))
    plant_manifest(tmp_path, 1, asked=asked)
    with probe.connect(str(tmp_path)) as recording:
        assert recording.why().code == "healthy"


@pytest.mark.parametrize("ranks", [[], 7, {"0": 7}])
def test_ranks_of_a_manifest_that_are_none_are_no_error(tmp_path: Path, ranks: object) -> None:
    plant(tmp_path, STEPS, stepped(100, 1.0))
    (tmp_path / "job=exp7" / "job.json").write_text(json.dumps({"format": 1, "ranks": ranks}))
    with probe.connect(str(tmp_path)) as recording:
        assert recording.why().code == "healthy" and recording.agents


def test_a_step_that_ended_after_the_look_counts(tmp_path: Path) -> None:
    plant(tmp_path, STEPS, [*stepped(99, 1.0), {**stepped(100, 1.0)[99], "duration": 60.0}])
    noted(tmp_path, "waiting", hung=True, after_s=140)
    with probe.connect(str(tmp_path)) as recording:
        assert recording.why().code != "hung"


@pytest.mark.parametrize("code", ["stands", "gone"])
def test_a_job_that_may_just_have_ended_is_judged_by_its_steps(tmp_path: Path, code: str) -> None:
    plant(tmp_path, STEPS, stepped(100, 1.0))
    noted(tmp_path, code, hung=True, after_s=200)
    with probe.connect(str(tmp_path)) as recording:
        told = recording.why()
    assert told.code == "healthy" and [each.code for each in told.findings] == [code]


def test_a_recording_is_not_recorded(tmp_path: Path) -> None:
    plant(tmp_path, STEPS, [{"step": 1, "duration": 0.5}], 0)
    with pytest.raises(UsageError, match="is a recording, without agents: no record"):
        agents_of(str(tmp_path))
