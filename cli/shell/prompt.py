"""The shell's prompt on a terminal: editing, history, completion, colours.

Called by `probe ENDPOINT sql`; the only file that imports prompt_toolkit.  Invariant: only the user ends it; after an
error, which is reported, it continues.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples, split_lines
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.output import ColorDepth, create_output
from prompt_toolkit.styles import Style

from probe.errors import Interrupted, SilentError
from probe.settings import state_folder
from probe.tables import TABLES

from ..entry import report
from ..output.colours import has_colours
from ..output.printable import unescaped
from ..session import say
from ..signals import on_signals
from .completion import Candidate, candidates, last_word
from .dot_commands import is_command, offered, run
from .shell import Shell, what_next
from .statements import is_complete, tokens

if TYPE_CHECKING:
    from prompt_toolkit.document import Document

# The terminal's own colours, which are readable on any background.
_STYLE = Style.from_dict(
    {"keyword": "bold", "string_const": "ansigreen", "numeric_const": "ansicyan", "comment": "italic"}
)


def interact(shell: Shell) -> None:
    """Read lines and do what they say until the user leaves."""
    # Importing DuckDB takes half a second, which passes while the user types.
    Thread(target=partial(import_module, "probe.query.database"), daemon=True).start()

    def is_incomplete() -> bool:  # whether Enter begins another line of the input instead of ending it
        return not is_command(text := session.default_buffer.text) and not is_complete(text)

    # Results may be redirected: the prompt stays on the terminal.
    terminal = sys.stdout if sys.stdout.isatty() else sys.stderr
    session: PromptSession[str] = PromptSession(
        multiline=Condition(is_incomplete),
        prompt_continuation=lambda width, line, wrapped: f"{'' if wrapped else '->':>{width - 1}} ",
        history=_history(),
        completer=SqlCompleter(),
        lexer=SqlLexer(),
        style=_STYLE,
        color_depth=None if has_colours(terminal) else ColorDepth.MONOCHROME,
        key_bindings=_keys(),
        enable_suspend=True,
        output=create_output(stdout=unescaped(terminal)),
    )
    say(f"{shell.title}. Statements end with `;`. .help shows commands, Ctrl-D leaves.")
    with _left_by_sigterm(shell, session):
        while not shell.ended:
            with suppress(KeyboardInterrupt):  # at the prompt it clears the line
                _prompt_and_run(shell, session)


@contextmanager
def _left_by_sigterm(shell: Shell, session: PromptSession[str]) -> Iterator[None]:
    """SIGTERM leaves the prompt as Ctrl-D does, which restores the terminal; and a statement with SystemExit.

    An error raised by a signal's handler anywhere in prompt_toolkit can leave the terminal as it is.
    """
    app, pressed = session.app, False

    def leave() -> None:
        nonlocal pressed
        pressed = shell.ended = True
        if not app.is_running or app.loop is None:
            sys.exit()
        app.loop.call_soon_threadsafe(lambda: app.is_done or app.exit(exception=EOFError))

    with on_signals((signal.SIGTERM,), leave):
        yield
    if pressed:
        sys.exit()


def _prompt_and_run(shell: Shell, session: PromptSession[str]) -> None:
    try:
        text = session.prompt(f"probe {shell.connection.endpoint}> ")
    except EOFError:
        shell.ended = True
        return
    silent = False
    try:
        run(shell, text)
    except BrokenPipeError:  # nobody reads the results any more
        raise
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, (Interrupted, KeyboardInterrupt)):
            say("")  # ends the line with the terminal's ^C
        report(error)
        silent = isinstance(error, SilentError)
    for line in what_next(shell) if silent or shell.waited else ():
        say(line)


def _keys() -> KeyBindings:
    """Tab takes the likeliest candidate, or the next one; where no word has begun it lists the candidates."""
    keys = KeyBindings()

    @keys.add("tab")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state:
            buffer.complete_next()
        else:
            buffer.start_completion(select_first=bool(last_word(buffer.document.text_before_cursor)))

    return keys


class SqlCompleter(Completer):
    """Candidates while a word is typed; where none has begun, when Tab asks for them."""

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        before, after = document.text_before_cursor, document.text_after_cursor
        if document.text.lstrip().startswith("."):
            watched = re.match(r"\s*\.watch\s+\S+\s", before)
            if not watched:
                return _completions(before.split(" ")[-1], offered(before))
            before = before[watched.end() :]
        word = last_word(before)
        if not word and not event.completion_requested:
            return []
        return _completions(word, candidates(before, after, TABLES))


def _completions(word: str, found: Iterable[Candidate]) -> list[Completion]:
    return [Completion(each.text, -len(word), display_meta=each.meta) for each in found]


class SqlLexer(Lexer):
    """Each token in the style of its kind."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        text = document.text
        found = [] if is_command(text) else tokens(text)  # each up to the next one
        pieces: StyleAndTextTuples = [("", text[: found[0].start] if found else text)]
        pieces += [(f"class:{token.kind}", text[token.start : token.end]) for token in found]
        return list(split_lines(pieces)).__getitem__


class _History(FileHistory):
    """Kept in a file; when the disk is full, in memory."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history() -> History:
    """The history in its file, which is created if necessary and readable only by its user."""
    try:
        folder = state_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / "sql_history"
        file.touch(0o600)
        file.open("ab").close()  # it may be a folder, or somebody else's
        file.chmod(0o600)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home directory
        say(f"The history of this shell is not kept: {error}")
        return InMemoryHistory()
    return _History(str(file))
