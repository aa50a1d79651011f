"""A snippet sees, changes, prints and raises as if the job's own loop had run it, and leaves nothing else behind.

Stdlib only: these tests run on every Python that is supported (test_every_python.py).
"""

from __future__ import annotations

import ast
import gc
import linecache
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

from probe.agent.boundary.boundary import Boundary
from probe.agent.evals.evaluation import Evaluation
from probe.agent.storage.log import Log
from probe.agent.storage.rows import Stream
from probe.protocol import OUTPUT_LIMIT
from probe.streams import EVAL, FAILED, LOG_EVAL, LOG_EVAL_DONE, SPANS, STREAMS


class Result:
    """What the reader was sent for one snippet."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, kind: str, fields: dict[str, Any]) -> None:
        self.sent.append((kind, fields))

    def text(self, stream: str = "stdout") -> str:
        return "".join(fields["text"] for kind, fields in self.sent if kind == "out" and fields["stream"] == stream)

    @property
    def done(self) -> dict[str, Any]:
        (fields,) = (fields for kind, fields in self.sent if kind == "done")
        assert self.sent[-1][0] == "done"
        return fields


class Noting(Log):
    """A log that also keeps what is put into it."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[int, int, dict[str, Any]]] = []

    def put(self, kind: int, id: int, payload: Any) -> None:
        self.noted.append((kind, id, payload))
        super().put(kind, id, payload)


class Reader:
    """Evaluates snippets one after another, as one agent would."""

    def __init__(self) -> None:
        self.own: dict[str, Any] = {}
        self.log = Noting()
        self.spans = Stream(SPANS, STREAMS[SPANS], retention_bytes=1)
        self.boundary = Boundary()
        self.count = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self.boundary.close()
        self.log.close()
        self.spans.close()
        for stream in (sys.stdout, sys.stderr):
            assert not hasattr(stream, "_probe_output")

    def evaluation(self, code: str, result: Result, write: bool = True, where: str = "boundary") -> Evaluation:
        return Evaluation(
            code=code, filename="<eval>", write=write, send=result.send, log=self.log, spans=self.spans, own=self.own,
            by="tester", where=where, ranks=[0],
        )  # fmt: skip

    def run(self, code: str, write: bool = True) -> Result:
        """In the caller's frame, as at the boundary of a loop that stands there, but in no trace function."""
        result = Result()
        self.evaluation(code, result, write).run_at(sys._getframe(1), 0)
        return result

    def ask(self, code: str, write: bool = True) -> Result:
        """At the next boundary of the loop that calls step()."""
        result = Result()
        evaluation = self.evaluation(code, result, write)
        self.boundary.request(lambda frame: evaluation.run_at(frame, self.count))
        return result

    def step(self) -> None:
        self.count += 1
        self.boundary.stepped(self.count)

    def now(self, code: str) -> Result:
        """On a thread of its own, with this thread as the one that trains."""
        result = Result()
        evaluation = self.evaluation(code, result, write=False, where="now")
        thread = threading.Thread(target=evaluation.run_now, args=(threading.get_ident(),))
        thread.start()
        thread.join()
        return result


def test_a_snippet_runs_until_its_end_has_been_posted() -> None:
    """A reader that learned of the one before the other would take the step for one that was missed."""
    with Reader() as reader:
        running, result = list[bool](), Result()
        result.send = lambda kind, fields: running.append(evaluation.running)  # type: ignore[method-assign]
        evaluation = reader.evaluation("1", result)
        evaluation.run_at(sys._getframe(), 0)
        assert running == [True] and not evaluation.running


# ---- what a snippet sees


def test_the_last_expression_is_echoed() -> None:
    with Reader() as reader:
        assert reader.run("x = 20\nx + 1").done["echo"] == "21"
        assert reader.run("'text'").done["echo"] == "'text'"
        assert reader.run("None").done["echo"] is None
        assert reader.run("y = 3").done["echo"] is None
        assert reader.run("# nothing\n").done["ok"]


