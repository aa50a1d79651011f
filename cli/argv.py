"""The words of a command line, in the one order that click is given: verb, options, `--`, the rest.

An endpoint may stand before the verb, after it, or behind -t.  SQL and code are recognized even where they begin with a
dash, so this file, not click, decides what is an option.  Invariant: pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from probe.errors import UsageError
from probe.text import nearest

# `--word`, `--word=…` or `-w`, without a space: SQL and code that begin with a dash hardly ever look like that.
LONG_OPTION = re.compile(r"--[A-Za-z][\w-]*(=.*)?", re.DOTALL)
SHORT_OPTION = re.compile(r"-[A-Za-z]\w*")
# `-t 4242` in one word, from a quoted "$ENDPOINT" that holds it.
TARGET = re.compile(r"-t(?:\s*=?\s*(?=\d|\S+:)|\s+)(\S+)\s*")


def arrange(argv: Sequence[str], verbs: Collection[str]) -> list[str]:
    """argv with its verb first; what stood before it follows: an endpoint as `-t ENDPOINT`, and --color."""
    rest, endpoints, colors = list(argv), list[str](), list[str]()
    while rest:
        word = rest.pop(0)
        if word in verbs:
            return [word, *colors, *(part for endpoint in endpoints for part in ("-t", endpoint)), *rest]
        if word == "--color" or word.startswith("--color="):
            colors += [word, *rest[:1]] if word == "--color" else [word]
            del rest[: word == "--color"]
            continue
        if word in ("-h", "--help", "--version"):
            return [word]
        endpoints.append(_endpoint(word, rest, verbs, endpoints))
    if endpoints:
        raise UsageError(f"No verb given for {endpoints[0]}.", f"Give one: {', '.join(sorted(verbs))}.")
    return ["--help"]


def _endpoint(word: str, rest: list[str], verbs: Collection[str], before: list[str]) -> str:
    """The endpoint that `word` names, for -t together with the word after it.  Raises UsageError."""
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
    if before or not (word.isdigit() or (rest and rest[0] in verbs) or {":", ","} & {*word}):
        named = nearest(rest[0], verbs, lambda verb: f"probe {word} {verb}") if rest and not before else ""
        raise UsageError(f"No such verb: {word}.", nearest(word, verbs) or named or "Run: probe --help")
    return word


def options_first(args: Sequence[str], options: Mapping[str, bool]) -> list[str]:
    """args of a verb that takes a text: its options, `--`, then the words (endpoint and text).

    options: name -> whether a value follows it.  A word that looks like an option but is unknown stays among the
    options, so that click can suggest the right one; but a last word such as `-x` is a text.
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
            known.append(word)
            if options[word]:
                if not rest:
                    raise UsageError(f"{word} needs a value.")
                known.append(rest.pop(0))
        elif LONG_OPTION.fullmatch(word) or (
            SHORT_OPTION.fullmatch(word) and (rest or "-f" in known or not all(map(str.isdigit, words)))
        ):
            known.append(word)
        else:
            words.append(word)
    return [*known, "--", *words]
