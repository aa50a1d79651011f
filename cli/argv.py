"""The words of a command line, put in the one order click is given: verb, options, `--`, the rest.

An endpoint may stand before the verb, after it, or behind -t.  SQL and code are taken as such even where
they begin with a dash, so what is an option must be decided here and not by click.  Pure functions.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence

from probe.errors import UsageError

# `--word`, `--word=…` or `-w`, without a space: SQL and code that begin with a dash hardly ever look like it.
LONG_OPTION = re.compile(r"--[A-Za-z][\w-]*(=.*)?", re.DOTALL)
SHORT_OPTION = re.compile(r"-[A-Za-z]\w*")
# `-t 4242` in one word, as a quoted "$ENDPOINT" that holds it gives.
TARGET = re.compile(r"-t(?:\s*=?\s*(?=\d|\S+:)|\s+)(\S+)\s*")


def arrange(argv: Sequence[str], verbs: Collection[str]) -> list[str]:
    """argv with its verb first; an endpoint that stood before it comes after it as `-t ENDPOINT`."""
    rest, endpoints = list(argv), list[str]()
    while rest:
        word = rest.pop(0)
        if word in verbs:
            return [word, *(part for endpoint in endpoints for part in ("-t", endpoint)), *rest]
        if word in ("-h", "--help", "--version"):
            return [word]
        endpoints.append(_endpoint(word, rest, verbs, endpoints))
    if endpoints:
        raise UsageError(f"What about {endpoints[0]}?", f"Give a verb: {', '.join(sorted(verbs))}.")
    return ["--help"]


def _endpoint(word: str, rest: list[str], verbs: Collection[str], before: list[str]) -> str:
    """The endpoint that `word` (with the words after it, for -t) names.  Raises UsageError."""
    if word in ("-t", "--endpoint"):
        if not rest:
            raise UsageError(f"{word} needs an endpoint.", "For example: probe -t 4242 query 'SELECT 1'")
        return rest.pop(0).strip()
    if match := TARGET.fullmatch(word):
        return match[1]
    if word.startswith("--endpoint="):
        return word.partition("=")[2]
    if word.startswith("-"):
        raise UsageError(f"No such option before a verb: {word}.", "Run: probe --help")
    if not word.strip():
        raise UsageError("The endpoint is empty.", "Is $ENDPOINT set? Run: probe list")
    is_endpoint = not before and (word.isdigit() or bool(rest and rest[0] in verbs) or bool({":", ","} & {*word}))
    if not is_endpoint:
        hint = nearest(word, verbs) or _as_a_name(word, rest, verbs) or "Run: probe --help"
        raise UsageError(f"No such verb: {word}.", hint)
    return word


def _as_a_name(word: str, rest: list[str], verbs: Collection[str]) -> str:
    """What was meant where it is the job's name, and the verb behind it is mistyped."""
    close = difflib.get_close_matches(rest[0], verbs, n=1) if rest else []
    return f"If it names a job: did you mean probe {word} {close[0]}?" if close else ""


def nearest(word: str, known: Collection[str]) -> str:
    """`Did you mean query?`, or nothing where nothing is near."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {close[0]}?" if close else ""


def settle(args: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """args of a verb that takes a text: its options, `--`, then the words (endpoint and text).

    options: name -> whether a value follows it.  What looks like an option and is none is left among the
    options, so that click can say what was meant; but a last word such as `-x` is a text.
    """
    rest, known, words = list(args), list[str](), list[str]()
    while rest:
        word = rest.pop(0)
        if word == "--":
            words += rest
            break
        if match := TARGET.fullmatch(word):
            known += ["-t", match[1]]
        elif word in options:
            known += [word, *(_value(word, rest) if options[word] else ())]
        elif LONG_OPTION.fullmatch(word) or (SHORT_OPTION.fullmatch(word) and (rest or _has_text(known, words))):
            known.append(word)
        else:
            words.append(word)
    return [*known, "--", *words]


def _value(option: str, rest: list[str]) -> list[str]:
    if not rest:
        raise UsageError(f"{option} needs a value.")
    return [rest.pop(0)]


def _has_text(known: list[str], words: list[str]) -> bool:
    return "-f" in known or any(not word.isdigit() for word in words)
