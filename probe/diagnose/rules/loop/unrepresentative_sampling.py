"""Sampled steps that do not stand for all, so that what is known of them only is not that of the mean step."""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot

from ....errors import SilentError
from ...figures import ms, pct
from ...ratio import ratio, sure_above
from ...rule import Finding, Rule
from ...watched import BLOCK, LEAST_BLOCKS, LEAST_STEPS, Watched

_LEAST, _MOST = 0.83, 1.2  # times as long as all: within that, a share changes by less than verdicts differ
_SURE = 0.9
_TIMES = 4  # as many steps as were watched: for the next watch, and until somebody asks for it
_SQL = (
    "SELECT sampled, step, AVG(duration) AS duration FROM python.step_trace WHERE {window} AND duration IS NOT NULL "
    "AND COALESCE(eval_duration, 0) = 0 GROUP BY ALL ORDER BY step"
)


def _find(watched: Watched) -> Iterator[Finding]:
    sampled, others = ([row for row in watched.rows(_SQL) if row["sampled"] is is_so] for is_so in (True, False))
    if not others:
        return
    sampled_s, error = _mean(watched, sampled, "sampled")
    others_s, other_error = _mean(watched, others, "unsampled")
    part = len(sampled) / (len(sampled) + len(others))
    every_s = part * sampled_s + (1 - part) * others_s
    more = sampled_s > every_s
    margin_s = sampled_s - _MOST * every_s if more else _LEAST * every_s - sampled_s
    sure = sure_above(margin_s, (1 - part) * hypot(error, other_error), 0.0)
    if sure >= _SURE:
        yield Finding(
            f"Sampled steps take {pct(abs(sampled_s / every_s - 1))} {'more' if more else 'less'} time than the mean "
            "step: shares of forward, validation and other are less certain.",
            why=[f"{len(sampled)} sampled steps take {ms(sampled_s)}, {len(others)} others {ms(others_s)}"],
            remedy=f"probe {watched.endpoint} set sample=1 for={_TIMES * watched.steps}",
            severity="hint", confidence=sure,
        )  # fmt: skip


def _mean(watched: Watched, rows: list[dict[str, float]], kind: str) -> tuple[float, float]:
    """The mean duration of these steps and its standard error.  Raises SilentError for too few blocks."""
    blocks = [int(row["step"]) // BLOCK for row in rows]
    if len(set(blocks)) < LEAST_BLOCKS:
        message = f"Fewer than {LEAST_STEPS} {kind} steps tell how long they take."
        raise SilentError(message, f"Watch for longer: probe {watched.endpoint} why --seconds 120", "few-steps")
    return ratio(blocks, [row["duration"] for row in rows], [1.0] * len(rows))


UNREPRESENTATIVE_SAMPLING: Rule[Watched] = Rule(
    "unrepresentative-sampling",
    "Sampled steps take another time than the others, so what is known of them alone is less certain.",
    _find,
    severity="hint",
    needs=("python.step_trace",),
    sql=_SQL,
)
