"""`probe names` and `eval --frame`: what eval sees, also inside of a library's loop."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from target import FAST_IMPORT, Probe, Start, Target

pytest.importorskip("torch")

LIBRARY = """
import time, torch

class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.25)

    def fit(self, loader):
        for number, batch in enumerate(loader):
            self.optimizer.zero_grad()
            self.model(batch).sum().backward()
            self.optimizer.step()
            time.sleep(0.02)
            if number == 5:
                print("ready", flush=True)
"""
SCRIPT = f"""
{FAST_IMPORT}, itertools
sys.path.insert(0, sys.argv[1])
import torch, trainer_library

seed = 1

def main():
    batch_size = 4
    trainer_library.Trainer(torch.nn.Linear(8, 2)).fit(torch.ones(batch_size, 8) for _ in itertools.count())

main()
"""


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("job")
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "trainer_library.py").write_text(LIBRARY)
    (folder / "script.py").write_text(SCRIPT)
    made = start_once(folder / "script.py", str(folder / "site-packages"))
    probe("attach", made.pid)
    yield made


def names(job: Target, probe: Probe, *words: str) -> dict[str, tuple[object, ...]]:
    told = json.loads(probe(job.pid, "names", *words, "--format", "json").stdout)
    return {each["name"]: (each["type"], each["shape"], each["device"], each["value"]) for each in told}


def test_all_names_that_eval_sees_are_listed_with_what_they_are(job: Target, probe: Probe) -> None:
    found = names(job, probe)
    assert found["batch_size"] == ("int", None, None, "4") and "torch" not in found
    assert [*found].index("batch_size") < [*found].index("seed")  # innermost first
    assert "main (script.py:" in probe(job.pid, "names").stdout


def test_a_pattern_finds_attributes_too(job: Target, probe: Probe) -> None:
    assert [*names(job, probe, "batch*")] == ["batch_size"]
    assert names(job, probe, "optimizer", "--frame", "Trainer.fit")["self.optimizer"][0] == "SGD"
    assert names(job, probe, "no_such_thing") == {}


def test_a_librarys_loop_is_reached_by_its_function(job: Target, probe: Probe) -> None:
    found = names(job, probe, "--frame", "fit")
    assert found["batch"] == ("Tensor", "[4, 8]", "cpu", "torch.float32") and "batch_size" not in found
    assert probe(job.pid, "eval", "--frame", "fit", "batch.shape, number > 3").stdout == "(torch.Size([4, 8]), True)\n"
    assert probe(job.pid, "eval", "--frame", "0", "type(self).__name__").stdout == "'Trainer'\n"
    probe(job.pid, "eval", "--frame", "fit", "self.optimizer.param_groups[0]['lr'] = 0.125")
    assert probe(job.pid, "eval", "--frame", "fit", "self.optimizer.param_groups[0]['lr']").stdout == "0.125\n"


def test_a_frame_that_is_not_there_is_an_error_that_names_those_that_are(job: Target, probe: Probe) -> None:
    for verb in (("eval", "--frame", "nowhere", "1"), ("names", "--frame", "nowhere")):
        done = probe(job.pid, *verb, status=None)
        assert done.returncode in (1, 6) and "no frame 'nowhere' around the step; there are 0 " in done.stderr
        assert "main" in done.stderr and "ran at" not in done.stderr