def test_locals_of_the_loop_and_of_its_callers_are_seen() -> None:
    batch_size = 8

    def inner(reader: Reader) -> Result:
        model = "inner model"
        assert model
        return reader.run("model, batch_size, __name__")

    with Reader() as reader:
        model = "outer model"
        assert inner(reader).done["echo"] == repr(("inner model", 8, __name__))
        assert model and batch_size


def test_globals_of_the_users_modules_are_seen_and_locals_of_libraries_are_not() -> None:
    library: dict[str, Any] = {}
    exec(compile("def call(f):\n    hidden = 1\n    return f()", "/x/site-packages/lib.py", "exec"), library)
    user: dict[str, Any] = {"setting": 5, "seen": 0, "__name__": "train"}
    exec(compile("def work(run):\n    mine = 2\n    return run()", "/home/someone/train.py", "exec"), user)
    with Reader() as reader:
        result = Result()

        def run() -> None:
            reader.evaluation("setting, mine, hidden", result).run_at(sys._getframe(1), 0)

        user["work"](run)
        assert "name 'hidden' is not defined" in result.done["error"]
        result = Result()
        library["call"](lambda: user["work"](run))  # between two frames of the user's it counts
        assert result.done["echo"] == "(5, 2, 1)"


def test_a_library_that_loops_shows_the_users_frames_around_it() -> None:
    """As in a trainer from a package: its own locals are not the user's names."""
    library: dict[str, Any] = {}
    source = "def fit(run):\n    model = 'wrapped'\n    return run(__import__('sys')._getframe())"
    exec(compile(source, "/x/site-packages/trainer.py", "exec"), library)
    with Reader() as reader:
        model = "the user's"
        result = Result()
        library["fit"](lambda frame: reader.evaluation("model", result).run_at(frame, 0))
        assert result.done["echo"] == repr(model)


def test_names_that_a_snippet_defines_are_kept_for_the_next_one_but_not_in_the_job() -> None:
    with Reader() as reader:
        reader.run("def double(x): return 2 * x\nmine = 4")
        assert reader.run("double(mine)").done["echo"] == "8"
        assert "mine" not in globals() and "mine" not in locals() and "mine" not in vars(sys.modules["__main__"])
        reader.run("del mine")
        assert "NameError" in reader.run("mine").done["error"]


def test_functions_of_a_snippet_see_the_job() -> None:
    scale = 3
    with Reader() as reader:
        assert reader.run("def f(x): return x * scale\n[f(i) for i in range(3)]").done["echo"] == "[0, 3, 6]"
        assert reader.run("f(5)").done["echo"] == "15"  # later, too
        assert scale


# ---- what it changes


def test_a_rebound_variable_is_written_to_the_frame_it_came_from() -> None:
    with Reader() as reader:
        lr, keep = 0.1, "same"

        def inner() -> tuple[str, list[str]]:
            state = "old"
            done = reader.run("state = 'new'; lr = 0.2; keep = keep").done
            return state, done["changed"]

        state, changed = inner()
        assert (state, lr, keep) == ("new", 0.2, "same")
        assert sorted(changed) == ["inner().state", f"{sys._getframe().f_code.co_name}().lr"]


def test_a_rebound_global_is_written_to_its_module() -> None:
    with Reader() as reader:
        namespace: dict[str, Any] = {"__name__": "train", "reader": reader, "model": 1}
        exec("result = reader.run('model = 2')", namespace)
        assert namespace["model"] == 2
        assert namespace["result"].done["changed"] == ["train.model"]


