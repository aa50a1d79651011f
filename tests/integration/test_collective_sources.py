"""Who issued each collective, and how many there are, in a 2-rank gloo job (tests/targets/collective_sources.py)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from two_ranks import run_ranks

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def ranks(start_once, tmp_path_factory):
    return run_ranks(start_once, "collective_sources.py", tmp_path_factory.mktemp("sources"), timeout=300)


def rows_of(result):
    return [row for row in result["rows"] if row["seq"] > result.get("from", 0)]


def sources(result):
    return {row["source"] for row in rows_of(result) if row["operation"] != "c10d::barrier"}


def operations(result):
    return [row["operation"].removeprefix("c10d::") for row in rows_of(result)]


@pytest.mark.parametrize("name", ["plain", "static_graph", "bucket_view", "hook_of_the_user", "hook_of_torch"])
def test_the_reducer_sends_its_buckets_once_a_step(ranks, name):
    for rank in ranks:
        result = rank[name]
        for begin, end in pairwise(result["ends"][2:]):  # buckets are built anew in the first steps
            rows = [row for row in result["rows"] if begin < row["seq"] <= end]
            size = 2 if name == "hook_of_torch" else 1  # it sends half the bytes
            assert [row["bytes"] * size for row in rows] == result["buckets"]
            assert {(row["operation"], row["source"]) for row in rows} == {("c10d::allreduce_", "ddp")}


def test_hooks_and_gradient_views_change_no_weight(ranks):
    assert len({ranks[0][name]["digest"] for name in ("plain", "static_graph", "bucket_view", "hook_of_the_user")}) == 1


def test_no_sync_issues_no_collective(ranks):
    ends, rows = ranks[0]["no_sync"]["ends"], ranks[0]["no_sync"]["rows"]
    sent = [[row["bytes"] for row in rows if begin < row["seq"] <= end] for begin, end in pairwise(ends)]
    assert sent[2:] == [ranks[0]["no_sync"]["buckets"], []] * 2 + [ranks[0]["no_sync"]["buckets"]]


def test_buffers_are_attributed_to_ddp(ranks):
    assert operations(ranks[0]["buffers"]) == ["broadcast_"] * 4 and sources(ranks[0]["buffers"]) == {"ddp"}


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
def test_fsdp_gathers_and_scatters(ranks, name):
    gathers = {"_allgather_base_", "allgather_"}
    assert gathers & set(operations(ranks[0][name])) and "_reduce_scatter_base_" in operations(ranks[0][name])
    assert sources(ranks[0][name]) == {"fsdp"}


def test_zero_broadcasts_the_parameters(ranks):
    assert sources(ranks[0]["zero"]) == {"zero"}
    assert sum(row["bytes"] for row in rows_of(ranks[0]["zero"])) == 6 * (256 * 256 + 256) * 4


@pytest.mark.parametrize("name", ["dtensor", "tensor_parallel"])
def test_collectives_of_distributed_tensors_are_functional(ranks, name):
    assert rows_of(ranks[0][name]) and sources(ranks[0][name]) == {"functional"}


def test_a_pipeline_sends_each_microbatch(ranks):
    sent = [row for row in rows_of(ranks[0]["pipeline"]) if row["operation"] == "c10d::send"]
    got = [row for row in rows_of(ranks[1]["pipeline"]) if row["operation"] == "c10d::recv_"]
    for rows in (sent, got):
        assert [row["bytes"] for row in rows if row["tensor"].startswith("float32")] == [2 * 8 * 4] * 4
    assert sources(ranks[0]["pipeline"]) == {"pipelining"}


def test_collectives_that_the_job_calls_itself_are_the_users(ranks):
    result = ranks[0]["of_the_user"]
    assert {row["source"] for row in result["rows"][-4:]} == {"user"}


def test_the_tap_stays_on_in_every_scenario(ranks):
    assert {name: result["why_off"] for name, result in ranks[0].items() if result.get("why_off")} == {}


def test_everything_comes_out_the_same_with_the_tap_on_off_and_toggled(ranks):
    for rank in ranks:
        assert len({*rank["toggled"]["digests"]}) == 1
        assert rank["toggled"]["nothing"], "something was recorded in pass-through"
