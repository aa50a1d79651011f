"""Arrays of 64-bit integers and of truth values, and which integers there are among many.

Most are serial numbers and threads, of which there are few.  Used in place of numpy's unique(), which sorts a million
of them, and to return nothing else imports numpy.ma: that takes longer than most queries.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
AnyArrays = TypeVar("AnyArrays", bound="Arrays")

NONE = -1  # for a place, where there is none
_WIDE = 1 << 20  # the range of values for which a count of each is no burden


class Arrays:
    """The base of a dataclass whose fields are arrays of one length: an element of each makes a row."""

    __dataclass_fields__: dict[str, object]

    def of(self: AnyArrays, rows: Ints | Bools | slice) -> AnyArrays:
        """The chosen rows, in that order."""
        return type(self)(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def plus(self: AnyArrays, *others: AnyArrays) -> AnyArrays:
        """These rows and then the others'."""
        columns = ([getattr(one, name) for one in (self, *others)] for name in self.__dataclass_fields__)
        return type(self)(*map(np.concatenate, columns))


def distinct(values: Ints) -> Ints:
    """The values that occur, rising."""
    if not len(values):
        return np.zeros(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if low == high:
        return np.array([low], np.int64)
    if high - low > _WIDE + len(values):
        rising = np.sort(values)
        found: Ints = rising[np.append(True, rising[1:] != rising[:-1])]
        return found
    return np.flatnonzero(np.bincount(values - low)) + low


def first_places(values: Ints) -> tuple[Ints, Ints]:
    """The values that occur, rising, and where each occurs first."""
    known = distinct(values)
    if not len(known) or int(known[-1]) - int(known[0]) > _WIDE + len(values):
        return np.unique(values, return_index=True)
    first = np.zeros(int(known[-1]) - int(known[0]) + 1, np.int64)
    first[values[::-1] - known[0]] = np.arange(len(values) - 1, -1, -1)  # of several the last one assigned stays
    return known, first[known - known[0]]


def places(values: Ints, known: Ints) -> Ints:
    """The place of each value among `known`, which are the distinct ones."""
    if not len(known) or int(known[-1]) - int(known[0]) > _WIDE + len(values):
        return np.searchsorted(known, values)
    place = np.zeros(int(known[-1]) - int(known[0]) + 1, np.int64)
    place[known - known[0]] = np.arange(len(known))
    result: Ints = place[values - known[0]]
    return result


def find(values: Ints, known: Ints) -> Ints:
    """The place of each value among `known`, which rise; NONE for one that is not there."""
    if not len(known):
        return np.full(len(values), NONE, np.int64)
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[place] == values, place, NONE)
