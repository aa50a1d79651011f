"""Ranks whose training waits for a snippet that an eval runs there."""

from __future__ import annotations

from collections.abc import Iterator

from ....text import grouped, title
from ...hang.evidence import Evidence
from ...hang.report import seconds, together
from ...rule import Finding, Rule


def _snippet(evidence: Evidence) -> Iterator[Finding]:
    held = [each for each in evidence.ranks if each.holder]
    if held:
        whose = grouped((each.holder, each) for each in held)
        told = [
            f"a snippet of {holder} has held {title([each.rank for each in ranks])} for "
            f"{seconds(max(each.held_s or 0.0 for each in ranks))}"
            for holder, ranks in whose.items()
        ]
        sentence = f"{'; '.join(told)}: {'; '.join(together(held))}."
        ranks = tuple(each.rank for each in held)
        yield Finding(sentence[0].upper() + sentence[1:], ranks, remedy=f"probe {evidence.endpoint} detach")


SNIPPET = Rule("snippet", "The code of an eval still runs, and the training waits for it.", _snippet, "critical")
