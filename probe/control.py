"""The calls of a connection that change the job: eval, capture, set, trace, history, detach, serve.

The base of probe.connection.Connection.  Invariant: a request that some rank must refuse is sent to none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .client import agent_requests
from .client.client import Client
from .client.handshake import whoami
from .client.traces import RankTrace, Wanted, change_all, trace
from .evals.snippet import EvalResult, OnOutput, Snippet, losses, told_names
from .evals.step_variable import count_by
from .settings import checked_settings, require_seconds
from .snapshot.align import Alignment

if TYPE_CHECKING:
    from .capture.capture import RankCapture
    from .memory.histories import RankHistory


class Control:
    """See Connection."""

    timeout: float
    notes: list[str]
    unreached: list[agent_requests.Unreached]
    _client: Client
    _alignment: Alignment

    @abstractmethod
    def _begin(self, what: str = "", control: bool = False) -> None:
        """Begin a call.  what: it needs agents, and if `control` a key that may control them."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def eval(
        self, code: str, *, ranks: Sequence[int] | None = None, now: bool = False, timeout: float | None = None,
        write: bool = True, filename: str = "<eval>", on_output: OnOutput | None = None, frame: str = "",
    ) -> EvalResult:  # fmt: skip
        """Run Python in the job: at the same step on all ranks (or these), between two iterations; or at once (now).

        A snippet that raises gives a result that is not ok.  on_output(ranks, "stdout" | "stderr" | "waiting", text)
        gets output as it comes, what the job does meanwhile, what was dropped.  timeout: for both; None: to wait 30 s,
        or ten steps if they take longer.  frame: the function whose variables it sees, or the frame's number, outward.
        Raises EvalError, SilentError, AgentError, Interrupted.  Cost: the job stands still while the snippet runs.

        Example: `job.eval("optimizer.param_groups[0]['lr'] = 1e-4")[0].ok`
        """
        return self._evaluate(Snippet(code, filename, now, timeout, write, whoami(), ranks, frame), on_output)

    def names(self, pattern: str = "", *, rank: int = 0, frame: str = "", now: bool = False) -> list[dict[str, Any]]:
        """What eval can see on a rank: name, type, shape, device, value, where, step.  pattern: of names, attributes.
        Raises what eval() raises.  Cost: some milliseconds at a boundary.

        Example: `[each["name"] for each in job.names("optimizer")]`
        """
        snippet = Snippet(f"# names {pattern}", "<names>", now, None, False, whoami(), [rank], frame, pattern)
        return told_names(self._evaluate(snippet, None))

    def _evaluate(self, snippet: Snippet, on_output: OnOutput | None) -> EvalResult:
        self._begin("eval", control=True)
        from .evals.evaluation import evaluate

        results = evaluate(self._client, self._alignment, snippet, self.timeout, on_output)
        self.notes += losses(results)
        return results

    def capture(
        self, steps: int = 3, *, shapes: bool = False, folder: str = "", ranks: Sequence[int] | None = None,
        on_output: OnOutput | None = None,
    ) -> list[RankCapture]:  # fmt: skip
        """Run torch's profiler over so many whole steps (at most 100), the same on all ranks (or these); what it was on
        each.

        Its operators are rows of python.op_trace from then on, what ran on devices rows of python.kernel_trace; with
        `shapes` they have those, FLOPs and bytes.  folder: takes the traces, a file of Chrome's format a rank.
        on_output: as for eval.  Raises AgentError where a profiler runs already, and what eval() raises.
        Cost: steps become up to twice as long; then the job stands for some 10 to 40 µs per operator.

        Example: `job.capture(2); job.query("SELECT operator, SUM(duration) FROM python.op_trace GROUP BY 1")`
        """
        self._begin("capture", control=True)
        from .capture.capture import Order, capture

        order = Order(steps, shapes, folder, whoami(), ranks)
        return capture(self._client, self._alignment, order, self.timeout, on_output)

    def set(self, **settings: Any) -> list[dict[str, Any]]:
        """Change how every rank samples and counts steps; the settings of each rank that answers, with its rank.

        sample: "auto", or N to record one of N blocks of ten steps (1: all), with for_steps no less often for so many
        steps only (set without, it ends that); budget_pct: the overhead that auto may cause; backward: whether it is
        recorded too; step: the job's variable that counts steps.  Raises UsageError, AgentError, SilentError, of step
        EvalError.
        Cost: one request, and for step an eval.

        Example: `job.set(sample=1)`
        """
        self._begin("set", control=True)
        step = settings.pop("step", None)
        checked_settings(settings)  # before anything changes
        if step is not None:
            count_by(self, self._client, step, self.timeout)
        found, self.unreached, notes = agent_requests.set_sampling(self._client, settings, self.timeout)
        self.notes += notes
        return found

    def trace(
        self, function: str, seconds: float = 10.0, *, since: str = "", keep: bool = False,
        ranks: Sequence[int] | None = None,
    ) -> list[RankTrace]:  # fmt: skip
        """Record each call of a function as a row of python.call_trace, on all ranks (or these), for so long.

        function: `module:function`, `module:Class.method`, `file.py:function` or a name that is unique in the job;
        since: an argument, or an attribute or key of one, with a time stamp; keep: it stays on after that.  See
        unreached for ranks without the function.
        Raises AgentError if no rank has it or it is called too often, Interrupted.  Cost: some microseconds a call.

        Example: `job.trace("app:predict", 5); job.query("SELECT MAX(duration) FROM python.call_trace")`
        """
        self._begin("trace", control=True)
        require_seconds("seconds", seconds)
        links, wanted = agent_requests.chosen(self._client.links, ranks), Wanted(function, seconds, since, keep)
        taken, self.unreached = trace(self._client, links, wanted, self.timeout)
        return taken

    def history(
        self, seconds: float = 10.0, *, steps: int = 0, entries: int = 50_000, stacks: bool = True
    ) -> list[RankHistory]:
        """Have torch record what the CUDA allocators of all ranks do for so long, or so many whole steps (the seconds
        are then the most); what that was on each.

        Each thing that an allocator did is a row of python.allocation_trace from then on; of each device the last so
        many entries.  stacks: with the Python stack of each allocation.  See unreached for ranks without CUDA.
        Raises AgentError where the job records it itself, Interrupted.  Cost: some 2 µs an allocation with its stack;
        at the end torch keeps the GIL for some 2 µs an entry.

        Example: `job.history(3); job.query("SELECT function, SUM(bytes) FROM python.allocation_trace GROUP BY 1")`
        """
        self._begin("history", control=True)
        from .memory.histories import Order, record

        require_seconds("seconds", seconds)
        links, order = agent_requests.chosen(self._client.links, None), Order(steps, seconds, entries, stacks)
        taken, self.unreached = record(self._client, links, order, self.timeout)
        return taken

    def traces(self) -> list[RankTrace]:
        """The functions that are traced now, on all ranks; see unreached for those that did not answer.

        Raises AgentError if the key may only read, SilentError, Interrupted.  Cost: one request.

        Example: `[each.function for each in job.traces()]`
        """
        return self._all_traces("traces", None)

    def stop_traces(self) -> list[RankTrace]:
        """End all traces, also those of other commands: what they were.  The rows stay.  See unreached for ranks that
        did not answer.

        Raises AgentError if the key may only read, SilentError, Interrupted.  Cost: one request.

        Example: `assert job.stop_traces() and not job.traces()`
        """
        return self._all_traces("stop traces", "stop")

    def _all_traces(self, what: str, to: str | None) -> list[RankTrace]:
        self._begin(what, control=True)
        found, self.unreached = change_all(self._client, to, self.timeout)
        self.notes += [f"{each.why}." for each in self.unreached]
        return found

    def detach(self) -> list[str]:
        """Remove every agent and wait for its end; lines that say what had to stay in which rank.

        Raises AgentError if the key may only read, DetachError if a snippet does not end (the lines are then
        `notes`), Interrupted.  Cost: one boundary, at which the taps are removed.

        Example: `assert not job.detach()`
        """
        self._begin("detach", control=True)
        left, self.unreached, error = agent_requests.detach(self._client, self.timeout)
        if error is not None:
            self.notes = left
            raise error
        return left

    def serve(
        self, listen: Mapping[str, Any] | None = None, *, foreground: bool = False,
        on_ready: Callable[[list[str]], object] | None = None,
    ) -> list[str]:  # fmt: skip
        """Start another server beside the job, in place of the one it has; its endpoints, which on_ready gets first.

        listen: where it also accepts queries from other hosts (probe.attach.listening.Listen.order); foreground: run it
        here until its agents are gone or Ctrl-C.  Raises UsageError, AttachError for a port.  Cost: one request.

        Example: `print(job.serve())`
        """
        self._begin("serve", control=True)
        from .serve.replacing import serve

        return serve(self._client, listen, self.timeout, on_ready, self.close if foreground else None)

    def restore_servers(self) -> None:
        """Start the server of a job on this host that has none; the connection itself goes on without it.

        What keeps it from starting is a note.  Raises nothing.  Cost: some milliseconds if there is none.

        Example: `job.restore_servers()`
        """
        if any(link.asked_directly for link in self._client.links):
            from .serve.replacing import restore

            self.notes += restore(self._client, self.timeout)
