"""Flame graphs of made-up profiles: the tree, the page, speedscope's format, and what is read back of both."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from probe.errors import UsageError
from probe.export import flame_files
from probe.export.flame import FOLDED, NO_STACK, Flame, flame
from probe.export.profile_rows import SCHEMA, ProfileRows

NASTY = '</script><script>alert("&")</script>\u2028 {{profile}} {{program}} (<b>.py)'
FRAMES = [f"{function} ({file})" for function in "fgh" for file in ("a.py:1", "a.py:20", "torch/b.py:3")] + [NASTY]
ROW = some.fixed_dictionaries(
    {"rank": some.integers(0, 2), "phase": some.sampled_from([None, "forward", "optimizer"]), "thread": some.none(),
     "stack": some.none() | some.lists(some.sampled_from(FRAMES), min_size=1, max_size=8),
     "seconds": some.floats(1e-9, 1e3), "samples": some.integers(1, 9)}
)  # fmt: skip
PROFILE = some.lists(ROW, min_size=1, max_size=30)


def profile(*rows: dict[str, Any], steps: dict[int, float] | None = None) -> ProfileRows:
    filled = [dict.fromkeys(SCHEMA.names) | {"rank": 0, "seconds": 1.0, "samples": 1} | row for row in rows]
    return ProfileRows(pa.Table.from_pylist(filled, SCHEMA), steps or {})


TWO = profile({"stack": ["main (a.py:1)", "f (a.py:2)"]})


def paths(shown: Flame) -> dict[tuple[str, ...], int]:
    """Each node by the frames from the root to it."""
    found: list[tuple[str, ...]] = [()]
    for parent, frame in zip(shown.parent[1:].tolist(), shown.frame[1:].tolist(), strict=True):
        found.append((*found[parent], shown.frames[frame]))
    return {path: node for node, path in enumerate(found)}


def sums(taken: ProfileRows) -> dict[tuple[Any, ...], tuple[float, int]]:
    """Seconds and samples by all else, with functions for frames."""
    found: dict[tuple[Any, ...], tuple[float, int]] = {}
    for row in taken.rows.to_pylist():
        stack = row["stack"] and tuple(re.sub(r":\d+\)$", ")", frame) for frame in row["stack"])
        key = row["rank"], row["phase"], row["thread"], stack
        seconds, samples = found.get(key, (0.0, 0))
        found[key] = seconds + row["seconds"], samples + row["samples"]
    return found


def same(found: dict[tuple[Any, ...], tuple[float, int]], wanted: dict[tuple[Any, ...], tuple[float, int]]) -> bool:
    return found == {key: pytest.approx(value, abs=1e-6) for key, value in wanted.items()}


@settings(max_examples=50)
@given(PROFILE, PROFILE, some.integers(4, 40))
def test_the_root_has_all_seconds_and_a_node_its_own_and_its_childrens(
    rows: list[Any], others: list[Any], most: int
) -> None:
    now, before = profile(*rows), profile(*others)
    for shown in (flame([now]), flame([now, before]), flame([now, before], most)):
        for side, taken in enumerate([now, before][: 1 + max(shown.cells.side, default=0)]):
            total, mine = shown.totals(side), shown.cells.of(shown.cells.side == side)
            assert total[0] == pytest.approx(taken.seconds)
            own = [sum(mine.seconds[mine.node == node]) for node in range(len(total))]
            below = [sum(total[1:][shown.parent[1:] == node]) for node in range(len(total))]
            assert total.tolist() == pytest.approx([a + b for a, b in zip(own, below, strict=True)])
            assert {row["rank"] for row in shown.rows(side).to_pylist()} == set(taken.ranks)
            assert mine.samples.sum() == sum(row["samples"] for row in taken.rows.to_pylist())
        assert all(shown.parent[1:] < range(1, len(shown.parent))) and len(paths(shown)) == len(shown.parent)


@settings(max_examples=50)
@given(PROFILE)
def test_what_is_read_back_of_a_page_and_of_a_speedscope_file_is_what_was_written(rows: list[Any]) -> None:
    taken = profile(*rows, steps={0: 12.5, 1: 3.0})
    page = flame_files.text_of("x.html", taken, "4242")
    assert same(sums(flame_files.parse(page)), sums(taken)) and flame_files.parse(page).steps == taken.steps
    scope = flame_files.parse(flame_files.text_of("x.json", taken, "4242"))
    assert same(sums(scope), sums(profile(*({**row, "phase": None} for row in rows))))


def test_lines_of_a_function_are_one_node_and_ranks_are_the_first_level_if_there_are_several() -> None:
    rows = [{"stack": ["main (a.py:3)", "f (a.py:9)"]}, {"stack": ["main (a.py:4)", "f (a.py:12)"]}, {"stack": None}]
    assert set(paths(flame([profile(*rows)]))) == {
        (), ("main (a.py)",), ("main (a.py)", "f (a.py)"), (NO_STACK,),
    }  # fmt: skip
    assert flame_files.about(profile(*rows)) == "rank 0, 1 stack, 3.0 s; 33.3 % of the time has no stack"
    two = flame([profile(*rows, {"rank": 3, "stack": ["f (a.py:1)"], "seconds": 5.0})])
    nodes, total = paths(two), two.totals()
    assert total[nodes["rank 0",]] == 3 and total[nodes["rank 3", "f (a.py)"]] == 5 and two.ranks == [0, 3]


def test_of_too_many_nodes_the_lightest_are_folded_into_their_callers() -> None:
    heavy = [{"stack": ["main (a.py:1)", f"f{n} (a.py:1)", "g (a.py:1)"], "seconds": 10.0} for n in range(3)]
    light = [{"stack": ["main (a.py:1)", f"f{n % 3} (a.py:1)", f"h{n} (a.py:1)"], "seconds": 0.1} for n in range(300)]
    shown = flame([profile(*heavy, *light)], 20)
    nodes, total = paths(shown), shown.totals()
    assert len(nodes) <= 20 and total[0] == pytest.approx(60)
    assert total[nodes["main (a.py)", "f1 (a.py)", "g (a.py)"]] == 10
    assert total[nodes["main (a.py)", "f1 (a.py)", FOLDED]] > 9


def test_stacks_may_be_400_deep_and_many() -> None:
    deep = [f"f{level} (deep.py:{level})" for level in range(399)]
    rows = [{"stack": [*deep[: 399 - n % 50], f"leaf{n} (a.py:1)"], "seconds": 0.5} for n in range(2000)]
    shown = flame([profile(*rows)])
    assert len(shown.parent) == 1 + 399 + 2000 and shown.totals()[0] == 1000
    assert max(map(len, paths(shown))) == 400


class Elements(HTMLParser):
    """The elements of a page, their attributes, and the text of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))

    def handle_data(self, data: str) -> None:
        if self.found:
            self.found[-1][2].append(data)


