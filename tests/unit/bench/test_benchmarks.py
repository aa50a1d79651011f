"""What `make bench` makes of its measurements: intervals of ratios, and the page's written part."""

from __future__ import annotations

import datetime
import random
import sys
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import arms
import cells
import page
import pytest
import step_time
from sizes import SIZES
from statistics_of_pairs import difference_interval, mixed_interval, ratio_interval

TEXT = "before\n<!-- step times: written by make bench -->\nold\n<!-- end of step times -->\nafter\n"


@dataclass
class Machine:
    """Stands in for a job: steps of 1 ms with long-tailed noise, as beside other work; slower by what is put in."""

    slower: float = 1.0
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    done: list[tuple[float, int]] = field(default_factory=list)
    warmed: list[int] = field(default_factory=list)

    def block(self, steps: int, warm: int = 0) -> arms.Times:
        self.warmed.append(warm)
        self.done.append((self.slower, steps))
        return [int(1e6 * self.slower * self.chance.lognormvariate(0.0, 0.3)) for _ in range(steps)]


@dataclass(frozen=True)
class Slower:
    by: float
    peer: bool = False
    warm: int = 0

    def put(self, job: Any) -> None:
        job.slower *= self.by

    def take(self, job: Any) -> None:
        job.slower /= self.by


def measured(by: float, rounds: int = 400) -> cells.Measured:
    until = cells.for_seconds(0, rounds)
    return cells.measured({False: Machine()}, {"arm": Slower(by)}, 5, 2, until)  # type: ignore[dict-item]


def test_a_cell_is_bare_with_with_bare_in_blocks_of_one_length() -> None:
    machine = Machine()
    with_it, bare = cells.cell(machine, Slower(2.0), steps=5, warm=2)  # type: ignore[arg-type]
    assert machine.done == [(1.0, 5), (2.0, 5), (2.0, 5), (1.0, 5)]
    assert len(with_it) == len(bare) == 10


def test_a_cell_the_other_way_round_leaves_the_job_bare() -> None:
    machine = Machine()
    cells.cell(machine, Slower(2.0), 5, 2, cells.BARE_INSIDE)  # type: ignore[arg-type]
    assert [slower for slower, _ in machine.done] == [2.0, 1.0, 1.0, 2.0]
    assert machine.slower == 1.0


@pytest.mark.slow
def test_an_arm_that_does_nothing_has_one_in_its_interval_in_spite_of_the_noise() -> None:
    found = ratio_interval(measured(1.0).medians["arm"])
    assert found.low < 1 < found.high
    assert found.half_width < 0.04


@pytest.mark.slow
def test_an_arm_that_costs_a_fifth_is_found_to() -> None:
    result = measured(1.2)
    found, whole = ratio_interval(result.medians["arm"]), ratio_interval(result.means["arm"])
    assert 1.15 < found.low < 1.2 < found.high < 1.25
    assert 1.15 < whole.value < 1.25
    assert 0.9e6 < result.bare_ns < 1.1e6


@pytest.mark.slow
def test_one_step_in_ten_of_a_kind_counts_for_a_tenth() -> None:
    everything, between = [(1.5, 1.0)] * 20, [(1.01, 1.0)] * 20
    assert mixed_interval(everything, between, 10).value == pytest.approx(1.059)
    assert mixed_interval(everything, between, 1).value == 1.5
    noisy = [(1.5 + (-1) ** each * 0.2, 1.0) for each in range(40)]
    wide, narrow = mixed_interval(noisy, between, 1), mixed_interval(noisy, between, 100)
    assert wide.half_width > 50 * narrow.half_width > 0
    assert narrow.low < narrow.value < narrow.high


def test_what_comes_now_and_then_is_in_the_whole_blocks_only() -> None:
    result = cells.Measured()
    usual = [100] * 9
    for _ in range(5):
        result.add("arm", [*usual, 1100], [*usual, 100])
    assert ratio_interval(result.medians["arm"]).value == 1
    assert ratio_interval(result.means["arm"]).value == 2


def test_each_arm_has_a_cell_in_each_round_and_the_order_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    @dataclass(frozen=True)
    class Noted(Slower):
        name: str = ""

        def put(self, job: Any) -> None:
            order.append(self.name)

    monkeypatch.setattr(cells, "BARE_INSIDE", cells.BARE_OUTSIDE)  # in which an arm is put in once
    chosen: dict[str, Any] = {name: Noted(1.0, name=name) for name in "abc"}
    cells.measured({False: Machine()}, chosen, 1, 0, cells.for_seconds(0, 8))  # type: ignore[dict-item]
    rounds = [tuple(order[at : at + 3]) for at in range(0, len(order), 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds) and len(rounds) == 8
    assert len(list(groupby(rounds))) > 2


def test_an_arm_that_needs_the_peer_runs_in_the_job_that_has_it() -> None:
    plain, with_peer = Machine(), Machine()
    jobs: Any = {False: plain, True: with_peer}
    cells.measured(jobs, {"peer": Slower(2.0, peer=True, warm=3)}, 1, 2, cells.for_seconds(0, 1))
    assert [slower for slower, _ in plain.done] == [1.0]  # warming up
    assert 2.0 in [slower for slower, _ in with_peer.done]
    assert with_peer.warmed == [4, 3, 3, 3, 3]  # as many as it needs itself, bare steps too


def test_the_same_pairs_give_the_same_interval() -> None:
    pairs = [(1.0 + 0.01 * index, 1.0) for index in range(30)]
    assert ratio_interval(pairs) == ratio_interval(pairs)
    assert difference_interval([(5.0, 2.0)] * 3).value == 3.0


@pytest.mark.slow
def test_the_interval_narrows_with_the_cells() -> None:
    assert ratio_interval(measured(1.0, 800).medians["arm"]).half_width < (
        ratio_interval(measured(1.0, 50).medians["arm"]).half_width
    )


def test_only_what_stands_between_the_markers_is_written(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(TEXT)
    page.write("step times", "new", path)
    page.write("step times", "newer", path)
    written = path.read_text()
    assert written.startswith("before\n<!--") and written.endswith("-->\nafter\n")
    assert "newer" in written and "old" not in written and written.count("<!--") == 2


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="single calls"):
        page.replaced(TEXT, "single calls", "new")


def test_the_page_of_this_project_has_both_markers() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    for section in ("step times", "single calls"):
        assert "| new |" in page.replaced(text, section, "| new |")


def test_the_tables_have_a_line_a_workload_and_say_which_job_fails() -> None:
    result = measured(1.2, 20)
    text = step_time.tables(dict.fromkeys(SIZES, result), ["arm", "plain hooks"])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 * (2 + len(SIZES))
    assert all(line.count("|") == 6 for line in lines)
    assert all(line.endswith("| the job fails |") for line in lines if "ms |" in line)


def test_the_circumstances_name_day_machine_and_versions() -> None:
    text = page.circumstances(sys.executable, ("pyzmq",), datetime.date(2026, 1, 2))
    assert "Day: 2026-01-02." in text and "CPython 3." in text and "pyzmq " in text and " cores, Linux " in text


def test_every_arm_of_the_tables_exists() -> None:
    assert tuple(arms.arms()) == arms.ARMS
    assert [arm.peer for arm in arms.arms().values()] == [False] * 6 + [True]
