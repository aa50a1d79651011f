"""How the walk reaches an object, in words; without torch, so that every Python can run it."""

from __future__ import annotations

import collections
import functools
import gc
import queue
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from probe.agent.memory.places import Places
from probe.agent.memory.roots import Roots
from probe.agent.memory.walk import Root, Walk, is_cached


class Wanted:
    """What is looked for."""


HELD: list[Wanted] = []
RAN: list[str] = []


class Slotted:
    __slots__ = ("inside",)


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        RAN.append(name)
        return super().__getattribute__(name)

    def __eq__(cls, other: object) -> bool:
        RAN.append("class eq")
        return cls is other

    def __hash__(cls) -> int:
        RAN.append("class hash")
        return id(cls)


class Hostile(metaclass=Meta):
    def __init__(self, inside: Wanted) -> None:
        object.__getattribute__(self, "__dict__")["inside"] = inside

    def __getattribute__(self, name: str) -> Any:
        RAN.append(name)
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        RAN.append("eq")
        return False

    def __hash__(self) -> int:
        RAN.append("hash")
        return 0


class Table(dict[str, Any]):
    def items(self) -> Any:
        RAN.append("items")
        return super().items()


class Row(list[Any], metaclass=Meta):
    pass


class Key(metaclass=Meta):
    pass


class Shared:
    store: list[Wanted] = []  # noqa: RUF012


def found() -> list[str]:
    """The places of all that is wanted, as this function's caller holds it."""
    roots = Roots()
    walk, places = Walk(roots, {id(Wanted)}), Places()
    for value, name in roots.variables(sys._getframe(1)):
        walk.root(value, Root(None, name))
    for space, name in roots.globals():
        walk.contents.name_space(space)
        walk.root(space, Root(None, name))
    walk.run(1e9)
    numbers = [walk.find(each, places).place for each in walk.met]
    walk.forget()
    texts: list[str] = []
    for within, text in places.rows:
        texts.append(text if within < 0 else texts[within] + text)
    return [texts[number] for number in numbers]


def test_containers_attributes_and_slots() -> None:
    here = {"a": [1, (Wanted(),)], 3: collections.deque([Wanted()])}
    slotted = Slotted()
    slotted.inside = Wanted()
    function = test_containers_attributes_and_slots.__name__
    assert found() == [
        f"{function}().slotted.inside",
        f"{function}().here[3][0]",
        f"{function}().here['a'][1][0]",
    ]
    del here, slotted


def test_closures_defaults_partials_and_methods() -> None:
    seen, name = Wanted(), test_closures_defaults_partials_and_methods.__name__

    def closure() -> Wanted:
        return seen

    def default(x: int, kept: Wanted = Wanted()) -> None:  # noqa: B008
        pass

    kept = [functools.partial(print, Wanted())]
    texts = found()
    assert f"{name}().default default of default().kept" in texts
    assert f"{name}().kept[0].args[0]" in texts
    assert len(texts) == 3 and closure() is seen and kept


def suspended() -> Iterator[int]:
    inside = Wanted()
    yield 1
    del inside


def test_generators_tracebacks_and_queues() -> None:
    name = test_generators_tracebacks_and_queues.__name__

    def fails() -> None:
        lost = Wanted()
        raise ValueError(lost)

    source, waiting = suspended(), queue.Queue[Wanted]()
    next(source)
    waiting.put(Wanted())
    try:
        fails()
    except ValueError as error:
        error.args = ()
        kept = error
    texts = found()
    assert f"{name}().source (generator suspended()).inside" in texts
    assert f"{name}().kept traceback, fails().lost" in texts
    assert f"{name}().waiting.queue[0]" in texts and len(texts) == 3 and kept.__traceback__


def test_globals_and_classes_of_the_users_and_variables_of_other_threads() -> None:
    HELD.append(Wanted())
    Shared.store.append(Wanted())
    go, done = threading.Event(), threading.Event()

    def other() -> None:
        mine = Wanted()
        go.set()
        done.wait()
        del mine

    thread = threading.Thread(target=other)
    thread.start()
    go.wait()
    try:
        texts = found()
    finally:
        done.set()
        thread.join()
        HELD.clear()
        Shared.store.clear()
    assert "other().mine" in texts and len(texts) == 3
    assert any(each.endswith("HELD[0]") for each in texts) and any(each.endswith("Shared.store[0]") for each in texts)


def test_no_code_of_the_users_runs_and_nothing_is_kept() -> None:
    wanted = Wanted()
    dies, hostile, table = weakref.ref(wanted), Hostile(wanted), Table(x=Wanted())
    row, keyed = Row([Wanted()]), {Key(): Wanted()}
    RAN.clear()
    texts = found()
    is_cached((Hostile, Row))
    ran = list(RAN)
    name = test_no_code_of_the_users_runs_and_nothing_is_kept.__name__
    assert ran == [] and len(texts) == 4 and row and keyed
    assert {f"{name}().{place}" for place in ("table['x']", "row[0]", "keyed[‹Key›]")} <= set(texts)
    gc.disable()
    try:
        del wanted, hostile, table
        assert dies() is None
    finally:
        gc.enable()


def test_a_walk_that_is_cut_goes_on_where_the_one_before_had_found_nothing() -> None:
    here: dict[str, Any] = {"records": [{"number": [place]} for place in range(3000)], "last": [[[Wanted()]]]}
    here["records"][2000]["wanted"] = Wanted()
    found: list[set[int]] = [set()]
    while True:
        walk, places = Walk(Roots(), {id(Wanted)}, (), found[-1]), Places()
        walk.root(here, Root(None, "here"))
        walk.run(0.0)  # no further than to its first look at the clock
        if not walk.is_cut:
            break
        found.append(found[-1] | walk.barren())
        assert found[-1] > found[-2]
        walk.forget()
    for each in walk.met:
        walk.find(each, places)
    assert len(found) > 2 and len(walk.met) == 2
    assert "".join(text for _, text in places.rows) == "here['last'][0][0][0]['records'][2000]['wanted']"
    walk.forget()


def test_a_container_of_numbers_costs_no_look_at_each() -> None:
    here = [[*range(1000)] for _ in range(100)]
    walk = Walk(Roots(), {id(Wanted)})
    walk.root(here, Root(None, "here"))
    walk.run(1e9)
    assert walk.walked == 101
    walk.forget()
