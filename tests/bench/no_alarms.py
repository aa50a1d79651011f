"""`hang` asked at random moments of healthy jobs of every kind: it must call none of them hung.

    python tests/bench/no_alarms.py [--asks 100] [--python .venv_frameworks/bin/python]        about half an hour

The jobs start, train, validate, compile, save, and idle for seconds each; --python has the frameworks.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
PROBE = Path(sys.executable).parent / "probe"
FRAMEWORKS = ("lightning", "lightning_manual", "transformers", "accelerate")
JOBS = {
    **{style: ("frameworks/timed.py", style, "TIMES", "--pauses") for style in FRAMEWORKS},
    "validates": ("targets/pausing.py", "6", "0", "validate"),
    "compiles": ("targets/pausing.py", "10", "0", "compile"),
    "saves": ("targets/pausing.py", "5", "0", "save"),
    "without torch.optim": ("targets/byhand.py", "update"),
    "GAN": ("targets/phased.py", "TIMES", "--gan", "--validate"),
    "HTTP server": ("targets/serving_http.py",),
}
IDLE_S = 5.0  # the longest pause between two requests


def ask(kind: str, asks: int, python: str) -> tuple[str, Counter[str], list[str]]:
    """kind, how often each code was said, and the alarms.  The job is attached to as soon as it is there."""
    script, *words = JOBS[kind]
    codes, alarms = Counter[str](), []
    chance = random.Random(kind)
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/out", "w+") as out:
        words = [word.replace("TIMES", f"{folder}/times") for word in words]
        runs_on = python if kind in FRAMEWORKS else sys.executable
        job = subprocess.Popen([runs_on, str(TESTS / script), *words], stdout=out, stderr=subprocess.STDOUT)
        try:
            time.sleep(chance.uniform(0.5, 2))
            while subprocess.run([PROBE, "attach", str(job.pid)], capture_output=True).returncode:
                if job.poll() is not None:
                    return kind, codes, [f"the job has ended: {Path(out.name).read_text()[-200:]}"]
                time.sleep(0.2)
            between = requests(f"{folder}/out", chance) if kind == "HTTP server" else lambda: None
            for _ in range(asks):
                between()
                time.sleep(chance.uniform(0, 1))
                done = subprocess.run(
                    [PROBE, str(job.pid), "hang", "--json"], capture_output=True, text=True, timeout=120
                )
                told = json.loads(done.stdout) if done.stdout else {"code": f"exit {done.returncode}"}
                codes[told["code"]] += 1
                if told.get("hung", True):
                    alarms.append(f"{told.get('verdict', '')} {done.stderr.strip()}")
        finally:
            job.kill()
            job.wait()
    return kind, codes, alarms


def requests(output: str, chance: random.Random) -> Callable[[], None]:
    """Sends a few requests, or none for seconds."""

    def send() -> None:
        time.sleep(chance.choice((0, 0, IDLE_S)))
        ready = Path(output).read_text().split()
        for _ in range(chance.randrange(20) if len(ready) > 1 else 0):
            urllib.request.urlopen(f"http://127.0.0.1:{ready[1]}/").read()

    return send


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--asks", type=int, default=100)
    parser.add_argument("--python", default=str(TESTS.parent / ".venv_frameworks" / "bin" / "python"))
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(JOBS)}; all if none is given")
    wanted = parser.parse_args()
    kinds = wanted.kinds or list(JOBS)
    with ThreadPoolExecutor(2) as pool:  # two jobs at once, for two cores
        for kind, codes, alarms in pool.map(lambda kind: ask(kind, wanted.asks, wanted.python), kinds):
            said = ", ".join(f"{count} {code}" for code, count in codes.most_common())
            print(f"{kind}: {len(alarms)} alarms in {codes.total()} askings: {said}", flush=True)
            for alarm in alarms:
                print(f"  {alarm}", flush=True)


if __name__ == "__main__":
    main()
