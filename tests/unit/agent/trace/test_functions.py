"""A function is found by its name, and what cannot be traced is refused with a reason; none of the job's code runs.

Standard library only: these tests run on every supported Python (test_every_python.py).
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from probe.agent.trace import functions
from probe.agent.trace.functions import NoFunction, find, names_of_users
from probe.agent.trace.held import UNKNOWN, held_reader, size_reader, waited_ns

MODULE = "jobs_own_module"
CODE = """
import functools, os
class Base:
    def inherited(self): pass
class Handler(Base):
    def do(self): pass
    def __call__(self): pass
    @staticmethod
    def fixed(a): pass
    @classmethod
    def made(cls): pass
    @property
    def size(self): return 1
    @functools.cached_property
    def kept(self): return 1
    half = functools.partialmethod(do)
def plain(a): pass
def deco(function):
    @functools.wraps(function)
    def wrapper(*args): return function(*args)
    return wrapper
decorated = deco(plain)
some = functools.partial(plain, 1)
@functools.lru_cache
def cached(a): pass
handler = Handler()
bound = handler.do
number = 7
listed = [].append
async def stream(): yield 1
"""


@contextmanager
def module(name: str = MODULE, code: str = CODE) -> Iterator[Any]:
    made = ModuleType(name)
    made.__file__ = f"/jobs/{name}.py"
    exec(compile(code, made.__file__, "exec"), vars(made))
    sys.modules[name] = made
    try:
        yield made
    finally:
        del sys.modules[name]


def found(name: str) -> tuple[FunctionType, bool]:
    result = find(name)
    assert result is not None, name
    return result


def refused(name: str) -> str:
    try:
        found = find(name)
    except NoFunction as error:
        return str(error)
    raise AssertionError(found)


def test_every_way_to_name_a_function() -> None:
    with module() as its:
        for name in (f"{MODULE}:plain", f"{MODULE}.plain", f"{MODULE}.py:plain", f"jobs/{MODULE}.py:plain",
                     f"/jobs/{MODULE}.py:plain", f"{MODULE}:some"):  # fmt: skip
            assert found(name) == (its.plain, False)
        for name in (f"{MODULE}:Handler.do", f"{MODULE}.Handler.do", "Handler.do", f"{MODULE}.py:Handler.do",
                     f"{MODULE}:bound", f"{MODULE}:handler.do", f"{MODULE}:Handler.half"):  # fmt: skip
            assert found(name) == (its.Handler.do, True)


def test_functions_behind_methods_properties_wrappers_and_caches() -> None:
    with module() as its:
        members = vars(its.Handler)
        assert found("Handler.fixed") == (members["fixed"].__func__, False)
        assert found("Handler.made") == (members["made"].__func__, True)
        assert found("Handler.size") == (members["size"].fget, True)
        assert found("Handler.kept") == (members["kept"].func, True)
        assert found("Handler.inherited") == (its.Base.inherited, True)
        assert found(f"{MODULE}:decorated") == (its.decorated, False)
        assert found(f"{MODULE}:cached") == (its.cached.__wrapped__, False)


def test_what_cannot_be_traced_is_refused_with_a_reason() -> None:
    with module():
        assert refused("time:sleep") == "time:sleep has no Python code: it is written in C."
        assert "in C" in refused(f"{MODULE}:listed") and "is no function" in refused(f"{MODULE}:number")
        assert "is a class" in refused(f"{MODULE}:Handler") and "asynchronous generator" in refused(f"{MODULE}:stream")
        assert f"{MODULE}:Handler.__call__" in refused(f"{MODULE}:handler")
        assert "made anew at each call" in refused(f"{MODULE}:deco.<locals>.wrapper")
        assert "import system" in refused("importlib._bootstrap:_find_and_load")
        assert find("probe.agent.trace.functions:find") is None  # the agent's modules are none of the job's
        assert find(f"{MODULE}:nothing") is find("nothing.at.all") is find(":") is find("") is find("...") is None


def test_a_name_that_means_several_is_refused_with_their_list() -> None:
    with module() as its, module("another_module") as other:
        assert refused("Handler.do") == (
            "Handler.do means several functions: another_module:Handler.do, jobs_own_module:Handler.do."
        )
        other.Handler = its.Handler  # imported from there: the same functions
        assert found("Handler.do") == (its.Handler.do, True)


def test_suggestions_are_the_functions_of_the_jobs_own_modules() -> None:
    most, functions._MOST_NAMES = functions._MOST_NAMES, 1 << 20  # this process has many modules of tests
    with module():
        names = names_of_users()
        functions._MOST_NAMES = most
        assert {f"{MODULE}:plain", f"{MODULE}:Handler.do", f"{MODULE}:Handler.size"} <= set(names)
        assert not [each for each in names if each.startswith(("functools:", "probe."))]


class Slotted:
    __slots__ = ("arrived", "never_set")

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived


class Plain:
    def __init__(self, arrived: float) -> None:
        self.arrived = arrived


class Hostile(type):
    """Whatever runs of this class or its instances fails the test."""

    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError(name)

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("a class was compared")

    def __hash__(cls) -> int:
        raise AssertionError("a class was hashed")


def run(*_: Any) -> Any:
    raise AssertionError("the job's code ran")


def test_time_stamps_are_found_in_attributes_slots_and_keys() -> None:
    for value in (Slotted(5.0), Plain(5.0), {"arrived": 5.0}):
        assert held_reader("arrived")((7, "text", None, value, Plain(6.0))) == 5.0
        assert held_reader("never_set")((7, value)) is None
    assert held_reader("")(5.0) == 5.0


def test_none_of_the_jobs_code_runs() -> None:
    methods = dict.fromkeys(("__getattr__", "__getattribute__", "__len__", "__eq__", "__hash__", "__bool__"), run)
    members = {**methods, "arrived": property(run)}
    values = [
        type("OfProperties", (), members)(), type("List", (list,), members)(), type("Dict", (dict,), members)(),
        type("Proxy", (), {**methods, "__dict__": property(run)})(), Hostile("Meta", (), methods)(),
        type("Holder", (), {"arrived": type("False", (), methods)()})(),
    ]  # fmt: skip
    size = size_reader()
    for value in values:
        assert size(value) == UNKNOWN and held_reader("arrived")((value,)) is None
        assert waited_ns(value) == UNKNOWN
    with module() as its:
        its.thing = Hostile("Called", (), {"__call__": lambda self: None})()
        assert refused("thing").endswith(":Called.__call__.")
        its.Holder = type("Holder", (), {"__module__": MODULE, "member": Hostile("Member", (), {})()})
        sys.modules["a_module_of_its_own"] = Hostile("OwnModule", (ModuleType,), {})("a_module_of_its_own")
        most, functions._MOST_NAMES = functions._MOST_NAMES, 1 << 20  # other tests have modules of their own
        try:
            assert f"{MODULE}:plain" in names_of_users()
        finally:
            functions._MOST_NAMES = most
            del sys.modules["a_module_of_its_own"]


def test_a_class_that_is_gone_does_not_leave_its_way_to_another() -> None:
    held = held_reader("arrived")
    for place in range(200):
        kind = Slotted if place % 2 else Plain
        assert held((type("Made", (kind,), {})(float(place + 1)),)) == place + 1


def test_sizes_are_those_of_pythons_own_containers_and_texts() -> None:
    size = size_reader()
    assert [size(each) for each in ([1, 2], (1,), {1: 2}, "abc", b"ab", {1, 2, 3})] == [2, 1, 1, 3, 2, 3]
    assert [size(each) for each in (5, None, object(), functools.partial(run), range(3))] == [UNKNOWN] * 5


def test_the_clock_of_a_time_stamp_is_the_one_that_it_is_near_to() -> None:
    for clock in (time.time, time.monotonic, time.perf_counter):
        assert 0 <= waited_ns(clock()) < 1e9 and 1.9e9 < waited_ns(clock() - 2) < 3e9
    now = time.time()
    others = (1e300, float("nan"), float("inf"), now - 1e6, now + 60, time.monotonic() - 4000, 5, "text", None)
    assert [waited_ns(each) for each in others] == [UNKNOWN] * len(others)