def test_what_is_assigned_in_place_is_named() -> None:
    with Reader() as reader:
        args = SimpleNamespace(x=1, y=[{"lr": 1.0}], z=3)
        code = "args.x = 5\nargs.y[0]['lr'] *= 2\nargs.a, other = 1, 2\ndel args.z\nfor i in []: args.never = 1"
        for write in (True, False):
            vars(args).update(z=3)
            assert reader.run(code, write=write).done["changed"] == ["args.x", "args.y[0]['lr']", "args.a", "args.z"]
        assert vars(args) == {"x": 5, "y": [{"lr": 4.0}], "a": 1}
        assert reader.run("args.x = 1 / 0").done["changed"] == []


def test_no_variable_is_written_with_write_off() -> None:
    with Reader() as reader:
        lr = 0.1
        assert reader.run("lr = 0.2\nlr", write=False).done["echo"] == "0.2"
        assert lr == 0.1
        assert reader.run("lr").done["echo"] == "0.1"


def test_variables_rebound_before_an_exception_are_written() -> None:
    with Reader() as reader:
        lr = 0.1
        done = reader.run("lr = 0.2\n1 / 0").done
        assert lr == 0.2 and done["changed"] and not done["ok"]


def test_del_in_a_snippet_does_not_unbind_a_variable_of_the_job() -> None:
    with Reader() as reader:
        lr = 0.1
        assert reader.run("del lr").done["changed"] == []
        assert lr == 0.1


def test_an_import_does_not_undo_the_jobs_own() -> None:
    with Reader() as reader:
        from time import sleep as time  # as scripts do; a snippet that times something begins with `import time`

        done = reader.run("import time\nstart = time.perf_counter()").done
        assert done["ok"] and done["changed"] == []
        time(0)


def test_holders_of_the_old_object_are_named() -> None:
    class Trainer:
        def __init__(self, model: object) -> None:
            self.model = model

        @property
        def fails(self) -> None:
            raise AssertionError("a property of the job was read")

        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                raise AssertionError("an attribute of the job was read")
            return object.__getattribute__(self, name)

    class Wrapper:
        def __init__(self, module: object) -> None:
            self._modules = {"module": module}

    class Proxy:
        @property
        def __class__(self) -> Any:
            raise AssertionError("the class of a proxy was asked for")

        @property
        def __dict__(self) -> Any:
            raise AssertionError("the attributes of a proxy were asked for")

    with Reader() as reader:
        model = object()
        trainer, ddp, proxy = Trainer(model), Wrapper(model), Proxy()
        (changed,) = reader.run("model = object()").done["changed"]
        assert changed.endswith("().model; trainer.model, ddp.module still hold the old object")
        assert trainer and ddp and model and proxy


# ---- at a real boundary, in a real loop


def in_a_loop(code: str, body: Callable[[], None] = lambda: None) -> tuple[Result, int, int]:
    """The result, and a local and a closure's counter after six iterations that add 1 to each."""
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    result = Result()
    with Reader() as reader:
        n = 0
        for _ in range(6):
            n += 1
            reader.step()
            count()
            body()
            if n == 3:
                result = reader.ask(code)
    return result, n, counted


def test_a_snippet_at_the_boundary_binds_locals_of_the_loop() -> None:
    result, n, counted = in_a_loop("n = 100")
    assert (n, counted) == (102, 6) and result.done["count"] == 4
    assert result.done["changed"] == ["in_a_loop().n"]


def test_a_closures_counter_that_a_snippet_moves_is_not_rolled_back() -> None:
    result, n, counted = in_a_loop("for i in range(100): count()")
    assert (n, counted) == (6, 106) and result.done["changed"] == []
    _, n, counted = in_a_loop("n = 50\nfor i in range(100): count()")
    assert (n, counted) == (52, 106)


def test_variables_of_a_loop_in_a_module_are_written() -> None:
    source = "n = 0\nfor i in range(6):\n    n += 1\n    reader.step()\n    if n == 3: result = reader.ask('n = 100')\n"
    with Reader() as reader:
        namespace: dict[str, Any] = {"reader": reader, "__name__": "train"}
        exec(source, namespace)
    assert namespace["n"] == 102


