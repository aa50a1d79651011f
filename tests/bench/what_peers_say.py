"""What `probe why`, TraceML, py-spy and probing say of ten sick jobs, after how long, and what had to be done first.

    python tests/bench/what_peers_say.py FOLDER [--only NAME,…] [--tools NAME,…]     forty minutes, on an idle machine

FOLDER gets the peers' environment, what each printed of each job (JOB.TOOL.txt; .json with what that was made of), and
the table (table.md).  What is there already is not asked again.  Which jobs, and what counts as an answer: ten_jobs.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import page
from page import circumstances, table, write
from peer_tools import TOOLS, Answer, Bench, installed
from targets.sick.registry import JOBS, Job
from ten_jobs import TEN, Planted, heard, quoted

NAMES = ("traceml-ai", "py-spy", "probing", "torch")
PAGE = page.PAGE.with_name("compared.md")
Answers: TypeAlias = "dict[Planted, dict[str, Answer]]"


def main() -> int:
    options = arguments()
    python = installed(options.folder.resolve() / "environment")
    answers: Answers = {}
    for planted in (each for each in TEN if each.name.startswith(options.only)):
        answers[planted] = {tool: answered(planted, tool, python, options.folder) for tool in options.tools}
        print(planted.name, *(f"{tool}: {cell(planted, each)}" for tool, each in answers[planted].items()), sep="\n  ")
    text = f"{told_when(python, answers)}\n\n{marks(answers, options.tools)}\n\n{quotes(answers)}"
    (options.folder / "table.md").write_text(f"{text}\n")
    if options.write:
        write("peers", text, PAGE)
    return 0


def told_when(python: Path, answers: Answers) -> str:
    """Day, machine, versions, and how busy the machine was."""
    loads = [answer.load for told in answers.values() for answer in told.values()]
    where = circumstances(str(python), NAMES).rpartition(" Load when")[0]
    return f"{where} Load when a job was started: {min(loads):.1f} to {max(loads):.1f}."


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda words: tuple(words.split(",")), default="", help="beginnings of names")
    parser.add_argument("--write", action="store_true", help="into docs/compared.md")
    parser.add_argument("--tools", type=lambda words: tuple(words.split(",")), default=tuple(TOOLS))
    return parser.parse_args()


def marks(answers: Answers, tools: Sequence[str]) -> str:
    rows = [
        [f"`{planted.name}`: {planted.cause}", *(cell(planted, told[tool]) for tool in tools)]
        for planted, told in answers.items()
    ]
    return table(["job, and what was planted", *tools], rows)


def cell(planted: Planted, answer: Answer) -> str:
    told = heard(planted, answer.said)
    words = [f"**{told.cause}**" if told.cause == "named" else told.cause]
    words += [f"place {', '.join(f'`{place}`' for place in told.places)}"] if told.places else []
    words += ["remedy"] if told.remedy else []
    return f"{', '.join(words)}; {answer.took_s:.0f} s"


def quotes(answers: Answers) -> str:
    """Under each job what each tool said of it, one line."""
    return "\n\n".join(
        "\n".join(
            [f"`{planted.name}`:", ""]
            + [f"- {tool}: {quote(quoted(planted, answer.said))}" for tool, answer in told.items()]
        )
        for planted, told in answers.items()
    )


def quote(line: str) -> str:
    """In backquotes, and without folders."""
    short = re.sub(r"(?<!\w)/[\w./+-]*/(?=[\w.]+)", "", " ".join(line.replace("`", "'").split()))
    return f"`{short[:220]}`" if short else "nothing of it"


def answered(planted: Planted, tool: str, python: Path, folder: Path) -> Answer:
    """What the tool says of the job, which is started for it alone, or what it has said."""
    kept = folder / f"{planted.name}.{tool.replace(' ', '-')}.json"
    if kept.exists():
        return Answer(*json.loads(kept.read_text()))
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        try:
            answer = TOOLS[tool](zoo_job(planted.name), Bench(python, Path(place)))._replace(load=load)
        except AssertionError as error:  # the job did not start, or ended
            return Answer(f"nothing: {error}", 0.0, "", load=load)
    kept.write_text(json.dumps(answer))
    kept.with_suffix(".txt").write_text(f"{answer.took_s:.1f} s, needed: {answer.needed}\n\n{answer.said}\n")
    return answer


def zoo_job(name: str) -> Job:
    return next(job for job in JOBS if job.name == name)


if __name__ == "__main__":
    sys.exit(main())
