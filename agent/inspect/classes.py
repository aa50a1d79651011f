"""What a class and an instance are, read without asking them: a metaclass or a property of the job's is never called.

Used by names, memory and trace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import GetSetDescriptorType
from typing import Any

MRO: Callable[[Any], tuple[type, ...]] = type.__dict__["__mro__"].__get__
SPACE: Callable[[Any], Any] = type.__dict__["__dict__"].__get__
NAME: Callable[[Any], str] = type.__dict__["__name__"].__get__


def class_name(thing: Any) -> str:
    return NAME(type(thing))


def is_class(thing: Any) -> bool:
    return issubclass(type(thing), type)


def own_dict(thing: Any) -> Any:
    """The instance's dict, through the getset that its first such class has; None without one."""
    for kind in MRO(type(thing)):
        field = SPACE(kind).get("__dict__")
        if field is not None:
            return field.__get__(thing) if type(field) is GetSetDescriptorType else None
    return None


def table(thing: Any, name: str) -> dict[Any, Any]:
    """A dict that the instance has under this name, copied; {} if it has none."""
    space = own_dict(thing)
    found: Any = dict.get(space, name) if isinstance_of(space, dict) else None
    return dict(dict.items(found)) if isinstance_of(found, dict) else {}


def isinstance_of(thing: Any, kind: type) -> bool:
    """isinstance() by the object's own type: __class__ may be a property of the job's."""
    return issubclass(type(thing), kind)


def family(base: type) -> dict[int, type]:
    """The class and all below it, by id."""
    found: dict[int, type] = {}
    queue = [base]
    while queue:
        kind = queue.pop()
        if id(kind) not in found:
            found[id(kind)] = kind
            queue += type.__subclasses__(kind)
    return found


def loaded(name: str) -> Any:
    """A module of torch's that the job has imported; None if it has not."""
    return sys.modules.get(name)
