"""Ranks whose device has not come to what their host has issued."""

from __future__ import annotations

from collections.abc import Iterator

from ....text import title
from ...hang.evidence import Evidence
from ...hang.report import called
from ...rule import Finding, Rule


def _device(evidence: Evidence) -> Iterator[Finding]:
    for each in evidence.waits[:1]:
        if each.queued and not each.missing and not each.unknown:
            whose = f"the device{'s' * (len(each.queued) > 1)} of {title(each.queued)}"
            sentence = f"{whose.capitalize()} {'have' if len(each.queued) > 1 else 'has'} not come to {called(each)}: "
            yield Finding(f"{sentence}something that was issued before it does not end.", each.queued)


DEVICE = Rule(
    "device",
    "All ranks have issued a collective, and the device of some has not come to it: a kernel or a copy does not end.",
    _device,
    "critical",
)
