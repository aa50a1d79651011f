"""What `probe why`, TraceML, py-spy and probing say of ten sick jobs, after how long, and what had to be done first.

    python tests/bench/what_peers_say.py FOLDER [--only NAME,…] [--tools NAME,…]     forty minutes, on an idle machine

FOLDER gets the peers' environment (made once), what each printed of each job (JOB.TOOL.txt), and the table
(table.md), which is printed as well.  Which jobs, and what counts as an answer: ten_jobs.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from page import table
from peer_tools import TOOLS, Answer, Bench, installed
from targets.sick.registry import JOBS, Job
from ten_jobs import TEN, Heard, Planted, heard

NAMES = ("traceml-ai", "py-spy", "probing", "torch")


def main() -> int:
    options = arguments()
    python = installed(options.folder.resolve() / "environment")
    print(f"probe {version('torch-probe')}, {versions(python)}", flush=True)
    rows = []
    for planted in TEN:
        if planted.name.startswith(options.only):
            answers = {tool: answered(planted, tool, python, options.folder) for tool in options.tools}
            rows.append([f"`{planted.name}`: {planted.cause}", *(cell(planted, each) for each in answers.values())])
            print(" | ".join(rows[-1]), flush=True)
    (options.folder / "table.md").write_text(table(["planted", *options.tools], rows) + "\n")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda words: tuple(words.split(",")), default="", help="beginnings of names")
    parser.add_argument("--tools", type=lambda words: tuple(words.split(",")), default=tuple(TOOLS))
    return parser.parse_args()


def versions(python: Path) -> str:
    asked = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    told = subprocess.run([python, "-c", asked, *NAMES], check=True, capture_output=True, text=True).stdout
    return ", ".join(f"{name} {number}" for name, number in zip(NAMES, told.split(), strict=True))


def answered(planted: Planted, tool: str, python: Path, folder: Path) -> Answer:
    """What the tool says of the job, which is started for it alone; kept in the folder."""
    kept = folder / f"{planted.name}.{tool.replace(' ', '-')}.txt"
    with tempfile.TemporaryDirectory() as place:
        try:
            answer = TOOLS[tool](zoo_job(planted.name), Bench(python, Path(place)))
        except AssertionError as error:  # the job did not start, or ended
            answer = Answer(f"nothing: {error}", 0.0, "")
    kept.write_text(f"{answer.took_s:.1f} s, needed: {answer.needed}\n\n{answer.said}\n")
    kept.with_suffix(".raw").write_text(answer.raw or answer.said)
    return answer


def zoo_job(name: str) -> Job:
    return next(job for job in JOBS if job.name == name)


def cell(planted: Planted, answer: Answer) -> str:
    told: Heard = heard(planted, answer.said)
    places = f"place {', '.join(told.places) or 'no'}" if planted.places else ""
    remedy = f"remedy {'yes' if told.remedy else 'no'}" if planted.remedy else ""
    cause = f"cause {told.cause}"
    return "; ".join(word for word in (cause, places, remedy, f"{answer.took_s:.0f} s", answer.needed) if word)


if __name__ == "__main__":
    sys.exit(main())
