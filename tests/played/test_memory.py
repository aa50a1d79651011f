"""Who holds the memory of a device, against what torch's allocator and the job itself say of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from played import Play, Played
from until import until

from target import Probe

MB = 1 << 20
OF_DEVICE = "SELECT * FROM python.tensor_trace WHERE device = 'cuda:0'"
SAMPLED = "SELECT * FROM python.memory_trace WHERE device = 'cuda:0' ORDER BY start_ns DESC LIMIT 1"
NAMED = {"parameter", "gradient", "optimizer", "buffer", "activation", "variable", "cache"}

Rows = list[dict[str, Any]]


@pytest.fixture
def looking(play: Play, probe: Probe) -> Callable[[str], tuple[Played, Callable[..., Rows]]]:
    """looking("mlp"): a job of allocating.py that is attached to, and what runs a query there."""

    def looking(kind: str) -> tuple[Played, Callable[..., Rows]]:
        job = play("allocating.py", kind)
        probe("attach", job.target.pid)

        def rows(sql: str) -> Rows:
            return json.loads(probe(job.target.pid, "query", "--format", "json", sql).stdout)  # type: ignore[no-any-return]

        return job, rows

    return looking


def said(job: Played, probe: Probe, expression: str) -> int:
    """What the job says at a boundary."""
    return int(probe(job.target.pid, "eval", f"import torch; print({expression})").stdout.split()[-1])


def size(rows: Rows, *kinds: str) -> int:
    return sum(row["bytes"] for row in rows if not kinds or row["kind"] in kinds)


@pytest.mark.parametrize("kind", ["mlp", "gpt"])
def test_nearly_all_that_the_allocator_gave_out_is_named_and_all_of_it_listed(looking, probe: Probe, kind: str) -> None:
    job, rows = looking(kind)
    found = rows(OF_DEVICE)
    allocated = said(job, probe, "torch.cuda.memory_allocated()")
    weights = said(job, probe, "sum(each.nbytes for each in model.parameters())")
    assert size(found, "parameter") == size(found, "gradient") == weights
    assert size(found, "optimizer") == pytest.approx(2 * weights, rel=0.01)
    assert 0.95 * allocated < size(found, *NAMED) <= size(found) <= allocated
    assert allocated - size(found) <= 511 * len(found)  # it gives out whole blocks of 512 bytes
    assert len({row["storage"] for row in found}) == len(found)
    assert [each for each in job.broken() if each.is_ours] == []


def test_what_no_tensor_uses_is_listed_as_such(looking, probe: Probe) -> None:
    """cuBLAS keeps a workspace, which torch's C++ has from the same allocator."""
    job, rows = looking("mlp")
    (workspace,) = (row for row in rows(OF_DEVICE) if row["holder"] == "held by C++ only, without a tensor")
    assert workspace["kind"] == "other" and workspace["dtype"] is None and workspace["shape"] is None
    freed = said(job, probe, "torch._C._cuda_clearCublasWorkspaces() or torch.cuda.memory_allocated()")
    assert size(rows(OF_DEVICE)) - freed in (0, workspace["bytes"])


def test_a_leak_and_a_graph_that_is_kept_have_their_holders(looking, probe: Probe) -> None:
    _, rows = looking("leaking")
    first = rows(OF_DEVICE)
    then = until(lambda: [*found] if len(found := rows(OF_DEVICE)) > len(first) else None)
    grown = [row for row in then if row["storage"] not in {row["storage"] for row in first}]
    kept = [row for row in then if row["holder"].startswith("train().kept[")]
    assert kept and {row["bytes"] for row in kept} == {MB} and {row["kind"] for row in kept} == {"variable"}
    assert any(row["holder"].startswith("train().kept[") for row in grown)
    ahead = [row for row in then if row["holder"] == "train().ahead['out']" and row["kind"] == "activation"]
    assert all(row["module"] for row in ahead) and any(row["module"] == "0" for row in ahead)
    assert size(ahead) >= 4 * 1024 * 4096 * 4


def test_in_the_midst_of_a_forward_what_its_graph_holds_is_listed_without_a_holder(play: Play, probe: Probe) -> None:
    job = play("allocating.py", "forward")
    probe("attach", job.target.pid)
    job.target.wait_for("pauses")
    told = probe(job.target.pid, "memory", "--wait", "0", "--format", "json")
    unnamed = sum(row["mb"] for row in json.loads(told.stdout) if row["kind"] == "other")
    assert unnamed > 4 * 1024 * 4096 * 4 / 1e6
    assert "gradients and graphs are left out" in told.stderr
    (rest,) = re.findall(r"Not listed: (\d+\.\d) MB of what the allocator of cuda:0 gave out", told.stderr)
    assert float(rest) < 0.2


def test_the_allocator_is_sampled_as_it_tells_itself(looking, probe: Probe) -> None:
    job, rows = looking("mlp")
    (sampled,) = until(lambda: rows(SAMPLED))
    stats = "torch.cuda.memory_stats()"
    for column, name in (
        ("reserved_mb", "reserved_bytes.all.current"),
        ("peak_mb", "allocated_bytes.all.peak"),
    ):
        assert sampled[column] * MB == said(job, probe, f"{stats}['{name}']")
    assert 0 < sampled["allocated_mb"] <= sampled["peak_mb"] <= sampled["reserved_mb"]
    assert sampled["inactive_mb"] >= 0 and sampled["rss_mb"] is None
