"""What Tab offers as a word of a command line: attached jobs, processes with torch, tables, names of settings.

Called by click with what is typed of the word.  Invariant: nothing is asked of a job, and a failure offers nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from probe.errors import ProbeError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from .listing import Job

Offer = Callable[[click.Context, Any, str], "list[CompletionItem[Any]]"]


def endpoints(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem[Any]]:
    """Names and pids of attached jobs, where no endpoint is given yet."""
    return (
        [] if _is_given(ctx) else _items({word: what for job in _running() for word, what in _named(job)}, incomplete)
    )


def processes(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem[Any]]:
    """Pids of jobs with torch, attached or not."""
    return _items({str(job.pid): job.shortened for job in _running() if job.has_torch}, incomplete)


def tables(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem[Any]]:
    from probe.tables import TABLES

    return _items({table.name: table.doc for table in TABLES}, incomplete)


def words(known: Iterable[str]) -> Offer:
    """These."""
    return lambda ctx, param, incomplete: _items(dict.fromkeys(known, ""), incomplete)


def _is_given(ctx: click.Context) -> bool:
    return bool(ctx.params.get("endpoints") or ctx.params.get("words"))


def _running() -> list[Job]:
    from .listing import running

    with contextlib.suppress(ProbeError, OSError):
        return running()
    return []


def _named(job: Job) -> Iterator[tuple[str, str]]:
    for facts in job.attached[:1]:
        yield str(job.pid), job.shortened
        if facts.name:
            yield facts.name, job.shortened


def _items(known: Mapping[str, str], incomplete: str) -> list[CompletionItem[Any]]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word, help=what or None) for word, what in known.items() if word.startswith(incomplete)]
