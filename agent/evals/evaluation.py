"""One snippet, from `arm` to `done`: it runs at a boundary, or on a thread beside the training.

Made by evals.py, whose `send` delivers the messages.  Invariant: whatever the snippet does, the thread goes on as if it
had called a function that returned, and the client gets exactly one `done`.  Only what a signal handler of the job
raises meanwhile ends the snippet and then reaches the job.
"""

from __future__ import annotations

import json
import sys
from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

from ...protocol import DONE
from ...streams import EVAL, FAILED, LOG_EVAL, LOG_EVAL_DONE
from ..fault import in_words
from ..inspect.call_around import call_around
from ..inspect.frames import frames_of_others
from ..job_signals import raised_by_handler
from ..names.descriptions import described
from ..names.namespace import Namespace, NoFrame
from ..storage.log import Log
from ..storage.rows import Stream
from ..torch_state import is_distributed
from .echo import echo
from .failure import describe_failure
from .gates import OperationGate
from .interrupt import Cancelled, Interruptible
from .output import Output, Send, capture, release

_PARSE_ATTEMPTS = 20  # another thread may spoil some
_MOST_PLACES, _PLACE_CHARACTERS = 20, 200
_INTERRUPTED = "interrupted by a signal of the job"


class Evaluation:
    """run_at() or run_now() once; cancel() and flush() from any thread."""

    def __init__(
        self,
        code: str,
        filename: str,
        write: bool,
        send: Send,
        log: Log,
        spans: Stream,
        own: dict[str, Any],
        by: str = "",
        where: str = "boundary",
        ranks: list[int] | None = None,
        frame: str = "",
        names: str | None = None,
        instead: Callable[[], str] | None = None,
    ) -> None:
        """frame: see Namespace; names: say which names there are, of this pattern, and run nothing; instead: called in
        place of the snippet, returns what to tell."""
        self._chosen, self._names, self._instead = frame, names, instead
        self.ranks, self.where, self.by = ranks, where, by
        self.running, self.done = False, False
        self.thread: int | None = None
        self.filename = filename
        self._code, self._write = code, write
        self._send, self._log, self._spans, self._own = send, log, spans, own
        self._output = Output(send)
        self.operations = OperationGate(send)
        self._interruptible = Interruptible()
        self._compiled: list[CodeType] = []
        self._imported: frozenset[str] = frozenset()
        self._in_place: list[str] = []  # what it has assigned to, other than names
        self._for_job: BaseException | None = None  # what a signal handler of the job has raised

    def run_at(self, frame: FrameType, count: int, since: int = 0) -> None:
        """At a boundary after `count` steps, in the driving loop's frame.  since: when the job was stopped, in ns."""
        self._run(lambda: frame, count, since or perf_counter_ns())

    def run_now(self, training: int | None) -> None:
        """On a thread of its own: sees the frames of the training thread if that is known, else of the main thread."""
        self._run(partial(_frame_of, training), None, perf_counter_ns())

    def cancel(self) -> None:
        """Interrupt the snippet, or keep it from starting.  Call again if it goes on."""
        self._interruptible.cancel()

    @property
    def is_in_call(self) -> bool:
        """Whether the snippet is in a call into torch, in a job with a process group: after an exception in a backward
        pass of DDP, its next forward raises.  Not on the snippet's thread."""
        if not self.running or not is_distributed():
            return False
        return call_around(frames_of_others().get(self.thread or 0), self.filename) is not None

    def flush(self) -> None:
        """Send the output that is buffered."""
        self._output.flush()

    # ---- around the snippet

    def _run(self, frame: Callable[[], FrameType | None], count: int | None, start: int) -> None:
        id = self._log.next_id()
        self._log.put(LOG_EVAL, id, {"by": self.by, "code": self._code, "where": self.where, "ranks": self.ranks})
        self.thread, self.running = get_ident(), True
        done = _done(error=_INTERRUPTED)
        try:
            done = self._evaluate(frame)
        except Exception as error:  # a bug of ours must not reach the job's loop, which is next on the stack
            if raised_by_handler(error):
                raise
            done = _done(error=f"the agent failed: {in_words(error)}")
        finally:
            try:
                end = perf_counter_ns()
                self._spans.append(start, end, id, get_ident(), EVAL if done["ok"] else EVAL | FAILED)
                said = {key: done[key] for key in ("ok", "error", "changed")}
                self._log.put(LOG_EVAL_DONE, id, {"start_ns": start, "end_ns": end, **said})
                self._send(DONE, {**done, "count": count, "held_ns": end - start})
            finally:  # only now: who learned first that nothing runs would take the step for one that was missed
                self.running, self.done = False, True
        if (raised := self._for_job) is not None:
            try:
                raise raised
            finally:
                self._for_job = raised = None  # its traceback refers to this frame: leave no cycle

    def _evaluate(self, frame: Callable[[], FrameType | None]) -> dict[str, Any]:
        if self._instead is not None:
            return _done(ok=True, echo=self._instead())
        try:
            names = Namespace(frame(), self._own, self.where == "now", self._chosen)
        except NoFrame as error:
            return _done(error=str(error), ran=False)
        if self._names is not None:
            try:
                return _done(ok=True, echo=json.dumps(described(names, self._names)))
            finally:
                names.release([])
        capture(self._output)
        try:
            done = self._attempt(names)
        finally:
            self.operations.next_line.remove()
            release()
            self._output.flush()
        done["changed"] = (names.write(self._imported) if self._write else []) + self._in_place
        names.release(self._compiled)
        if done["echo"] is not None:
            done["echo"] = self._output.cut(done["echo"])
        done["dropped_bytes"] = self._output.dropped_bytes
        return done

    def _attempt(self, names: Namespace) -> dict[str, Any]:
        try:
            return _done(ok=True, echo=self._interruptible.run(partial(self._snippet, names.names)))
        except BaseException as error:  # sys.exit and KeyboardInterrupt of the snippet among them
            self._interruptible.cancelled = False
            if not isinstance(error, Cancelled) and raised_by_handler(error):
                self._for_job = error
                return _done(error=f"{_INTERRUPTED} ({type(error).__name__})")
            return _done(**describe_failure(error, self._code, self.filename, self._interruptible))

    def _snippet(self, names: dict[str, Any]) -> str | None:
        """Run it.  Returns the repr of its last expression, if it ends in one whose value is not None."""
        import ast

        tree = parsed(self._code, self.filename)
        self._imported = _only_imported(tree)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._compiled.append(compile(tree, self.filename, "exec", dont_inherit=True))
        if last is not None:
            self._compiled.append(compile(ast.Expression(last.value), self.filename, "eval", dont_inherit=True))
        exec(self._compiled[0], names)
        value = None if last is None else eval(self._compiled[1], names)
        self._in_place = _assigned_in_place(tree)
        return None if value is None else echo(value)