def test_variables_of_the_loops_callers_are_written() -> None:
    def loop(reader: Reader) -> None:
        for i in range(6):
            reader.step()
            if i == 2:
                reader.ask("lr = 5; moved()")

    moves = 0

    def moved() -> None:
        nonlocal moves
        moves += 1

    with Reader() as reader:
        lr = 1
        loop(reader)
    assert (lr, moves) == (5, 1)


class Tensor:
    pass


def test_no_object_of_the_job_lives_longer_because_of_a_snippet() -> None:
    alive: list[Any] = []
    gone: list[int] = []
    outer = Tensor()
    alive.append(weakref.ref(outer))

    def loop(reader: Reader) -> None:
        for i in range(8):
            batch = Tensor()
            gone.append(sum(ref() is None for ref in alive))
            alive.append(weakref.ref(batch))
            reader.step()
            if i == 2:
                code = "held = 1\ndef f(): return held\nx = [t for t in (batch, outer)]\ndel x, t" if i else ""
                reader.ask(code.replace(", t", ""))
            if i == 5:
                reader.ask("raise ValueError(batch)")

    gc.disable()
    try:
        with Reader() as reader:
            loop(reader)
            del outer
            assert [ref() for ref in alive] == [None] * len(alive)
            assert reader.own.keys() == {"held", "f"}
    finally:
        gc.enable()
    assert gone == [i and i - 0 for i in range(8)], gone


def test_a_snippet_beside_the_training_writes_nothing_and_rolls_nothing_back() -> None:
    """Reading f_locals of a running frame and keeping it undid the loop's own work."""
    with Reader() as reader:
        result = Result()
        evaluation = reader.evaluation("import time\ntime.sleep(0.1)\nn = -1\nn", result, write=False, where="now")
        thread = threading.Thread(target=evaluation.run_now, args=(threading.get_ident(),))
        n = m = 0

        def count() -> None:
            nonlocal m
            m += 1

        thread.start()
        while not evaluation.done:
            n += 1
            count()
            assert n == m
        thread.join()
        assert result.done["echo"] == "-1" and result.done["count"] is None and result.done["changed"] == []


def test_a_snippet_beside_the_training_sees_its_frames_and_keeps_none_of_their_objects() -> None:
    with Reader() as reader:
        batch = Tensor()
        ref = weakref.ref(batch)
        assert "Tensor object" in reader.now("batch").done["echo"]
        del batch
        assert ref() is None


# ---- what it prints


def test_only_the_snippets_thread_is_captured_and_in_order() -> None:
    with Reader() as reader:
        stop = threading.Event()
        written: list[str] = []

        class Terminal:
            encoding = "utf-8"

            def write(self, text: str) -> int:
                written.append(text)
                return len(text)

            def flush(self) -> None:
                pass

        def other_thread() -> None:
            while not stop.is_set():
                print("other", end="")

        before, sys.stdout = sys.stdout, Terminal()
        terminal = sys.stdout
        thread = threading.Thread(target=other_thread)
        try:
            thread.start()
            result = reader.run(
                "import sys, time\n"
                "for i in range(3):\n    print(i)\n    had = len(written)\n"
                "    while len(written) == had: time.sleep(0.001)\n"
                "print('error', file=sys.stderr)\nsys.stdout.buffer.write('é'.encode())\nkept = sys.stdout\n"
                "sys.stdout.encoding"
            )
            restored = sys.stdout is terminal
        finally:
            stop.set()
            thread.join()
            sys.stdout = before
        assert restored
        assert result.text() == "0\n1\n2\né" and result.text("stderr") == "error\n"
        assert set(written) == {"other", ""} or set(written) == {"other"}
        assert result.done["echo"] == "'utf-8'"
        reader.own["kept"].write("later")  # somebody kept the stand-in: it passes on for good
        assert written[-1] == "later"