def test_a_page_loads_nothing_and_no_name_in_it_becomes_a_part_of_the_page() -> None:
    plain, nasty = (
        Elements(flame_files.text_of("x.html", profile({"stack": [f"{name} (a.py:1)"], "phase": name}), name)).found
        for name in ("f", NASTY)
    )
    assert [element[:2] for element in nasty] == [element[:2] for element in plain]
    assert not [attrs for _, attrs, _ in nasty if {"src", "href"} & attrs.keys()]
    policy = next(attrs for tag, attrs, _ in nasty if attrs.get("http-equiv") == "Content-Security-Policy")
    assert str(policy["content"]).startswith("default-src 'none';")
    (data,) = (json.loads("".join(text)) for _, attrs, text in nasty if attrs.get("type") == "application/json")
    assert (data["title"], data["phases"], data["frames"][1]) == (f"Profile of {NASTY}", [NASTY], f"{NASTY} (a.py)")
    programs = ["".join(text) for tag, attrs, text in nasty if tag == "script" and not attrs]
    assert len(programs) == 1 and "{{" not in programs[0] and "http" not in programs[0]


def test_a_difference_has_both_profiles_and_phases_only_if_both_tell_them(tmp_path: Path) -> None:
    now = profile({"stack": ["f (a.py:1)"], "phase": "forward", "seconds": 3.0}, steps={0: 10.0})
    before = profile({"stack": ["g (a.py:1)"], "phase": "forward", "rank": 1}, steps={1: 5.0})
    for suffix, phases in ((".html", ["forward"]), (".speedscope.json", [None])):
        file = tmp_path / f"before{suffix}"
        file.write_text(flame_files.text_of(file.name, before, "4242"), encoding="utf-8")
        page = flame_files.text_of("x.html", now, "4243", flame_files.read(str(file)), str(file))
        data = json.loads(page.partition('id="profile">')[2].partition("</script>")[0])
        assert (
            data["phases"] == phases
            and data["ranks"] == [0, 1]
            and data["title"] == f"Profile of 4243 against {file.name}"
        )
        assert [(side["seconds"], side["steps"]) for side in data["sides"]] == [
            ([3.0], {"0": 10.0}),
            ([1.0], {"1": 5.0}),
        ]
        assert sums(flame_files.parse(page)).keys() == {(0, phases[0], None, ("f (a.py)",))}


