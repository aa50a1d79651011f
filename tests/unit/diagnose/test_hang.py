"""Verdicts out of evidence made by hand; what really happens is in tests/integration/test_hang.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.diagnose.hang.evidence import Evidence, RankEvidence
from probe.diagnose.hang.pauses import Pauses
from probe.diagnose.hang.report import does, plural
from probe.diagnose.verdict import judge
from probe.snapshot.flight_recorder import Entry, Pending
from probe.snapshot.stacks import Frame, Thread

NOW = 1_000_000_000_000
STEP = 50_000_000  # ns
GROUPS = {"0": [0, 1]}


def stack(*frames: tuple[str, str]) -> list[Thread]:
    return [Thread(1, 1, "MainThread", True, tuple(Frame(file, 7, function) for file, function in frames))]


LOADING = stack(("selectors.py", "select"), ("/x/site-packages/torch/utils/data/dataloader.py", "_get_data"))


def issued(last: int, ago_s: float, ended: bool, kind: str = "all_reduce", group: str = "0") -> list[Entry]:
    at = NOW - int(ago_s * 1e9)
    before = [
        Entry(group, n, "all_reduce", "", "", at - (last - n) * STEP, True) for n in range(max(1, last - 20), last)
    ]
    return [*before, Entry(group, last, kind, "", "", at, ended)]


def rank(number: int, **fields: Any) -> RankEvidence:
    fields = {"steps": 20, "step_age_s": 30.0, "usual_step_s": 0.05, "threads": stack(("train.py", "main"))} | fields
    return RankEvidence(
        number, 4000 + number, fields.pop("condition", "answers"), running=fields.pop("running", 0.0), **fields
    )


def verdict(*ranks: RankEvidence, absent: tuple[int, ...] = (), endpoint: str = "3999") -> Any:
    return judge(Evidence(endpoint, ranks, absent, GROUPS, NOW, 1.0))


def test_a_rank_that_has_not_arrived_is_reported() -> None:
    report = verdict(
        rank(0, entries=issued(30, 30, False)),
        rank(1, entries=issued(29, 30, True), threads=stack(("threading.py", "wait"), ("train.py", "validate"))),
    )
    assert (report.code, report.ranks, report.hung) == ("waiting", (1,), True)
    assert report.verdict == "Waiting for rank 1, which is blocked in validate (train.py:7), in wait."
    assert report.why[0] == "all_reduce number 30 of group 0 has been in flight on rank 0 for 30.0 s; missing: 1"
    assert report.next == ["probe 3999 stack"]


def test_ranks_whose_collectives_are_not_recorded_are_reported() -> None:
    report = verdict(rank(0, left_alone="why"), rank(1, left_alone="why"), rank(2))
    assert (report.code, report.why[0]) == ("stands", "the collectives of ranks 0-1 are not known: why")


def test_ranks_that_do_the_same_share_a_line_and_a_stack() -> None:
    late = {"entries": issued(29, 30, True), "threads": stack(("threading.py", "wait"), ("train.py", "validate"))}
    waiting = [rank(number, entries=issued(30, 30, False), step_age_s=30.0 + number) for number in (0, 1)]
    evidence = Evidence("3999", [*waiting, rank(2, **late), rank(3, **late)], (), {"0": [0, 1, 2, 3]}, NOW, 1.0)
    report = judge(replace(evidence, machines=["host a: 9 % of its cores busy"]))
    assert report.verdict == "Waiting for ranks 2-3, which are blocked in validate (train.py:7), in wait."
    assert report.why[1:] == [
        "ranks 0-1 are blocked in main (train.py:7), step 20 ended 30.0 s to 31.0 s ago (usually every 50 ms)",
        "ranks 2-3 are blocked in validate (train.py:7), in wait, step 20 ended 30.0 s ago (usually every 50 ms)",
        "host a: 9 % of its cores busy",
    ]
    told = ["ranks 0-1:", "  main (train.py:7)", "ranks 2-3:", "  wait (threading.py:7)", "  validate (train.py:7)"]
    assert report.stacks == told


def test_late_ranks_that_do_different_things_are_listed_separately() -> None:
    waits = rank(0, entries=issued(30, 30, False))
    late = [rank(number, entries=issued(29, 30, True), running=float(number == 2)) for number in (1, 2)]
    report = judge(Evidence("3999", [waits, *late], (), {"0": [0, 1, 2]}, NOW, 1.0))
    here = "in main (train.py:7)"
    assert report.verdict == f"Waiting for ranks 1-2: rank 1 is blocked {here}; rank 2 is running {here}."


def test_a_long_stack_is_cut() -> None:
    deep = stack(*((f"{depth}.py", "call") for depth in range(20)))
    report = verdict(rank(0, entries=issued(30, 30, False)), rank(1, entries=issued(29, 30, True), threads=deep))
    assert report.stacks[-2:] == ["  call (7.py:7)", "  … 12 more"]


def test_the_report_on_a_healthy_job_has_no_stacks() -> None:
    assert verdict(rank(0, step_age_s=0.1)).stacks == []


@pytest.mark.parametrize(
    ("one", "several"),
    [
        ("is blocked in has_is (a.py:1), in does", "are blocked in has_is (a.py:1), in does"),
        (
            "does not answer and is computing: it may hold the GIL in C",
            "do not answer and are computing: they may hold the GIL in C",
        ),
        ("is not attached and is asleep", "are not attached and are asleep"),
        ("has no main thread in Python", "have no main thread in Python"),
    ],
)
def test_a_sentence_about_several_ranks_is_in_the_plural(one: str, several: str) -> None:
    assert plural(one) == several


def test_a_rank_that_computes_is_reported_as_running() -> None:
    report = verdict(rank(0, entries=issued(30, 30, False)), rank(1, entries=issued(29, 30, True), running=1.0))
    assert (report.code, report.hung, report.ranks) == ("slow", False, (1,))
    told = "Slow, but alive: rank 1 is running in main (train.py:7); the others wait. No step has ended for 30.0 s."
    assert report.verdict == told and report.stacks and report.next == ["probe 3999 stack"]


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({"running": 1.0}, "running"),
        ({"moved": True}, "running"),
        ({"moved_bytes": 50 << 20}, "reading or writing"),
        ({"below": 0.9}, "waiting for child processes"),
        ({"rows": 12}, "blocked"),  # it sleeps between two calls
        ({}, "blocked"),
    ],
)
def test_what_a_rank_does_is_told_by_what_was_seen(seen: dict[str, Any], told: str) -> None:
    assert does(rank(0, **seen)) == f"is {told} in main (train.py:7)"


def test_a_silent_rank_is_inspected_from_outside() -> None:
    for running, code, told in (
        (0.0, "waiting", "Waiting for rank 1, which does not answer and is asleep."),
        (1.0, "slow", "rank 1 does not answer and is computing: it may hold the GIL in C; the others wait."),
    ):
        silent = RankEvidence(1, 4001, "silent", running=running)
        report = verdict(rank(0, entries=issued(30, 30, False)), silent)
        assert report.code == code and told in report.verdict
        assert report.next == ["py-spy dump --pid 4001", "probe 3999 stack"]


def test_a_rank_that_is_gone_or_stopped_is_reported_first() -> None:
    assert verdict(rank(0, entries=issued(30, 30, False)), absent=(1,)).code == "gone"
    assert verdict(rank(0), RankEvidence(1, 4001, "ended")).ranks == (1,)
    ended = verdict(*(RankEvidence(rank, 4000 + rank, "ended") for rank in (0, 1)))
    assert (ended.code, ended.verdict, ended.hung, ended.next) == ("ended", "Ranks 0-1 have ended.", False, [])
    report = verdict(rank(0, entries=issued(30, 30, False)), RankEvidence(1, 4001, "stopped"))
    assert (report.code, report.next) == ("stopped", ["kill -CONT 4001"])


def test_collectives_that_do_not_match_are_reported() -> None:
    report = verdict(rank(0, entries=issued(30, 30, False)), rank(1, entries=issued(30, 30, False, "barrier")))
    assert report.code == "mismatch" and "all_reduce on rank 0, barrier on rank 1" in report.verdict


def between(kind: str, waiting: int, *missing: int) -> Pending:
    return Pending("0", -1, kind, (0, 1), (waiting,), (waiting,), missing, (), "", NOW - 30 * 10**9)


def test_a_rank_that_has_not_sent_is_reported() -> None:
    waits = [between("recv from rank 1", 0, 1)]
    report = judge(Evidence("3999", [rank(0), rank(1)], (), GROUPS, NOW, 1.0, waits))
    assert (report.code, report.ranks) == ("waiting", (1,))
    assert report.why[0] == "recv from rank 1 in group 0 has been in flight on rank 0 for 30.0 s; missing: 1"


def test_two_ranks_that_both_receive_are_a_deadlock() -> None:
    waits = [between("recv from rank 1", 0, 1), between("recv from rank 0", 1, 0)]
    report = judge(Evidence("3999", [rank(0), rank(1)], (), GROUPS, NOW, 1.0, waits))
    assert (report.code, report.verdict) == ("deadlock", "Ranks 0-1 wait for each other: all in recv.")


def test_groups_used_in_different_orders_are_a_deadlock() -> None:
    one, other = issued(3, 30, False, group="a"), issued(3, 30, False, group="b")
    known = Evidence("3999", [rank(0, entries=one), rank(1, entries=other)], (), {"a": [0, 1], "b": [0, 1]}, NOW, 1.0)
    report = judge(known)
    assert (report.code, report.ranks) == ("deadlock", (0, 1)) and "groups a, b" in report.verdict


def test_a_rank_in_its_data_loader_is_reported() -> None:
    report = verdict(rank(0, threads=LOADING, workers=["child process 5 has ended"]))
    assert report.code == "loader" and report.why[0] == "rank 0: child process 5 has ended"


@pytest.mark.parametrize(
    ("attached_s", "seen", "code"),
    [(1.0, {"below": 1.0}, "unknown"), (60.0, {"below": 1.0}, "unknown"), (60.0, {"moved_bytes": 50 << 20}, "unknown"),
     (1.0, {}, "unknown"), (60.0, {}, "loader")],
)  # fmt: skip
def test_a_first_batch_that_is_made_or_may_be_is_not_hung(attached_s: float, seen: dict[str, Any], code: str) -> None:
    never = {"step_age_s": None, "usual_step_s": None, "attached_s": attached_s, "threads": LOADING}
    for report in (verdict(rank(0, **never, **seen)), verdict(*(rank(each, **never, **seen) for each in (0, 1)))):
        assert (report.code, report.hung) == (code, code == "loader")


def test_a_rank_in_its_loader_that_is_not_attached_is_reported_without_steps() -> None:
    never = {"step_age_s": None, "usual_step_s": None, "threads": LOADING}
    assert verdict(rank(0, **never, condition="unattached")).code == "loader"


def test_a_collective_that_all_have_reached_and_does_not_end_is_reported() -> None:
    report = verdict(rank(0, entries=issued(30, 30, False)), rank(1, entries=issued(30, 30, False)))
    assert report.code == "collective"


def test_a_device_that_has_not_come_to_a_collective_is_reported() -> None:
    waits, queued = issued(30, 30, False), issued(30, 30, False)
    queued[-1] = replace(queued[-1], queued=True)
    spins = {"running": 1.0, "on_device": True}
    report = verdict(rank(0, entries=waits, **spins), rank(1, entries=queued, **spins))
    assert (report.code, report.ranks) == ("device", (1,))
    assert report.verdict.startswith("The device of rank 1 has not come to all_reduce number 30 of group 0:")
    alone = verdict(rank(0, entries=[replace(each, group="alone") for each in queued], **spins))
    assert (alone.code, alone.ranks) == ("device", (0,))
    late = verdict(rank(0, entries=queued, **spins), rank(1, entries=issued(29, 30, True)))
    assert (late.code, late.ranks) == ("waiting", (1,)), "a rank that has not issued it comes first"


@pytest.mark.parametrize(
    ("does", "code"),
    [
        ({}, "stands"),
        ({"running": 1.0}, "slow"),
        ({"moved": True}, "slow"),
        ({"below": 0.9}, "slow"),
        ({"below": 0.1, "moved_bytes": 1000}, "stands"),
        ({"moved_bytes": 50 << 20}, "slow"),
        ({"running": 1.0, "on_device": True}, "stands"),  # it may wait for the device
        ({"running": 1.0, "on_device": True, "moved": True}, "slow"),
    ],
)
def test_a_single_process_is_hung_if_it_neither_computes_nor_moves(does: dict[str, Any], code: str) -> None:
    report = verdict(rank(0, **does), endpoint="4000")
    assert (report.code, report.hung) == (code, code == "stands")


@pytest.mark.parametrize("does", [{"running": 1.0}, {"below": 0.9}, {"moved": True}])
@pytest.mark.parametrize("since", [{}, {"step_age_s": None, "usual_step_s": None, "attached_s": 60.0}])
def test_a_rank_that_compiles_is_not_hung(does: dict[str, Any], since: dict[str, Any]) -> None:
    compiler = ("/x/site-packages/torch/_dynamo/convert_frame.py", "_compile")
    threads = stack(("/x/site-packages/torch/_inductor/async_compile.py", "wait"), compiler, ("train.py", "main"))
    report = verdict(rank(0, threads=threads, **does, **since), endpoint="4000")
    assert (report.code, report.hung) == ("compiling", False)
    assert report.verdict == "Not hung: rank 0 is compiling in main (train.py:7), in wait."
    late = rank(1, entries=issued(29, 30, True), threads=threads, **does, **since)
    report = verdict(rank(0, entries=issued(30, 30, False)), late)
    assert (report.code, report.ranks) == ("compiling", (1,))


def test_a_compiler_in_which_nothing_moves_hangs() -> None:
    threads = stack(("/x/site-packages/torch/_inductor/async_compile.py", "wait"), ("train.py", "main"))
    assert verdict(rank(0, threads=threads), endpoint="4000").code == "stands"
    late = rank(1, entries=issued(29, 30, True), threads=threads)
    assert verdict(rank(0, entries=issued(30, 30, False)), late).code == "waiting"


@pytest.mark.parametrize("outer", [("socketserver.py", "serve_forever"), ("asyncio/base_events.py", "_run_once")])
def test_a_server_that_waits_for_requests_is_idle(outer: tuple[str, str]) -> None:
    outer = f"/usr/lib/python3.11/{outer[0]}", outer[1]
    waits = stack(("/usr/lib/python3.11/selectors.py", "select"), outer, ("serve.py", "main"))
    never = {"step_age_s": None, "usual_step_s": None, "attached_s": 60.0}
    for since in ({}, never):
        report = verdict(rank(0, threads=waits, **since), endpoint="4000")
        assert (report.code, report.hung) == ("idle", False) and "rank 0 is waiting in " in report.verdict
    communicates = stack(("selectors.py", "select"), ("subprocess.py", "communicate"), ("train.py", "main"))
    assert verdict(rank(0, threads=communicates), endpoint="4000").code == "stands"
    late = rank(1, entries=issued(29, 30, True), threads=waits)
    assert verdict(rank(0, entries=issued(30, 30, False)), late).code == "waiting"


@pytest.mark.parametrize(
    ("function", "outer", "code"),
    [
        ("readinto", [("/usr/lib/python3.11/http/client.py", "_read_status")], "stands"),
        ("readinto", [("/x/site-packages/redis/_parsers/socket.py", "_read_from_socket")], "stands"),
        ("readinto", [], "stands"),
        ("accept", [], "idle"),
        ("readinto", [("/usr/lib/python3.11/http/server.py", "handle_one_request")], "idle"),
        ("readinto", [("/usr/lib/python3.11/socketserver.py", "handle")], "idle"),
    ],
)
def test_who_waits_for_an_answer_is_no_idle_server(function: str, outer: list[tuple[str, str]], code: str) -> None:
    threads = stack(("/usr/lib/python3.11/socket.py", function), *outer, ("train.py", "main"))
    report = verdict(rank(0, threads=threads), endpoint="4000")
    assert (report.code, report.hung) == (code, code == "stands")


@pytest.mark.parametrize("client", ["requests/adapters.py", "urllib3/connection.py", "httpx/_client.py"])
def test_who_waits_for_an_answer_with_a_timeout_is_no_idle_server_either(client: str) -> None:
    threads = stack(("/usr/lib/python3.11/selectors.py", "select"), (f"/x/site-packages/{client}", "send"))
    assert verdict(rank(0, threads=threads), endpoint="4000").code == "stands"


NEVER = {"step_age_s": None, "usual_step_s": None, "attached_s": 60.0}


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (NEVER, "idle"),
        ({}, "stands"),  # it had steps before
        (NEVER | {"entries": issued(3, 30, True)}, "stands"),  # and collectives
        (NEVER | {"sleeps": False}, "stands"),
        (NEVER | {"attached_s": 1.0}, "unknown"),
    ],
)
def test_who_sleeps_and_never_took_a_step_is_idle(seen: dict[str, Any], code: str) -> None:
    report = verdict(rank(0, **{"sleeps": True, **seen}), endpoint="4000")
    assert (report.code, report.hung) == (code, code == "stands")


def test_all_ranks_sleep_where_the_job_is_idle() -> None:
    asleep = [rank(number, sleeps=True, **NEVER) for number in (0, 1)]
    report = verdict(*asleep)
    told = "are asleep, or wait for input, in main (train.py:7); no step and no collective has been seen."
    assert (report.code, report.verdict) == ("idle", f"Idle: ranks 0-1 {told}")
    assert verdict(asleep[0], rank(1, **NEVER)).code == "stands"


def test_who_computes_all_the_time_and_never_took_a_step_does_not_poll() -> None:
    report = verdict(rank(0, running=0.8, work_s=0.2, **NEVER), endpoint="4000")
    told = "Unknown: no step and no collective has been seen yet; rank 0 is running in main (train.py:7)."
    assert (report.code, report.verdict) == ("unknown", told)
    report = verdict(rank(0, condition="silent", running=0.8, work_s=0.2, **NEVER), endpoint="4000")
    assert report.code == "unclear" and not report.hung  # it may hold the GIL, and compute


def test_ranks_that_wait_for_one_that_reads_a_checkpoint_are_not_hung() -> None:
    reads = rank(1, entries=issued(29, 30, True), moved_bytes=100 << 20)
    report = verdict(rank(0, entries=issued(30, 30, False)), reads)
    assert (report.code, report.ranks) == ("slow", (1,))


def test_where_one_of_two_late_ranks_stands_the_job_hangs() -> None:
    late = [rank(number, entries=issued(29, 30, True), running=float(number == 2)) for number in (1, 2)]
    report = judge(Evidence("3999", [rank(0, entries=issued(30, 30, False)), *late], (), {"0": [0, 1, 2]}, NOW, 1.0))
    assert (report.code, report.hung) == ("waiting", True)


@pytest.mark.parametrize(
    ("attached_s", "running", "code"), [(1.0, 0.0, "unknown"), (60.0, 1.0, "unknown"), (60.0, 0.0, "stands")]
)
def test_a_process_without_any_step_yet_is_unknown(attached_s: float, running: float, code: str) -> None:
    never = {"step_age_s": None, "usual_step_s": None, "attached_s": attached_s}
    report = verdict(rank(0, running=running, **never), endpoint="4000")
    assert (report.code, report.hung) == (code, code == "stands")


@pytest.mark.parametrize(
    ("running", "work_s", "code"),
    [(0.09, 1e-3, "unclear"), (0.03, 40e-6, "stands"), (0.01, 5e-3, "stands"), (0.03, None, "stands")],
)
def test_of_a_thread_that_works_each_time_it_wakes_nobody_knows_whether_it_computes_or_polls(
    running: float, work_s: float | None, code: str
) -> None:
    report = verdict(rank(0, running=running, work_s=work_s), endpoint="4000")
    assert (report.code, report.hung) == (code, code == "stands")
    if code == "unclear":
        assert (
            report.verdict
            == "Unclear: rank 0 is working now and then in main (train.py:7): it computes a little, or polls."
        )
        assert report.why[0] == "rank 0 works for 1.0 ms at a time, 9% of a core"


def test_a_rank_that_others_wait_for_may_compute_a_little_too() -> None:
    late = rank(1, entries=issued(29, 30, True), running=0.09, work_s=1e-3)
    report = verdict(rank(0, entries=issued(30, 30, False)), late)
    assert (report.code, report.ranks, report.hung) == ("unclear", (1,), False)


@pytest.mark.parametrize("age", [0.01, 1.9])
def test_a_job_that_steps_is_not_hung(age: float) -> None:
    assert verdict(rank(0, step_age_s=age), rank(1, step_age_s=age)).code == "not-hung"


def test_slow_steps_are_not_hung() -> None:
    assert not verdict(rank(0, step_age_s=100.0, usual_step_s=30.0), rank(1, step_age_s=99.0, usual_step_s=30.0)).hung


def test_the_usual_pace_comes_from_torchs_recorder_after_a_late_attach() -> None:
    late = {"step_age_s": None, "usual_step_s": None}
    slow = [Entry("0", n, "all_reduce", "", "", NOW - (40 - n) * 20_000_000_000, n < 39) for n in range(40)]
    assert not verdict(rank(0, entries=slow, **late), rank(1, entries=slow[:-1], **late)).hung


def test_what_snippets_and_attaches_held_up_is_not_the_usual_pace() -> None:
    at = [NOW - 10_000_000_000 - n * STEP - n // 10 * 4_000_000_000 for n in reversed(range(30))]
    late = {"step_age_s": None, "usual_step_s": None}
    entries = [Entry("0", n, "all_reduce", "", "", ns, n < 29) for n, ns in enumerate(at)]
    evidence = Evidence(
        "3999", [rank(0, entries=entries, **late), rank(1, entries=entries[:-1], **late)], (), GROUPS, NOW, 1.0
    )
    assert evidence.usual_quiet_s == 4.05 and not judge(evidence).hung
    held = [(at[n] - 4_010_000_000, at[n] - 10_000_000) for n in (10, 20)]
    evidence = replace(evidence, pauses=Pauses(held))
    assert evidence.usual_quiet_s == 0.05 and judge(evidence).code == "waiting"
    for before_ns, usual_s in ((10_000_000, 0.05), (4_040_000_000, 0.05), (-10_000_000, 4.05)):
        attaches = [at[n] - before_ns for n in (20, 10)]
        assert replace(evidence, pauses=Pauses(attaches=attaches)).usual_quiet_s == usual_s


moments = st.integers(0, 60)


@given(st.lists(st.tuples(moments, moments).map(sorted)), moments, moments)
def test_snippet_time_counts_each_moment_once(intervals: list[tuple[int, int]], one: int, other: int) -> None:
    begin, end = sorted((one, other))
    ran = {moment for first, last in intervals for moment in range(first, last)}
    gap = end - begin - len(ran & set(range(begin, end)))
    assert Pauses(map(tuple, intervals)).gaps([begin, end]) == [gap]


def test_a_long_step_that_records_rows_is_slow_and_not_hung() -> None:
    report = verdict(rank(0, rows=12), rank(1, rows=11))
    assert (report.code, report.hung) == ("slow", False)


def test_a_rank_that_the_endpoint_does_not_cover_is_reported() -> None:
    report = verdict(rank(0, entries=issued(30, 30, False)), endpoint="4000")
    assert report.code == "waiting" and report.verdict == "Waiting for rank 1, which is not covered by this endpoint."
