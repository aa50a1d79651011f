"""The part of docs/benchmarks.md that a run writes: tables between two markers, with day, machine and versions.

The one invariant: what stands outside the markers is not touched.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from statistics_of_pairs import Interval

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
_VERSIONS = """
import json, platform
from importlib.metadata import version
print(json.dumps({"CPython": platform.python_version(), **{n: version(n) for n in NAMES}}))
"""


def replaced(text: str, section: str, body: str) -> str:
    """The page's text with the section's content exchanged; a page without its markers is refused."""
    begin, end = f"<!-- {section}: written by make bench -->", f"<!-- end of {section} -->"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"no markers of {section} in the page: {begin} … {end}")
    return f"{before}{begin}\n\n{body.strip()}\n\n{end}{after}"


def write(section: str, body: str, page: Path = PAGE) -> None:
    page.write_text(replaced(page.read_text(encoding="utf-8"), section, body), encoding="utf-8")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])


def shown(interval: Interval | None, digits: int = 3) -> str:
    """1.012 (1.004 to 1.021)."""
    if interval is None:
        return "the job fails"
    value, low, high = (f"{number:.{digits}f}" for number in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"


def circumstances(python: str, names: Sequence[str], day: datetime.date | None = None) -> str:
    """One sentence each: the day, the machine, the versions that this Python has, and how busy the machine was."""
    code = _VERSIONS.replace("NAMES", repr(tuple(names)))
    versions = json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout)
    kernel = ".".join(platform.release().split(".")[:2])
    return (
        f"Day: {day or datetime.date.today()}. "
        f"Machine: {os.cpu_count()} cores, Linux {kernel} on {platform.machine()}, no GPU used. "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}. "
        f"Load when it ended: {os.getloadavg()[1]:.1f}, of which 1 is the job's."
    )
