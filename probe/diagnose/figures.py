"""Figures as people read them: `61 ms`, `76 %`, `1,240`.

Used by rules and reports.  Invariant: pure; a unit stands beside every figure that has one.
"""

from __future__ import annotations


def ms(seconds: float) -> str:
    """`0.42 ms`, `61 ms`, `1.9 s`."""
    return f"{figure(seconds * 1e3)} ms" if seconds < 1 else f"{figure(seconds)} s"


def us(seconds: float) -> str:
    """`53 µs`; below 0.1 µs `61 ns`."""
    return f"{figure(seconds * 1e6)} µs" if seconds >= 1e-7 else f"{figure(seconds * 1e9)} ns"


def megabytes(mb: float) -> str:
    """`5.3 MB`; below 0.1 MB `61 kB`."""
    return f"{figure(mb)} MB" if mb >= 0.1 else f"{figure(mb * 1024)} kB"


def pct(share: float) -> str:
    """`76 %` of 0.76; below 10 % with a digit more."""
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"


def figure(value: float) -> str:
    """Some three significant digits, without an exponent."""
    digits = 2 if abs(value) < 1 else 1 if abs(value) < 10 else 0
    return f"{value:,.{digits}f}"


def number(value: float, noun: str = "") -> str:
    """How many, and of what: `24`, `1.5 samples`, `1 sample`, `1,240 calls`."""
    shown = f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
    return f"{shown} {noun}{'s' * (shown != '1')}" if noun else shown
