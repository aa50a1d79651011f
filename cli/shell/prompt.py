"""The shell's prompt on a terminal: editing, history, completion, colours.  prompt_toolkit does it, and only this file
knows it.

Called by `probe ENDPOINT sql`.  Invariant: only the user ends it; errors are told and it goes on.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.output import create_output
from prompt_toolkit.styles import Style

from probe.errors import Interrupted, SilentError
from probe.tables import TABLES

from ..error_output import tell
from ..session import say
from .completion import WORD, Candidate, candidates
from .dot_commands import is_command, offered
from .lines import run
from .shell import Shell, how_to_go_on
from .statements import is_complete, tokens

if TYPE_CHECKING:
    from prompt_toolkit.document import Document

# Of the terminal's own colours, so that they can be read on any background.
_STYLE = Style.from_dict(
    {"keyword": "bold", "string_const": "ansigreen", "numeric_const": "ansicyan", "comment": "italic"}
)


def interact(shell: Shell) -> None:
    """Read and do lines until the user leaves."""
    Thread(
        target=partial(import_module, "probe.query.database"), daemon=True
    ).start()  # half a second, while the user types
    session = _session(shell)
    say(f"{shell.whom}. Statements end with `;`. .help shows commands, Ctrl-D leaves.")
    while not shell.ended:
        with suppress(KeyboardInterrupt):  # at the prompt it clears the line
            _turn(shell, session)


def _turn(shell: Shell, session: PromptSession[str]) -> None:
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
            say("")  # behind the terminal's ^C
        tell(error)
        silent = isinstance(error, SilentError)
    for line in how_to_go_on(shell) if silent or shell.waited else ():
        say(line)


def is_over(text: str) -> bool:
    """Whether Enter ends the input, or begins another line of it."""
    return is_command(text) or is_complete(text)


def _session(shell: Shell) -> PromptSession[str]:
    session: PromptSession[str] = PromptSession(
        multiline=Condition(lambda: not is_over(session.default_buffer.text)),
        prompt_continuation=lambda width, line, wrapped: f"{'' if wrapped else '->':>{width - 1}} ",
        history=_history(),
        completer=SqlCompleter(),
        lexer=SqlLexer(),
        style=_STYLE,
        key_bindings=_keys(),
        enable_suspend=True,
        # results may go elsewhere: the prompt stays with the user
        output=None if sys.stdout.isatty() else create_output(stdout=sys.stderr),
    )
    return session


def _keys() -> KeyBindings:
    """Tab takes the likeliest candidate, or the next one; where no word has begun it shows what there is."""
    keys = KeyBindings()

    @keys.add("tab")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state:
            buffer.complete_next()
        else:
            buffer.start_completion(select_first=bool(_word(buffer.document.text_before_cursor)))

    return keys


def _word(before: str) -> str:
    """What has been typed of the word at the cursor."""
    match = WORD.search(before)
    return match[0] if match else ""


class SqlCompleter(Completer):
    """Candidates while a word is typed; where none has begun, when Tab asks for them."""

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        before, after = document.text_before_cursor, document.text_after_cursor
        if document.text.lstrip().startswith("."):
            watched = re.match(r"\s*\.watch\s+\S+\s", before)
            if not watched:
                return _completions(before.split(" ")[-1], offered(before))
            before = before[watched.end() :]
        word = _word(before)
        if not word and not event.completion_requested:
            return []
        return _completions(word, candidates(before, after, TABLES))


def _completions(word: str, found: Iterable[Candidate]) -> list[Completion]:
    return [Completion(each.text, -len(word), display_meta=each.meta) for each in found]


class SqlLexer(Lexer):
    """Each token in the style of its kind."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        text = document.text
        kinds = ["" for _ in text]
        for token in [] if is_command(text) else tokens(text):
            kinds[token.start : token.end] = [f"class:{token.kind}"] * (token.end - token.start)
        starts = [0]
        for line in document.lines:
            starts.append(starts[-1] + len(line) + 1)

        def styled(number: int) -> StyleAndTextTuples:
            line = document.lines[number]
            return list(zip(kinds[starts[number] : starts[number] + len(line)], line, strict=True))

        return styled


class _History(FileHistory):
    """In a file; when the disk is full, in memory."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history() -> History:
    try:
        return _History(history_file())
    except (OSError, RuntimeError) as error:  # RuntimeError: who has no home
        say(f"What you type is not kept: {error}")
        return InMemoryHistory()


def history_file() -> str:
    """The file that keeps what was typed, made if it is not there; only its user can read it.  Raises OSError."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "probe"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "sql_history"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return str(path)
