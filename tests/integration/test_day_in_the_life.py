"""docs/day_in_the_life.md, walked on a terminal: each of its commands, in order, and the output that the page shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import Terminal

pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs/day_in_the_life.md"
CUT = re.compile(
    "…|^Differs.*", re.MULTILINE
)  # what the page leaves out; on a busy machine a part may differ by chance
# What differs from run to run: any number, an interval in brackets, a plural, the columns of a table, where it lies
VARIES = (
    (r"\x1b\[[\d;]*m", ""), (r"\([^()]*\d[^()]*\)", "(#)"), (r"\d[\d,.]*\d|\d", "#"), (r"/\S*/runs/job=", "runs/job="),
    (r"\b(worker|row)s\b", r"\1"), (r"-{2,}", "-"), (r"\s+", " "),
)  # fmt: skip


def shown() -> Iterator[tuple[str, str]]:
    """Each command of the page, and its output there."""
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for part in block.removeprefix("$ ").split("\n$ "):
            command, _, output = part.partition("\n")
            yield command, output


def alike(text: str) -> str:
    for pattern, same in VARIES:
        text = re.sub(pattern, same, text)
    return text.strip()


@pytest.mark.long  # each of its commands has a test of its own
@pytest.mark.alone  # whether more workers make the job faster depends on what runs beside it
def test_every_command_shows_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("train.py").write_text(PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0])
    commands = list(shown())
    assert len(commands) == 9
    for command, output in commands:
        found = alike(told(command, tmp_path, 11 if "[changed]" in output else 0))
        for part in CUT.split(output):
            assert alike(part) in found, command
    assert "num_workers=2)" in Path("train.py").read_text()


def told(command: str, state: Path, status: int) -> str:
    """What this command says on a terminal of 80 columns."""
    name, *words = shlex.split(command)
    if name != "probe":
        return subprocess.run([name, *words], check=True, capture_output=True, text=True).stdout
    terminal = Terminal(*words, state=state)
    try:
        assert terminal.wait() == status, terminal.text
        return terminal.text
    finally:
        terminal.end()
