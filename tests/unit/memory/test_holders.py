"""Who holds a tensor, in words, and what has grown."""

from __future__ import annotations

from typing import Any

import pytest

from probe import protocol as wire
from probe.client.reply_schema import check
from probe.memory.holders import tensors_of
from probe.memory.rank_memory import folded, growth, rank_memory

ROW = {"place": 0, "kind": wire.VARIABLE, "module": None, "until": None, "saved_by": None, "shape": [4, 2],
       "dtype": "float32", "device": "cpu", "bytes": 32, "key": 4096}  # fmt: skip


def listed(places: list[tuple[int, str]], *storages: dict[str, Any], **more: Any) -> dict[str, Any]:
    whole = [ROW | each for each in storages]
    return {
        "kind": wire.LISTED, "storages": {name: [each[name] for each in whole] for name in wire.LISTED_COLUMNS},
        "places": [list(each) for each in places], "left_storages": 0, "left_bytes": {}, "unseen": [], "walked": 9,
        "malloc": 100, "allocated": {}, "at_boundary": True, "count": 7, "held_ns": [5], **more,
    }  # fmt: skip


def holder(*texts: str, **row: Any) -> Any:
    places = [(number - 1, text) for number, text in enumerate(texts)]
    (tensor,) = tensors_of(listed(places, {"place": len(texts) - 1, **row}))
    return tensor


@pytest.mark.parametrize(
    ("texts", "holds"),
    [
        (("train().net", "._modules['a']", "._parameters['weight']"), "train().net.a.weight"),
        (("net", "._forward_hooks[3]", " default of f().x"), "net forward hook default of f().x"),
        (("x", ".before", ".before", ".before", ".before"), "x.before…"),
        ((".CACHE", "['x1']"), "CACHE['x1']"),
    ],
)
def test_a_path_reads_as_the_job_would_write_it(texts: tuple[str, ...], holds: str) -> None:
    assert holder(*texts).holder == holds


@pytest.mark.parametrize(
    ("path", "kind", "module", "group"),
    [
        ("train().losses[3]", wire.ACTIVATION, "a", "train().losses[*]"),
        ("CACHE['step 12'][0]", wire.VARIABLE, None, "CACHE[*][*]"),
        ("CACHE['logits']", wire.VARIABLE, None, "CACHE['logits']"),
        ("train().net.module.a.0.weight.grad", wire.GRADIENT, "a.0", "train().net.module"),
        ("train().nets[2].a.weight: exp_avg", wire.OPTIMIZER, "a", "train().nets[*]"),
        ("train().net.scale", wire.BUFFER, "Net", "train().net"),
    ],
)
def test_holders_that_belong_together_are_one_group(path: str, kind: str, module: str | None, group: str) -> None:
    assert holder(path, kind=kind, module=module).group == group


def test_an_activation_between_two_modules_was_made_in_what_both_are_in() -> None:
    assert holder("x", module="a.b.c", until="a.b.d").module == "a.b (after a.b.c)"
    assert holder("x", module="a.b", until=None).module == "a.b"
    assert holder("x", module="a", until="b").module == "the model (after a)"


def test_growth_is_that_of_groups_and_what_is_not_listed_is_a_number() -> None:
    before = listed([(-1, "a[0]")], {})
    now = listed(
        [(-1, "a[0]"), (-1, "a[1]"), (-1, "b")], {}, {"place": 1, "bytes": 8, "key": 1}, {"place": 2, "key": 2}
    )
    rank = rank_memory(3, [before, now])
    assert [(each.holder, each.tensors, each.bytes) for each in growth([rank])] == [("b", 1, 32), ("a[*]", 1, 8)]
    assert [(each.holder, each.bytes) for each in folded([rank])] == [("a[*]", 40), ("b", 32)]
    assert rank.unlisted == {"cpu": 28} and rank.before is not None and rank.before.unlisted == {"cpu": 68}
    assert growth([rank_memory(3, [now])]) == []


def test_a_c_library_that_gives_out_less_than_is_listed_does_not_tell() -> None:
    assert rank_memory(0, [listed([(-1, "a")], {}, malloc=5)]).unlisted == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"places": [[0, "a"]]},
        {"places": [[-1, "a"], [1, "b"]]},
        {"places": [[-1, 3]]},
        {"places": []},
        {"storages": {**listed([], {})["storages"], "kind": []}},
        {"held_ns": 5},
    ],
)
def test_a_list_that_does_not_hang_together_is_refused(wrong: dict[str, Any]) -> None:
    check(listed([(-1, "a")], {}), 0)
    with pytest.raises(wire.WireError):
        check(listed([(-1, "a")], {}) | wrong, 0)
