"""The program in docs/how-to/client.md does what the page says; one that uses probe itself may leave it open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from probe.host import agent_memory
from target import Probe, Start, descendants

LEFT_OPEN = "import probe, sys; job = probe.connect(sys.argv[1]); print(job.query('SELECT COUNT(*) FROM probe.agents'))"
PAGE = Path(__file__).parents[2] / "docs/how-to/client.md"


def test_the_page_reads_a_job_over_zeromq(start: Start, probe: Probe, tmp_path: Path) -> None:
    torchrun = start("loop.py", "--sleep", "0.02", ranks=2)
    probe("attach", torchrun.pid)
    (endpoint,) = {facts.server for pid in descendants(torchrun.pid) if (facts := agent_memory.facts(pid)) is not None}
    program = tmp_path / "client.py"
    program.write_text(PAGE.read_text().split("```python\n")[1].split("```")[0])
    done = subprocess.run([sys.executable, program, str(endpoint)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [line.split(" [")[0] for line in done.stdout.splitlines()] == ["rank 0", "rank 1"]
    assert done.stdout.count("'start_ns'") == 6
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN, str(endpoint)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout and not done.stderr
