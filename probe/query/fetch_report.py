"""What a query cost: what each rank sent for it, and what making its tables took.  `--explain-fetch` shows it.

Called by probe.connection.  Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..snapshot.scans import Scan

_LINE = "{:>4}  {:<12}{:>12}{:>10}{:>9}"
_MOST = 40  # lines; the ranks that sent most are shown


def explained(scans: Sequence[Scan], fetching_s: float, tables_s: Mapping[str, float], whole_s: float) -> list[str]:
    """Lines of text.  fetching_s: of the time for tables; whole_s: of the query."""
    lines = [_LINE.format("rank", "stream", "rows", "MB", "ms")] if scans else []
    for scan in sorted(
        sorted(scans, key=lambda scan: -scan.bytes)[:_MOST], key=lambda scan: (scan.raw.rank, scan.stream)
    ):
        lines.append(
            _LINE.format(scan.raw.rank, scan.stream, f"{scan.rows:,}", f"{scan.bytes / 1e6:.2f}", f"{scan.ms:.0f}")
        )
    if len(scans) > _MOST:
        lines.append(f"      and {len(scans) - _MOST} smaller ones")
    rows, size = sum(scan.rows for scan in scans), sum(scan.bytes for scan in scans) / 1e6
    made = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in tables_s.items())
    making_s = sum(tables_s.values())
    lines.append(f"fetched {rows:,} rows, {size:.2f} MB in {fetching_s * 1e3:.0f} ms")
    lines.append(
        f"tables made in {max(0.0, making_s - fetching_s) * 1e3:.0f} ms" + (f" (with fetching: {made})" if made else "")
    )
    lines.append(f"DuckDB and all else {max(0.0, whole_s - making_s) * 1e3:.0f} ms")
    return lines
