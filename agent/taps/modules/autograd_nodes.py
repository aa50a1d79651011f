"""The autograd nodes that carry the marks of a module call, found in the call's arguments and output.

The module tap searches around each module call, on the training thread.
Invariant: nodes are read and never kept, because a node keeps its graph alive.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

FEW = 8  # nodes of a module that is small enough to walk through
IDLE = ("TBackward0", "TransposeBackward0")  # nodes that only relabel, never copy: autograd is done on reaching them
_MANY = 256  # values in containers that are searched, at most


def tensors_in(value: Any, tensor_type: type) -> list[Any]:
    """The tensors in containers and dataclasses, outermost first; of a huge container, only those that come early."""
    found, waiting = [], [value]
    for each in waiting:
        if isinstance(each, tensor_type):
            found.append(each)
        elif len(waiting) < _MANY:
            waiting.extend(held_by(each))
    return found


def held_by(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return list(islice(value, _MANY))
    if isinstance(value, dict):
        return list(islice(value.values(), _MANY))
    return [getattr(value, name, None) for name in getattr(type(value), "__dataclass_fields__", ())]


def latest_of(args: Any, kwargs: Any, tensor_type: type) -> Any:
    """Of the nodes that made the arguments, the one that autograd reaches first; None if there is none."""
    latest, highest, nested = None, -1, False
    for value in chain(args, kwargs.values()) if kwargs else args:
        if isinstance(value, tensor_type):
            node = value.grad_fn  # type: ignore[attr-defined]
            if node is not None and (number := node._sequence_nr()) > highest:
                latest, highest = node, number
        elif isinstance(value, (tuple, list, dict)) or hasattr(type(value), "__dataclass_fields__"):
            nested = True
    if nested and latest is None:
        return latest_of(tensors_in((args, kwargs), tensor_type), None, tensor_type)
    return latest


def first_of(node: Any, entered: int) -> Any:
    """The first node of a small graph whose numbering began at `entered`; autograd leaves the graph through it."""
    first = node
    while first is not None and (number := first._sequence_nr()) >= entered:
        if number == entered:
            return first
        below = first.next_functions  # a Linear's last argument, its transposed weight, is made first
        first = below[-1][0] if below else None
    return least_of(node, entered)


def least_of(node: Any, entered: int) -> Any:
    first, waiting = node, [node]
    for each in waiting:
        if each._sequence_nr() < first._sequence_nr():
            first = each
        if first._sequence_nr() == entered:
            break
        if len(waiting) <= FEW:
            below = [one for one, _ in each.next_functions if one is not None]
            waiting += [one for one in below if entered <= one._sequence_nr() <= node._sequence_nr()]
    return first
