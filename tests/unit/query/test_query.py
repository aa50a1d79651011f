"""SQL over fake agents: what a query sees, and what it says when something is wrong."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import ADAM, LINEAR, THREAD, FakeAgent

from probe import protocol as wire
from probe.client.agent_requests import Unreached
from probe.connection import Connection
from probe.errors import AgentError, QueryError, SilentError, UsageError
from probe.host import agent_memory
from probe.host.facts import Facts
from probe.streams import BARE, COLLECTIVES, ENGINE, FORWARD, LOG_GROUP, OPTIMIZER, SAMPLED, SPANS, STEPS
from probe.tables import TABLES

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]


@pytest.fixture
def trained(agent: Make) -> FakeAgent:
    """Steps 0 (in which the attach fell), 1 to 4, and an open one."""
    one = agent()
    one.name_modules()
    one.span(one.train(5), 5300)
    one.facts["step_ns"] = None
    return one


def rows(connection: Connection, sql: str, **options: Any) -> list[dict[str, Any]]:
    return connection.query(sql, **options).to_pylist()


def notes(connection: Connection, sql: str) -> list[str]:
    return [note.text for note in connection.query(sql).notes]


def test_durations_are_self_times_and_add_up(trained: FakeAgent, connected: Connect) -> None:
    got = rows(
        connected(trained),
        "SELECT module, stage, count(*) n, sum(duration) * 1e9 own, sum(total_duration) * 1e9 total "
        "FROM python.torch_trace WHERE step = 2 GROUP BY ALL ORDER BY stage, module",
    )
    assert [(r["module"], r["stage"], r["n"], round(r["own"]), round(r["total"])) for r in got] == [
        ("Model", "backward", 1, 200, 300),
        ("linear", "backward", 1, 100, 100),
        ("Model", "forward", 1, 200, 300),
        ("linear", "forward", 1, 100, 100),
        ("AdamW", "step", 1, 100, 100),
    ]


def test_micro_steps_count_the_passes_begun_before(trained: FakeAgent, connected: Connect) -> None:
    got = rows(connected(trained), "SELECT DISTINCT stage, micro_step FROM python.torch_trace ORDER BY stage")
    assert [(r["stage"], r["micro_step"]) for r in got] == [("backward", 0), ("forward", 0), ("step", 1)]


def test_the_step_of_the_attach_and_the_open_step_are_seen_on_demand_only(
    trained: FakeAgent, connected: Connect
) -> None:
    connection = connected(trained)
    sql = "SELECT DISTINCT step FROM python.torch_trace ORDER BY step"
    trained.streams["steps"].append(time.monotonic_ns(), 5, -1, 0, 0, 0, 7, SAMPLED)  # not stuck: it has just stepped
    assert [r["step"] for r in rows(connection, sql)] == [1, 2, 3, 4, 5]
    assert [r["step"] for r in rows(connection, sql, open_steps=True)] == [0, 1, 2, 3, 4, 5]


def test_a_step_that_was_not_sampled_has_no_rows_and_that_is_said(agent: Make, connected: Connect) -> None:
    one, at = agent(), 0
    one.name_modules()
    for flags in (SAMPLED, SAMPLED, 0, 0, BARE, SAMPLED, SAMPLED):
        if flags & SAMPLED:
            one.span(at, at + 300)
        one.span(at + 400, at + 700, 0, ENGINE)
        one.span(at + 800, at + 900, ADAM, OPTIMIZER)
        one.boundary(at + 890, flags=flags)
        at += 1000
    connection = connected(one)
    sql = "SELECT step, list(stage ORDER BY stage) stages FROM python.torch_trace GROUP BY 1 ORDER BY 1"
    assert rows(connection, sql) == [{"step": s, "stages": ["backward", "forward", "step"]} for s in (1, 5, 6)]
    (note,) = notes(connection, sql)
    assert note == f"3 of 6 steps were sampled; for all: probe {connection.endpoint} set sample=1"
    operations = "SELECT count(*) n FROM python.nccl_trace"
    assert rows(connection, operations) == [{"n": 0}] and notes(connection, operations) == []


def test_steps_from_before_all_were_sampled_are_said_to_be(agent: Make, connected: Connect) -> None:
    one = agent()
    one.train(3)
    one.boundary(time.monotonic_ns(), flags=0)
    one.facts["sampling"] |= {"sample": 1, "every": 1}
    connection = connected(one)
    assert notes(connection, "SELECT count(*) FROM python.torch_trace") == ["2 of 3 steps were sampled"]


def test_ranks_that_sampled_different_steps_are_told_apart(agent: Make, connected: Connect) -> None:
    made = [agent(rank, world_size=2) for rank in (0, 1)]
    for rank, one in enumerate(made):
        one.train(3)
        for flags in (0, 0 if rank else SAMPLED):
            one.boundary(time.monotonic_ns(), flags=flags)
    connection = connected(*made)
    assert notes(connection, "SELECT count(*) FROM python.torch_trace")[0].startswith(
        "2 of 4 steps were sampled on rank 1, 3 on rank 0; for all: "
    )


def test_a_connection_that_was_closed_says_so(agent: Make, connected: Connect) -> None:
    connection = connected(agent())
    connection.close()
    connection.close()
    for call in (lambda: connection.query("SELECT 1"), lambda: connection.eval("1"), connection.stacks):
        with pytest.raises(UsageError, match=r"connection is closed.*probe\.connect"):
            call()


def test_a_sampled_block_is_seen_once_it_is_whole(agent: Make, connected: Connect) -> None:
    one, at = agent(), time.monotonic_ns()  # not stuck: the last step ends later than now
    one.name_modules()
    one.facts["sampling"]["every"] = 2
    connection = connected(one)
    sql = "SELECT max(step) AS last, count(DISTINCT step) n FROM python.torch_trace"
    open_sql = "SELECT max(step) AS last FROM python.torch_trace"
    for step in range(36):
        flags = SAMPLED if step // 10 % 2 == 0 else 0
        one.span(at, at + 300)
        one.span(at + 800, at + 900, ADAM, OPTIMIZER)
        one.boundary(at + 890, flags=flags)
        at += 10**12
        if step in (5, 9, 12):  # 0 is the step of the attach; nothing lies unsampled before it
            assert rows(connection, sql) == [{"last": min(step, 9), "n": min(step, 9)}]
        if step in (20, 25, 28):
            assert rows(connection, sql) == [{"last": 9, "n": 9}]
            assert rows(connection, open_sql, open_steps=True) == [{"last": step}]
        if step in (29, 35):
            assert rows(connection, sql) == [{"last": 29, "n": 19}]


def test_every_declared_column_can_be_selected(trained: FakeAgent, connected: Connect) -> None:
    from probe.tables import TABLES

    connection = connected(trained)
    for table in TABLES:
        described = rows(connection, f"DESCRIBE {table.name}")
        assert {r["column_name"]: r["column_type"] for r in described} == {c.name: c.type for c in table.columns}
        result = connection.query(
            ", ".join(f'"{c.name}"' for c in table.columns).join(("SELECT ", f" FROM {table.name}"))
        )
        never_null = [c.name for c in table.columns if not c.null]
        assert [name for name in never_null if result.column(name).null_count] == [], table.name


@pytest.mark.parametrize("lap", [1, 2])  # of the ring: in the second, a place that is claimed holds an old row
def test_a_row_whose_writer_was_preempted_appears_later_and_once(agent: Make, connected: Connect, lap: int) -> None:
    one = agent()
    one.name_modules()
    connection, spans = connected(one), one.streams[SPANS]
    for at in range(0, 10 * (spans.capacity * (lap - 1) + 3), 10):
        one.span(at, at + 5)
    offset, seq = spans.claim()  # and here its thread loses its core
    late = at + 10
    one.span(late + 10, late + 15)
    sql = "SELECT start_ns FROM python.torch_trace ORDER BY start_ns DESC LIMIT 3"
    kept = (spans.capacity if lap > 1 else 5) - 1

    def seen() -> tuple[int, list[int]]:
        (row,) = rows(connection, "SELECT count(*) n FROM python.torch_trace", open_steps=True)
        return row["n"], [row["start_ns"] for row in rows(connection, sql, open_steps=True)]

    assert seen() == (kept, [late + 10, late - 10, late - 20])
    spans.pack_into(spans.buffer, offset, late, late + 5, LINEAR, THREAD, FORWARD, seq)
    assert seen() == seen() == (kept + 1, [late + 10, late, late - 10])


def test_streams_are_fetched_once_a_query(trained: FakeAgent, connected: Connect) -> None:
    connection = connected(trained)
    trained.requests.clear()
    connection.query(
        "SELECT * FROM python.torch_trace a JOIN python.torch_trace b USING (step) "
        "WHERE step > (SELECT max(step) - 2 FROM python.torch_trace)"
    )
    scans = [request["stream"] for request in trained.requests if request["kind"] == "scan"]
    assert sorted(scans) == ["marks", "spans", "steps"]
    assert [request["kind"] for request in trained.requests].count("snapshot") == 1


def test_more_rows_than_the_credit_for_one_request(agent: Make, connected: Connect) -> None:
    one = agent(anchor=None)
    for at in range(20_000):
        one.span(at * 10, at * 10 + 5)
    one.name_modules()
    assert rows(connected(one), "SELECT count(*) n, max(step) s FROM python.torch_trace")[0] == {
        "n": 20_000,
        "s": 19_999,
    }


def test_all_ranks_are_one_table(agent: Make, connected: Connect) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.name_modules()
        one.train(5, group_seq=0)
    sql = "SELECT rank, count(*) n FROM python.torch_trace WHERE stage = 'forward' GROUP BY rank ORDER BY rank"
    connection = connected(*ranks)
    assert rows(connection, sql) == [{"rank": 0, "n": 8}, {"rank": 1, "n": 8}]
    assert notes(connection, sql) == []


def test_stacks_of_all_ranks_are_a_table(agent: Make, connected: Connect) -> None:
    connection = connected(agent(0), agent(1))
    sql = "SELECT rank, thread_name, file FROM python.stack WHERE is_main AND depth = 0 ORDER BY rank"
    found = rows(connection, sql)
    assert [(row["rank"], row["thread_name"]) for row in found] == [(0, "MainThread"), (1, "MainThread")]


def test_an_agent_that_does_not_know_a_request_says_so(agent: Make, connected: Connect) -> None:
    one = agent()
    del one.server.handlers[wire.MEMORY]
    with pytest.raises(AgentError, match=r"unknown request 'memory'.*probe attach"):
        connected(one).query("SELECT * FROM python.stack")


def test_a_silent_rank_is_named_and_does_not_hold_up_the_others(agent: Make, connected: Connect) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.train(3, group_seq=0)
    connection = connected(*ranks, timeout=2)
    ranks[1].deaf.add("snapshot")
    begun = time.monotonic()
    result = connection.query("SELECT DISTINCT rank FROM python.torch_trace")
    assert result.to_pylist() == [{"rank": 0}] and time.monotonic() - begun < 4
    assert re.fullmatch(r"answered 1/2 ranks in \d\.\d s, silent: 1", *map(str, result.notes))
    assert [(note.code, note.ranks) for note in result.notes] == [("silent", (1,))]
    agents = rows(connection, "SELECT rank, state FROM probe.agents ORDER BY rank")
    assert agents == [{"rank": 0, "state": "answers"}, {"rank": 1, "state": "silent"}]


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_that_falls_silent_on_the_way_is_left_out_whole(agent: Make, connected: Connect, silent: int) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.train(3, group_seq=0)
    connection = connected(*ranks, timeout=1.0)
    ranks[silent].deaf.add("scan")
    result = connection.query("SELECT DISTINCT rank FROM python.torch_trace")
    assert result.to_pylist() == [{"rank": 1 - silent}]
    assert re.fullmatch(rf"answered 1/2 ranks in \d\.\d s, silent: {silent}", *map(str, result.notes))


@pytest.mark.parametrize("silent", [0, 1])
@pytest.mark.parametrize("stream", [COLLECTIVES, STEPS, SPANS])
def test_tables_of_all_ranks_go_without_one_that_falls_silent_on_the_way(
    agent: Make, connected: Connect, stream: str, silent: int
) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.name_modules()
        one.put(LOG_GROUP, 1, name="0", backend="gloo", size=2, rank=one.rank, ranks=[0, 1])
        one.train(3, group_seq=0)
        one.operate(1100, 1110, 1200)
    ranks[silent].deaf.add(stream)
    for table, asked in (("overhead", "rank"), ("collectives", "unnest(arrived)")):
        found = rows(connected(*ranks, timeout=0.5), f"SELECT DISTINCT {asked} AS rank FROM probe.{table}")
        reads = table == "collectives" or stream != COLLECTIVES
        assert sorted(row["rank"] for row in found) == ([1 - silent] if reads else [0, 1])


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_whose_calls_cannot_be_counted_any_more_is_silent_and_the_others_are_not(
    agent: Make, connected: Connect, silent: int
) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.span(0, 100)
    connection = connected(*ranks, timeout=0.5)
    ranks[silent].deaf.add(SPANS)
    found = rows(connection, "SELECT rank, state FROM probe.agents ORDER BY rank")
    states = ["answers", "answers"]
    states[silent] = "silent"
    assert [row["state"] for row in found] == states


def test_tensors_are_told_of_the_step_that_the_rank_is_in(agent: Make, connected: Connect) -> None:
    one = agent(step_base=100)
    one.train(3)
    connection = connected(one)
    (running,), (looked_at,) = (
        rows(connection, f"SELECT DISTINCT step FROM {table}") for table in ("probe.agents", "python.tensor_trace")
    )
    assert looked_at == running == {"step": 103}


def test_tensors_of_a_server_are_told_of_the_call_that_comes_next(agent: Make, connected: Connect) -> None:
    one = agent()
    one.name_modules()
    begin = time.monotonic_ns() - 10**10
    for call in range(5):
        one.span(begin + call * 10**9, begin + call * 10**9 + 10**8)
    connection = connected(one)
    (running,), (looked_at,) = (
        rows(connection, f"SELECT DISTINCT step FROM {table}") for table in ("probe.agents", "python.tensor_trace")
    )
    assert looked_at == running == {"step": 5}


def test_storages_that_an_agent_does_not_list_are_told(
    agent: Make, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    reply = ranks[1].server.reply
    left = {"left_storages": 1200, "left_bytes": {"cpu": 10**6, "cuda:0": 500_000}}

    def tell(key: Any, kind: str, **said: Any) -> None:
        reply(key, kind, **(said | left if kind == wire.LISTED else said))

    monkeypatch.setattr(ranks[1].server, "reply", tell)
    connection = connected(*ranks)
    (note,) = connection.query("SELECT SUM(bytes) FROM python.tensor_trace").notes
    assert (note.code, note.ranks) == ("unlisted", (1,))
    assert note.text == (
        f"rank 1: without the 1,200 smallest storages, 1.5 MB in all: probe {connection.endpoint} memory"
    )
    assert notes(connection, "SELECT rank FROM probe.agents") == []


def test_nobody_answers(agent: Make, connected: Connect) -> None:
    one = agent()
    one.deaf.add("hello")
    with pytest.raises(SilentError, match=r"Rank 0 .* does not answer"):
        connected(one, timeout=1.0)


def test_a_refused_handshake_is_told_within_a_second(agent: Make, connected: Connect) -> None:
    one = agent()
    one.server.connections._uids = {54321}  # without root, who runs the tests perhaps
    begun = time.monotonic()
    with pytest.raises(AgentError, match="belongs to another user"):
        connected(one, timeout=10)
    assert time.monotonic() - begun < 5


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is let in everywhere")
def test_root_is_let_in_whoever_attached(agent: Make, connected: Connect) -> None:
    assert connected(agent(uid=54321)).query("SELECT rank FROM probe.agents").to_pylist() == [{"rank": 0}]


def test_another_protocol(agent: Make, connected: Connect) -> None:
    with pytest.raises(AgentError, match="protocol 99") as caught:
        connected(agent(protocol=99))
    assert caught.value.code == "protocol"


def test_wrong_sql_shows_duckdbs_message_with_its_caret(trained: FakeAgent, connected: Connect) -> None:
    with pytest.raises(QueryError) as caught:
        connected(trained).query("SELEC 1")
    assert caught.value.code == "query" and "^" in caught.value.message


def test_show_tables_lists_the_tables_and_nothing_of_ours(trained: FakeAgent, connected: Connect) -> None:
    connection = connected(trained)
    assert {row["name"] for row in rows(connection, "SHOW TABLES")} == {table.short_name for table in TABLES}
    named = rows(connection, "SELECT table_schema || '.' || table_name AS name FROM information_schema.tables")
    assert {row["name"] for row in named} == {table.name for table in TABLES}


def test_a_schema_need_not_be_written(trained: FakeAgent, connected: Connect) -> None:
    connection = connected(trained)
    (whole,), (short,) = (rows(connection, f"SELECT count(*) n FROM {name}") for name in ("probe.agents", "agents"))
    assert whole == short == {"n": 1}


@pytest.mark.parametrize("sql", ["-- what was it?", "/* nothing */ ;"])
def test_a_comment_is_no_statement(trained: FakeAgent, connected: Connect, sql: str) -> None:
    with pytest.raises(QueryError, match="no statement"):
        connected(trained).query(sql)


def test_of_several_statements_the_last_ones_result_is_shown(trained: FakeAgent, connected: Connect) -> None:
    assert rows(connected(trained), "SET threads = 1; SELECT count(*) n FROM probe.agents") == [{"n": 1}]


def test_an_unknown_table_is_answered_by_the_nearest(trained: FakeAgent, connected: Connect) -> None:
    with pytest.raises(QueryError) as caught:
        connected(trained).query("SELECT * FROM python.torch_tarce")
    assert (caught.value.code, caught.value.hint) == ("unknown-table", "Did you mean python.torch_trace?")
    with pytest.raises(QueryError) as caught:
        connected(trained).query("SELECT * FROM quux")
    assert caught.value.code == "unknown-table" and "python.torch_trace" in caught.value.hint


def test_an_unknown_column_is_answered_by_the_nearest(trained: FakeAgent, connected: Connect) -> None:
    for sql in ("SELECT durations FROM python.torch_trace", "SELECT t.durations FROM python.torch_trace t"):
        with pytest.raises(QueryError) as caught:
            connected(trained).query(sql)
        assert caught.value.code == "unknown-column" and "Did you mean duration?" in caught.value.hint
        assert "^" in caught.value.message


def test_a_message_speaks_of_the_users_text_not_of_the_folded_one(trained: FakeAgent, connected: Connect) -> None:
    sql = "SELECT nonsense FROM python.torch_trace WHERE step > (SELECT max(step) - 1 FROM python.torch_trace)"
    with pytest.raises(QueryError, match="SELECT max"):
        connected(trained).query(sql)


def test_a_tap_that_is_off_is_told_with_the_result(agent: Make, connected: Connect) -> None:
    one = agent(taps={"forward": "off: torch is not imported here"})
    connection = connected(one)
    assert rows(connection, "SELECT * FROM python.torch_trace") == []
    assert notes(connection, "SELECT * FROM python.torch_trace") == [
        "rank 0: forward is off: torch is not imported here"
    ]


def test_a_job_without_a_process_group_lacks_no_collectives(agent: Make, connected: Connect) -> None:
    connection = connected(agent(taps={"collectives": wire.NO_GROUP}))
    assert notes(connection, "SELECT * FROM python.torch_trace") == []
    assert notes(connection, "SELECT * FROM python.nccl_trace") == [f"rank 0: collectives is {wire.NO_GROUP}"]


def test_an_empty_table_of_the_whole_job_is_explained_too(agent: Make, connected: Connect) -> None:
    sql = "SELECT * FROM probe.collectives"
    assert notes(connected(agent(taps={"collectives": "off"})), sql) == ["rank 0: collectives is off"]
    assert notes(connected(agent(step_ends="")), sql)[0].startswith("rank 0: no whole step since the attach yet")
    assert notes(connected(agent(step_ends="")), "SELECT * FROM probe.agents") == []


def test_detach_says_what_stays(agent: Make, connected: Connect) -> None:
    assert connected(agent(3)).detach() == ["rank 3: a callback"]


def test_ranks_that_set_and_detach_do_not_come_to_are_named(agent: Make, connected: Connect) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    ranks[1].deaf.add("hello")
    connection = connected(*ranks, timeout=1.0)
    pid = os.getpid()
    unreached = [Unreached(1, pid, "", f"Rank 1 (pid {pid}) does not answer")]
    assert [each["rank"] for each in connection.set(sample=5)] == [0]
    assert connection.unreached == unreached and unreached[0].why in connection.notes
    assert connection.detach() == ["rank 0: a callback"]
    assert connection.unreached == unreached


def test_a_rank_that_falls_silent_before_it_is_set_is_named(agent: Make, connected: Connect) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    connection = connected(*ranks, timeout=1.0)
    ranks[1].deaf.add("set")
    assert [each["rank"] for each in connection.set(sample=5)] == [0]
    assert [each.why[:8] for each in connection.unreached] == ["Rank 1 ("]
    ranks[1].deaf.clear()
    assert [each["rank"] for each in connection.set(sample=5)] == [0, 1]
    assert connection.unreached == []


def test_a_query_that_too_few_ranks_answer_fails_and_names_the_silent_ones(agent: Make, connected: Connect) -> None:
    ranks = [agent(rank, world_size=3) for rank in range(3)]
    connection = connected(*ranks, timeout=1.0)
    ranks[1].deaf.add("snapshot")
    assert len(rows(connection, "SELECT 1 FROM probe.agents WHERE state = 'answers'", min_ranks=2)) == 2
    with pytest.raises(SilentError, match=r"Fewer than 3 ranks: answered 2/3 ranks in .* s, silent: 1\.") as caught:
        connection.query("SELECT 1", min_ranks=3)
    assert caught.value.exit_status == 8


def silence(one: FakeAgent, connected: Connect, monkeypatch: pytest.MonkeyPatch, trouble: str) -> SilentError:
    """Of an agent that does not answer, and has this trouble."""
    connection = connected(one, timeout=1.0)
    one.deaf.add("set")
    monkeypatch.setattr(agent_memory, "facts", lambda pid: Facts.parse(one.facts | {"trouble": trouble}))
    with pytest.raises(SilentError) as caught:
        connection.set(sample=5)
    return caught.value


def test_an_agent_without_room_for_readers_is_reported_with_the_remedy(
    agent: Make, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = silence(agent(), connected, monkeypatch, "no new reader can connect: Too many open files")
    assert re.search("does not answer: no new reader can connect: Too many open files", str(error))
    assert "prlimit --nofile=4096" in error.hint


def test_what_does_not_keep_an_agent_from_answering_is_no_reason_for_its_silence(
    agent: Make, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = "the log is full: 7 records, such as names of new modules, are missing"
    error = silence(agent(), connected, monkeypatch, trouble)
    assert re.search(r"does not answer\.$", str(error)) and "prlimit" not in error.hint


def test_a_query_for_more_ranks_than_there_are_says_how_many_there_are(agent: Make, connected: Connect) -> None:
    connection = connected(agent(0, world_size=2), agent(1, world_size=2))
    with pytest.raises(SilentError, match=r"has 2 ranks, not 3\."):
        connection.query("SELECT 1", min_ranks=3)


def test_ranks_that_fall_silent_on_the_way_count_too(agent: Make, connected: Connect) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.train(3, group_seq=0)
    connection = connected(*ranks, timeout=1.0)
    ranks[1].deaf.add("scan")
    with pytest.raises(SilentError, match=r"Fewer than 2 ranks"):
        connection.query("SELECT * FROM python.torch_trace", min_ranks=2)


def test_the_steps_are_aligned_once_for_a_connection_and_its_first_query(agent: Make, connected: Connect) -> None:
    ranks = [agent(rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.train(3, group_seq=0)
    connected(*ranks).query("SELECT 1")
    assert [request["kind"] for request in ranks[0].requests].count("scan") == 1


@pytest.mark.parametrize(
    ("sql", "meant"),
    [
        ("SELECT * FROM python.compile_trac", ["python.compile_trace"]),
        ("SELECT * FROM pyhton.compile_trac", ["python.compile_trace"]),
        ("SELECT * FROM probe.agent", ["probe.agents"]),
        ("SELECT * FROM pg_clas", []),
        ("SELECT 1::DOUBEL", []),
        ("SELECT quantile_contt(rank, 0.5) FROM probe.agents", []),
        ("PRAGMA table_inof('x')", []),
    ],
)
def test_names_of_ours_alone_are_proposed(trained: FakeAgent, connected: Connect, sql: str, meant: list[str]) -> None:
    with pytest.raises(QueryError) as caught:
        connected(trained).query(sql)
    assert re.findall(r"Did you mean (.*?)\?", str(caught.value)) == meant
