"""The function in which a late rank spends more time than the others, by some looks at all stacks.

Called by stragglers.py where nothing has been profiled.  Invariant: a function is of the job's own code.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from ..rule import Tables
from .statistics import above_others

_LOOKS, _PAUSE_S = 20, 0.03
_WORTH = 0.2  # of the looks
_LIBRARIES = ("/site-packages/", "/dist-packages/", f"/lib/python{sys.version_info.major}.")
_SQL = "SELECT rank, function, file, line FROM python.stack WHERE is_main ORDER BY rank, depth DESC"


def by_looks(tables: Tables, ranks: Sequence[int], rank: int) -> str:
    """As `prepare (data.py:9)`; '' if there is none."""
    seen: dict[str, Counter[int]] = {}
    for _ in range(_LOOKS):
        for stack_of, where in _stand(tables).items():
            seen.setdefault(where, Counter())[stack_of] += 1
        time.sleep(_PAUSE_S)
    excess = {where: above_others(_of(counts, ranks), rank) for where, counts in seen.items()}
    where = max(excess, key=lambda each: excess[each], default="")
    return where if where and excess[where] > _WORTH * _LOOKS else ""


def _of(counts: Mapping[int, int], ranks: Sequence[int]) -> dict[int, float]:
    return {each: counts.get(each, 0) for each in ranks}


def _stand(tables: Tables) -> dict[int, str]:
    """The innermost function of the job's own on the main thread of each rank."""
    own = (row for row in tables.query(_SQL).to_pylist() if not _is_library(row["file"]))
    return {row["rank"] or 0: f"{row['function']} ({os.path.basename(row['file'])}:{row['line']})" for row in own}


def _is_library(file: str) -> bool:
    return any(part in file for part in _LIBRARIES) or file.startswith("<")