def test_output_that_waits_for_the_end_of_its_line_is_sent_on_request() -> None:
    with Reader() as reader:
        result = Result()
        evaluation = reader.evaluation("print('so far', end='')\nevaluation.flush()\nprint(len(result.sent))", result)
        evaluation.run_at(sys._getframe(), 0)
        assert result.text() == "so far1\n"
        assert reader.run("import sys\nprint('50 %', end='\\r')\nsys.stdout.flush()").text() == "50 %\r"


def test_output_over_the_limit_is_dropped_and_counted() -> None:
    with Reader() as reader:
        result = reader.run("for _ in range(100):\n    print('x' * (1 << 20))\n'echo too'")
        size = 100 * ((1 << 20) + 1)
        assert len(result.text()) == OUTPUT_LIMIT
        assert result.done["dropped_bytes"] == size - OUTPUT_LIMIT + len("'echo too'")
        assert result.done["ok"]
        again = reader.run("print('é' * (4 << 20))")
        assert len(again.text().encode()) + again.done["dropped_bytes"] >= 8 << 20
        assert reader.run("print('\\ud800')").text() == "\ud800\n"


def test_a_child_forked_by_the_snippet_prints_to_the_jobs_stdout() -> None:
    with Reader() as reader:
        result = reader.run(
            "import os, sys\n"
            "read, write = os.pipe()\n"
            "pid = os.fork()\n"
            "if not pid:\n"
            "    captured = sys.stdout._probe_output() is not None\n"
            "    os.write(write, b'captured' if captured else b'passed on')\n"
            "    os._exit(0)\n"
            "os.close(write)\n"
            "text = os.read(read, 100)\n"
            "os.close(read)\n"
            "os.waitpid(pid, 0)\n"
            "print(text)"
        )
        assert result.text() == "b'passed on'\n", result.done