def test_a_speedscope_file_has_a_profile_for_each_rank_and_thread_whose_weights_are_its_seconds() -> None:
    rows = [{"rank": rank, "thread": thread, "stack": ["main (a.py:1)", f"f{n} (/x (1)/b.py:2)"], "seconds": n + 0.5}
            for rank in (0, 1) for thread in ("MainThread", "loader, 2") for n in range(3)]  # fmt: skip
    taken = profile(*rows, {"rank": 1, "thread": "MainThread", "stack": None}, steps={0: 7.0, 1: 8.0})
    file = json.loads(flame_files.text_of("x.speedscope.json", taken, "4242"))
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert {"name": "f1", "file": "/x (1)/b.py"} in file["shared"]["frames"] and {"name": NO_STACK} in file["shared"][
        "frames"
    ]
    assert [each["name"] for each in file["profiles"]] == [
        "rank 0, MainThread", "rank 0, loader, 2", "rank 1, MainThread", "rank 1, loader, 2",
    ]  # fmt: skip
    for each in file["profiles"]:
        assert (each["type"], each["unit"], each["startValue"]) == ("sampled", "seconds", 0)
        assert each["endValue"] == sum(each["weights"]) == 4.5 + (each["name"] == "rank 1, MainThread")
        assert len(each["samples"]) == len(each["weights"]) and each["weights"] == sorted(each["weights"], reverse=True)
        assert all(0 <= frame < len(file["shared"]["frames"]) for sample in each["samples"] for frame in sample)
    assert same(sums(flame_files.parse(json.dumps(file))), sums(taken))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<html>", "not written"),
        ("{}", "not written"),
        ('{"exporter": "py-spy"}', "not written"),
        ("{", "broken"),
        ('{"exporter": "torch-probe 1"}', "broken"),
        ('<script type="application/json" id="profile">[]</script>', "broken"),
        (flame_files.text_of("x.html", TWO, "4242").replace('"parent":[0,0,1]', '"parent":[0,0,2]'), "broken"),
    ],
)
def test_a_file_of_others_or_a_broken_one_is_refused(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "before.html"
    file.write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        flame_files.read(str(file))
    assert "\n" not in caught.value.message


def test_formats_are_told_by_the_suffix() -> None:
    flame_files.require_format("a.HTML", True)
    flame_files.require_format("a.speedscope.json", False)
    for file, compares in (("a.svg", False), ("a", False), ("a.json", True)):
        with pytest.raises(UsageError):
            flame_files.require_format(file, compares)
