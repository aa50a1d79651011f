"""Which of autograd's nodes bear the marks of a module call: looked for in what it was given and what it returned.

Called by backward.py around each module call, on the training thread.  The one invariant: nodes are looked at and
none is kept, for a node keeps its graph alive.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

FEW = 8  # nodes of a module that is small enough to be walked through
IDLE = ("TBackward0", "TransposeBackward0")  # nodes that only relabel and never copy: once reached, done
_MANY = 256  # of what containers hold we look at so much


def tensors_in(value: Any, tensor_type: type) -> list[Any]:
    """The tensors in containers and dataclasses, outermost first; of a huge one, those that come soon."""
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
    """The node, of those that made the arguments, to which autograd comes first; None if there is none."""
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
    """The first node of a small graph that was begun at this number; autograd is through with the graph after it."""
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