def test_two_snippets_at_once_each_have_their_own_output() -> None:
    with Reader() as reader:
        results = [Result(), Result()]
        before = sys.stdout, sys.stderr
        threads = []
        for number, result in enumerate(results):
            code = f"import time\nfor _ in range(20):\n    print({number})\n    time.sleep(0.001 * {number + 1})"
            threads.append(threading.Thread(target=reader.evaluation(code, result, where="now").run_now, args=(None,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [result.text() for result in results] == ["0\n" * 20, "1\n" * 20]
        assert (sys.stdout, sys.stderr) == before


def test_a_snippet_compiles_while_another_thread_parses() -> None:
    """A collection in the middle of making a tree lets other threads run, played here by its callback."""
    disturbed = []

    def disturb(phase: str, info: dict[str, int]) -> None:
        if len(disturbed) < 20 and any(each.co_name == "parsed" for each in codes_around()):
            disturbed.append(compile("a + b", "", "exec", ast.PyCF_ONLY_AST))

    with Reader() as reader:
        threshold = gc.get_threshold()
        gc.set_threshold(50)
        gc.callbacks.append(disturb)
        try:
            done = reader.run("x = [" + "1 + 2, " * 100 + "]\nlen(x)").done
        finally:
            gc.callbacks.remove(disturb)
            gc.set_threshold(*threshold)
    assert disturbed or sys.version_info >= (3, 12)  # from then on nothing is collected while a tree is made
    assert (done["echo"], done["error"]) == ("100", None)


def codes_around() -> list[CodeType]:
    frame, codes = sys._getframe(1).f_back, []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes


def test_snippets_at_once_keep_each_others_names() -> None:
    with Reader() as reader:
        reader.own.update(old=1, gone=1)
        done = reader.run("reader.own['other'] = 2\nreader.own['old'] = 3\nmine = 4\ndel gone").done
        assert done["ok"] and reader.own == {"old": 3, "other": 2, "mine": 4}


# ---- how it fails


def failure(code: str) -> dict[str, Any]:
    with Reader() as reader:
        done = reader.run(code).done
    assert not done["ok"] and not done["cancelled"]
    assert "evaluate.py" not in done["traceback"] and "interrupt.py" not in done["traceback"]
    return done


def test_the_traceback_of_an_exception_has_only_frames_of_the_snippet() -> None:
    done = failure("def f(x):\n    return 1 / x\n\nf(0)")
    assert done["error"] == "ZeroDivisionError: division by zero"
    lines = [line.strip() for line in done["traceback"].splitlines()]
    assert lines[:3] == ["Traceback (most recent call last):", 'File "<eval>", line 4, in <module>', "f(0)"]
    assert "return 1 / x" in lines and lines[-1] == done["error"]
    assert "<eval>" not in linecache.cache


def test_sys_exit_and_keyboard_interrupt_end_the_snippet_alone() -> None:
    assert failure("import sys; sys.exit(3)")["error"] == "SystemExit: 3"
    assert failure("raise KeyboardInterrupt")["error"] == "KeyboardInterrupt"
    assert failure("raise GeneratorExit")["error"] == "GeneratorExit"


def test_a_syntax_error_is_reported_with_its_line() -> None:
    done = failure("x = 1\nfor for")
    assert done["error"] == "SyntaxError: invalid syntax"
    assert 'File "<eval>", line 2' in done["traceback"] and "for for" in done["traceback"]
    assert "ValueError" in failure("x = '\0'")["error"] or "SyntaxError" in failure("x = '\0'")["error"]


def test_the_traceback_of_an_endless_recursion_is_short() -> None:
    done = failure("def f(): f()\nf()")
    assert done["error"].startswith("RecursionError") and len(done["traceback"]) < 5000


def test_a_failing_repr_is_reported() -> None:
    done = failure("class R:\n    def __repr__(self): raise ValueError('no repr')\nR()")
    assert done["error"] == "ValueError: no repr" and "in __repr__" in done["traceback"]
    for inner in ("raise ValueError", "raise SystemExit"):
        done = failure(f"class E(Exception):\n    def __str__(self): {inner}\nraise E()")
        assert "E: <" in done["error"]


def test_causes_of_an_exception_are_reported() -> None:
    done = failure("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('two\\nlines') from e")
    assert done["error"] == "ValueError: two"
    assert "direct cause" in done["traceback"] and "1 / 0" in done["traceback"]


# ---- what is recorded


def test_each_snippet_leaves_a_row_and_two_log_records() -> None:
    with Reader() as reader:
        before = time.perf_counter_ns()
        reader.run("1")
        reader.run("1 / 0")
        rows = []
        for _, view in reader.spans.read(1, reader.spans.position(), 10):
            rows += list(reader.spans.struct.iter_unpack(view))
            view.release()
        (first, second), after = rows, time.perf_counter_ns()
        assert before <= first[0] <= first[1] <= second[0] <= second[1] <= after
        assert first[3] == threading.get_ident()
        assert (first[4], second[4]) == (EVAL, EVAL | FAILED)
        records = [record for record in reader.log.noted if record[0] in (LOG_EVAL, LOG_EVAL_DONE)]
        assert [(kind, id) for kind, id, _ in records] == [
            (LOG_EVAL, first[2]), (LOG_EVAL_DONE, first[2]), (LOG_EVAL, second[2]), (LOG_EVAL_DONE, second[2]),
        ]  # fmt: skip
        assert records[0][2] == {"by": "tester", "code": "1", "where": "boundary", "ranks": [0]}
        assert records[3][2] == {
            "start_ns": second[0], "end_ns": second[1], "ok": False, "error": "ZeroDivisionError: division by zero",
            "changed": [],
        }  # fmt: skip


def test_an_evaluation_knows_whether_and_on_which_thread_it_runs() -> None:
    with Reader() as reader:
        result = Result()
        evaluation = reader.evaluation("seen.append((evaluation.running, evaluation.thread))", result)
        seen: list[Any] = []
        assert not evaluation.running and not evaluation.done
        evaluation.run_at(sys._getframe(), 0)
        assert seen == [(True, threading.get_ident())]
        assert evaluation.done and not evaluation.running
        assert (evaluation.ranks, evaluation.where) == ([0], "boundary")


def test_a_signal_handler_that_raises_in_our_code_does_not_break_the_loop() -> None:
    """An exception that leaves the trace function must not cost the loop its variables."""
    with Reader() as reader:
        n = 0
        try:
            for _ in range(6):
                n += 1
                reader.step()
                if n == 3:

                    def run(frame: FrameType) -> None:
                        reader.run("n")
                        raise KeyboardInterrupt

                    reader.boundary.request(run)
        except KeyboardInterrupt:
            assert n == 4 and reader.count == 4
        else:
            raise AssertionError("no interrupt")
        finally:
            sys.settrace(None)


class Preempted(Exception):
    """What a handler of the job raises."""


def preempt(number: int, frame: FrameType | None) -> None:
    raise Preempted(number)


def leave(*_: object) -> None:
    sys.exit(7)


class Preempting:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)  # nobody looks for attributes of a handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise Preempted(number)

    def handle(self, number: int, frame: FrameType | None) -> None:
        raise Preempted(number)


SENDS = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nwhile True: pass"
INTERRUPTS = SENDS.replace("SIGTERM", "SIGINT")
HANDLERS: list[tuple[Any, type[BaseException]]] = [
    (preempt, Preempted),
    (leave, SystemExit),
    (Preempting().handle, Preempted),
    (Preempting(), Preempted),
    (partial(Preempting.handle, None), Preempted),
]


@contextmanager
def handling(number: int, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def loop(code: str, raises: type[BaseException]) -> tuple[Result, Reader]:
    """A loop that the snippet runs in and that its handler ends."""
    result = Result()
    with Reader() as reader:
        try:
            for n in range(6):
                reader.step()
                if n == 2:
                    result = reader.ask(code)
        except raises:
            pass
        else:
            raise AssertionError("nothing reached the loop")
        assert reader.run("6 * 7").done["echo"] == "42"
    return result, reader


def test_what_a_signal_handler_of_the_job_raises_in_a_snippet_reaches_the_job() -> None:
    for handler, raises in HANDLERS:
        with handling(signal.SIGTERM, handler):
            result, reader = loop(SENDS, raises)
        assert result.done["error"] == f"interrupted by a signal of the job ({raises.__name__})"
        assert reader.count == 4 and not reader.boundary.trouble


def test_ctrl_c_in_a_snippet_reaches_the_job() -> None:
    for code in (INTERRUPTS, INTERRUPTS.replace("while True: pass", "import time; time.sleep(60)")):
        with handling(signal.SIGINT, signal.default_int_handler):
            loop(code, KeyboardInterrupt)


OWN = [
    "raise KeyboardInterrupt", "raise SystemExit(3)", "import sys; sys.exit()",
    "def f(): raise KeyboardInterrupt\ntry: f()\nfinally: pass",
    "try: 1 / 0\nexcept ZeroDivisionError: raise KeyboardInterrupt",
    "job.handle(1, None)",  # the handler itself, called by the snippet
]  # fmt: skip


def test_what_a_snippet_itself_raises_does_not_reach_the_job() -> None:
    job = Preempting()
    with Reader() as reader, handling(signal.SIGTERM, job.handle), handling(signal.SIGINT, signal.default_int_handler):
        assert job
        for code in OWN:
            result = reader.run(code)
            assert not result.done["ok"] and "signal" not in result.done["error"], code


def test_descriptors_and_threads_are_as_before() -> None:
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    with Reader() as reader:
        for _ in range(20):
            reader.run("x = 1\nx")
            reader.now("x")
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
