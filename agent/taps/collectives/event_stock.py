"""Events made ahead for the operations on devices: a bounded stock of each device.

device_works.py takes events and gives them back; the agent's thread replaces those that got lost.
Invariant: an event comes back to the stock it was taken from, because CUDA records it on no other device once it was
recorded on one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any


class EventStock:
    """Any thread.  most: events of a device, whether in the stock or in use."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._spare: dict[int, deque[Any]] = {}  # by index of the device

    def take(self, index: int, make: Callable[[], Any]) -> Any:
        """An event that is not in use; None if there is none.  The first time, all of the device are made."""
        if index not in self._spare:
            self._fill(index, make, 0)
        try:
            return self._spare[index].pop()
        except IndexError:
            return None

    def give_back(self, index: int, events: Iterable[Any]) -> None:
        self._spare.setdefault(index, deque()).extend(event for event in events if event is not None)

    def fill(self, make: Callable[[], Any], in_use: Callable[[int], int]) -> None:
        """in_use: how many events of a device are, at most."""
        for index in list(self._spare):
            self._fill(index, make, in_use(index))

    def _fill(self, index: int, make: Callable[[], Any], in_use: int) -> None:
        spare = self._spare.setdefault(index, deque())
        spare.extend(make() for _ in range(self._most - in_use - len(spare)))

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._spare.values())

    def __len__(self) -> int:
        return sum(map(len, self._spare.values()))