def _done(**known: Any) -> dict[str, Any]:
    """The fields of `done`: the defaults of a snippet that did nothing, updated with `known`."""
    nothing = {"ok": False, "ran": True, "echo": None, "error": None, "traceback": None, "cancelled": False}
    return {**nothing, "changed": [], "dropped_bytes": 0, **known}


def _frame_of(thread: int | None) -> FrameType | None:
    """The current frame of that thread, which is not this one."""
    frames, threading = frames_of_others(), sys.modules.get("threading")
    if thread not in frames and threading is not None:
        thread = threading.main_thread().ident
    return None if thread is None else frames.get(thread)


def parsed(code: str, filename: str) -> Any:
    """The syntax tree of the code.

    CPython 3.11 to 3.13.0 share one depth counter among all threads that build trees, and raise SystemError if another
    thread parses in between.  The snippet is not at fault then, so parsing is tried again.
    """
    import ast

    for _ in range(_PARSE_ATTEMPTS):
        with suppress(SystemError):
            return compile(code, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    return compile(code, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)


def _assigned_in_place(tree: Any) -> list[str]:
    """`args.x`, `optimizer.param_groups[0]['lr']`: targets of outermost statements, all of which have run."""
    import ast

    targets: list[Any] = []
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets += node.targets
        elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.AnnAssign) and node.value is not None):
            targets.append(node.target)
    parts = (part for target in targets for part in getattr(target, "elts", (target,)))
    found = [ast.unparse(part) for part in parts if isinstance(part, (ast.Attribute, ast.Subscript))]
    return [text[:_PLACE_CHARACTERS] for text in dict.fromkeys(found[:_MOST_PLACES])]


def _only_imported(tree: Any) -> frozenset[str]:
    """Names bound only by imports: a snippet's `import time` must not overwrite the job's `from time import time`."""
    import ast

    imported: set[str] = set()
    bound: set[str] = set()
    todo: list[Any] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        else:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            todo += ast.iter_child_nodes(node)
    return frozenset(imported - bound)
