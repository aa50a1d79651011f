"""Devices whose clocks are held down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....errors import SilentError
from ...figures import figure, pct
from ...rule import Finding, Rule, Severity
from ...watched import Watched

LEAST = 0.2  # of the seconds: a device cools or slows down for moments
_FAULTS = {
    "hw_thermal_slowdown": "cooling: it is too hot",
    "sw_thermal_slowdown": "cooling: it is too hot",
    "hw_power_brake_slowdown": "the power supply: it asks the device to slow down",
    "hw_slowdown": "cooling or the power supply",
}
_CAP = "sw_power_cap"  # what a busy device meets in good health, too
_SQL = (
    "SELECT uuid, MIN(rank) AS rank, MIN(device) AS device, reason, COUNT(*) / ANY_VALUE(seconds) AS part, "
    "AVG(sm_clock_mhz) AS clock_mhz, ANY_VALUE(free_mhz) AS free_mhz, MAX(temperature_celsius) AS celsius, "
    "AVG(power_w) AS power_w FROM (SELECT *, UNNEST(throttle_reasons) AS reason, COUNT(*) OVER device_of AS seconds, "
    "MAX(sm_clock_mhz) OVER device_of AS free_mhz FROM host.gpu_trace WHERE {window} AND throttle_reasons IS NOT NULL "
    "WINDOW device_of AS (PARTITION BY uuid)) GROUP BY uuid, reason ORDER BY part DESC"
)


def _find(watched: Watched) -> Iterator[Finding]:
    (known,) = watched.rows("SELECT COUNT(throttle_reasons) AS seconds FROM host.gpu_trace WHERE {window}")
    if not known["seconds"]:
        raise SilentError("No device whose load is known.", code="unseen")
    for row in watched.rows(_SQL):
        if row["part"] >= LEAST and row["reason"] in (*_FAULTS, _CAP):
            yield _finding(watched, row)


def _finding(watched: Watched, row: dict[str, Any]) -> Finding:
    """What it costs is what the clock lacks to the highest that was seen meanwhile, if that differs."""
    lacks = 1 - row["clock_mhz"] / row["free_mhz"] if row["clock_mhz"] and row["free_mhz"] else None
    share = lacks * row["part"] if lacks else None
    severity: Severity = "hint" if row["reason"] == _CAP else "warning"
    return Finding(
        f"Throttled: {row['device']} of rank {row['rank']} is slowed down for {pct(row['part'])} of the time "
        f"({row['reason']}).",
        (row["rank"],),
        why=[_at(row)],
        remedy=_FAULTS.get(row["reason"], "nvidia-smi -pl, if the power limit is lower than it need be"),
        seconds=share * watched.step_s if share else None, share=share, severity=severity,
    )  # fmt: skip


def _at(row: dict[str, Any]) -> str:
    told = [("clock_mhz", "MHz"), ("celsius", "°C"), ("power_w", "W")]
    return "it is at " + ", ".join(f"{figure(row[name])} {unit}" for name, unit in told if row[name] is not None)


GPU_THROTTLED: Rule[Watched] = Rule(
    "gpu-throttled",
    "The clocks of a device are held down.",
    _find,
    needs=("host.gpu_trace", "python.step_trace"),
    sql=_SQL,
)
