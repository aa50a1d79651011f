"""An eval as the reader drives it: armed on every rank, then run by all of them at one step of the job.

Called by Connection.eval.  The life of an eval, message by message; agent/evals/ is the other side:

    the reader sends    a rank                                                  and answers
    arm                 keeps the snippet                                       armed: how far it is
    go, count           stops its training at the boundary after `count` steps  ready
    stay                waits 5 s longer for `run`
    run                 runs the snippet and goes on training                   out, wants, done
    pass                begins the operation that it wants, or raises in it
    cancel              drops the snippet, or ends it if it has begun           error or done

`go` names a step that no rank has reached as far as is known; `run` goes out once all ranks are ready.  A rank that has
passed the step, or gets neither `stay` nor `run`, answers eval-missed: then all are cancelled, and if nothing has run
the next attempt names a later step.  For one rank, or ranks that share no process group, count is -1: each runs the
snippet at its next boundary without `ready` and `run`.  With --now it runs at `go`, on a thread of its own.

In front of each operation between ranks a snippet waits for `pass`, which goes out to all ranks of the operation once
they all stand there (operations.py).  So a snippet that has ended, failed or was cancelled on one rank does not leave
another one in an operation that nobody else comes to, or that a collective of the training would meet.

Invariant: whatever happens, no rank is left armed, and the caller hears within half a second after the time-out or
Ctrl-C (up to eleven if there were operations between ranks), if need be which rank does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..client.agent_requests import chosen
from ..client.client import AgentLink, Client
from ..errors import EvalError, Interrupted, ProbeError, SilentError
from ..settings import require_seconds
from ..snapshot.align import Alignment
from .attempt import Attempt
from .snippet import EvalResult, OnOutput, Snippet
from .waiting import Waiting, require_torch, where_it_is

_ATTEMPTS = 4
_ENDS = "It ends when its call into native code returns, or once it lets an exception of any type through."


def evaluate(
    client: Client, alignment: Alignment, snippet: Snippet, patience: float, on_output: OnOutput | None
) -> EvalResult:
    """Run it: on several ranks of a process group at one step of the job, for a collective in it would hang otherwise.

    A snippet that raises is a result, not an error.  Raises UsageError, EvalError, SilentError, Interrupted.
    """
    if snippet.timeout is not None:
        hint = "Give seconds above 0, or None: 30 s or ten steps to wait for the step, and any time to run."
        require_seconds("timeout", snippet.timeout, hint)
    links, waiting = chosen(client.links, snippet.ranks), Waiting(client, snippet.timeout, on_output)
    if not snippet.now:
        require_torch(links)
        alignment.settle()
    together = not snippet.now and len(links) > 1 and any(link.facts.distributed for link in links)
    if together:
        alignment.same_steps(links, waiting.look)
    here = [link.rank for link in links]
    everyone = set(here) >= set(range(max(link.facts.world_size or 1 for link in links)))
    if snippet.ranks is not None or not everyone:  # an endpoint may be one rank of several
        snippet = replace(snippet, ranks=here)
    missed: BaseException | None = None
    for number in range(_ATTEMPTS):
        attempt = Attempt(client, snippet, patience, on_output, waiting, together, number)
        try:
            attempt.arm(links)
            attempt.go()
            attempt.finish()
        except BaseException as error:
            stuck = attempt.withdraw()
            attempt.tell_rest()
            interrupted, client.interrupted = attempt.interrupted or client.interrupted, False
            code = error.code if isinstance(error, ProbeError) else ""
            if code == "eval-missed" and not stuck and not attempt.anything_ran():
                if interrupted:
                    raise Interrupted("Interrupted.") from None
                missed = error
                continue
            if stuck and code in ("interrupted", "eval-timeout"):
                raise _did_not_stop(client, snippet, stuck) from None
            if isinstance(error, SilentError) and (ran := attempt.ran()):
                raise SilentError(f"{error.message} The snippet: {ran}.", error.hint, error.code) from None
            raise
        return attempt.results()
    raise EvalError(f"The ranks did not agree on a step: {missed}", "Run it with --now.", "eval-missed")


def _did_not_stop(client: Client, snippet: Snippet, stuck: Sequence[AgentLink]) -> EvalError:
    named, waits = ", ".join(link.number for link in stuck), "" if snippet.now else "; the job waits for it"
    where = where_it_is(client, stuck[0], snippet.filename)
    return EvalError(f"The snippet did not stop on rank {named}: {where}{waits}.", _ENDS, "eval-timeout")
