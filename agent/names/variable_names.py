"""The job's variable that holds an object: gives a name to objects without one of their own.

Called once per object, on the thread that uses it; takes about 0.1 ms.  Invariant: the job's variables are only read,
and none of its code runs.  Up to 3.12, reading a frame's variables refreshes the dict that locals() returned, and those
of a traced frame are written back: frames where either could happen are left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from ..inspect import frame_locals
from ..inspect.classes import SPACE
from ..inspect.frames import outward
from .namespace import PACKAGES, USERS, attributes, code_owner

MAX_FRAMES = 64  # searched, from the innermost
_MAX_ITEMS = 16  # lists, tuples and dicts with more are not searched
OWN_NAMES = {"self", "cls"}  # variables of the methods of a loader or its iterator
_RETURN_LOCALS = {"locals", "vars", "exec"}

Test = Callable[[Any], bool]


def readable() -> bool:
    """Whether this thread's variables may be read now: not in a debugger, nor in an eval run by a back-edge trace."""
    return not frame_locals.COPIES or sys.gettrace() is None


def variable_name(frame: FrameType | None, *tests: Test) -> str | None:
    """The variable, attribute or item that passes a test.

    By order of tests; then users' frames, from the innermost, before packages', from the outermost, for what their
    inner functions call it says less; and attributes of the object whose method runs come last.
    """
    frames = [(code_owner(each), each) for each in outward(frame, MAX_FRAMES)]
    ordered = [each for owner, each in frames if owner == USERS]
    ordered += [each for owner, each in reversed(frames) if owner == PACKAGES]
    namespaces = [variables(each) for each in ordered]
    namespaces += {id(each.f_globals): each.f_globals for each in ordered}.values()
    for test in tests:
        for is_own in (False, True):
            for namespace in namespaces:
                for (name, part), value in values_in(namespace):
                    if (name in OWN_NAMES) is is_own and test(value):
                        return name + part
    return None


def variables(frame: FrameType) -> dict[str, Any]:
    if not frame_locals.has_slots(frame):
        return frame.f_locals
    return {} if frame_locals.COPIES and _may_have_locals(frame.f_code) else frame_locals.read(frame)


def _may_have_locals(code: CodeType) -> bool:
    """Whether it may have called locals(); eval() may do so, too, but `model.eval()` does not."""
    names = code.co_names
    if "eval" not in names:
        return not _RETURN_LOCALS.isdisjoint(names)
    from opcode import opmap

    index = names.index("eval")
    arguments = (index,) if sys.version_info < (3, 11) else (2 * index, 2 * index + 1)
    loads = {(opmap["LOAD_GLOBAL"], argument & 255) for argument in arguments}
    instructions = zip(code.co_code[::2], code.co_code[1::2], strict=True)
    return not loads.isdisjoint(instructions) or not _RETURN_LOCALS.isdisjoint(names)


def values_in(namespace: dict[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    """((variable, ""), value) of all variables, then ((variable, part), value) of what is one level inside them."""
    variables = [(name, value) for name, value in list(namespace.items()) if not name.startswith("__")]
    for name, value in variables:
        if name not in OWN_NAMES:
            yield (name, ""), value
    for name, value in variables:
        for part, held in parts_of(value):
            yield (name, part), held


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if kind in (dict, list, tuple):
        if len(value) <= _MAX_ITEMS:
            items = list(value.items()) if kind is dict else enumerate(value)
            yield from ((f"[{key!r}]", held) for key, held in items if type(key) in (str, int))
    elif SPACE(kind).get("__module__", "builtins") != "builtins":
        yield from ((f".{name}", held) for name, held in attributes(value))
