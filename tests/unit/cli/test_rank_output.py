"""Output of several ranks: equal lines once, nothing lost, nothing out of order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from probe.cli.output.rank_output import PATIENCE_S, RankOutput
from probe.text import span, title


class Screen:
    def __init__(self, *ranks: int) -> None:
        self.text = ""
        self.now = 0.0
        self.merge = RankOutput(ranks, self._write, lambda: self.now)

    def _write(self, text: str) -> None:
        self.text += text


def test_a_single_rank_has_no_header_and_no_delay() -> None:
    screen = Screen(0)
    screen.merge.feed(0, "half a ")
    assert screen.text == "half a "
    screen.merge.finish()
    assert screen.text == "half a "


def test_equal_output_is_printed_once() -> None:
    screen = Screen(0, 1, 2)
    for rank in (2, 0, 1):
        screen.merge.feed(rank, "same\n")
    assert screen.text == "ranks 0-2:\nsame\n"
    for rank in (0, 1, 2):
        screen.merge.feed(rank, "again\n")
    screen.merge.finish()
    assert screen.text == "ranks 0-2:\nsame\nagain\n"


def test_ranks_whose_output_differs_have_blocks_of_their_own() -> None:
    screen = Screen(0, 1, 2)
    for rank, loss in enumerate(("2.5", "2.7", "2.5")):
        screen.merge.feed(rank, f"step 7\nloss {loss}\n")
    screen.merge.finish()
    assert screen.text == "ranks 0-2:\nstep 7\nranks 0, 2:\nloss 2.5\nrank 1:\nloss 2.7\n"


def test_a_line_waits_only_so_long_for_an_equal_one() -> None:
    screen = Screen(0, 1)
    screen.merge.feed(0, "only here\nha")
    assert screen.text == ""
    screen.now = PATIENCE_S + 1
    screen.merge.feed(0, "lf")
    assert screen.text == "rank 0:\nonly here\n"
    screen.merge.finish()
    assert screen.text == "rank 0:\nonly here\nhalf\n"


def test_a_line_goes_out_in_time_though_no_more_text_comes() -> None:
    screen = Screen(0, 1)
    screen.merge.feed(0, "only here\n")
    screen.now = PATIENCE_S / 2
    screen.merge.look()
    assert screen.text == ""
    screen.now = PATIENCE_S + 0.1
    screen.merge.look()
    assert screen.text == "rank 0:\nonly here\n"


def test_ranks_are_named_in_runs() -> None:
    assert span([0, 1, 2, 3, 6, 8, 9]) == "0-3, 6, 8-9"
    assert (title([3]), title([0, 1])) == ("rank 3", "ranks 0-1")


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["a\n", "b\n", "c", "\n"]), st.floats(0, 1))))
def test_no_output_of_a_rank_is_lost_or_reordered(feeds: list[tuple[int, str, float]]) -> None:
    screen = Screen(0, 1, 2)
    wrote = {0: "", 1: "", 2: ""}
    for rank, text, pause in feeds:
        screen.now += pause
        wrote[rank] += text
        screen.merge.feed(rank, text)
    screen.merge.finish()
    read = {0: "", 1: "", 2: ""}
    under: list[int] = []
    for line in screen.text.splitlines(keepends=True):
        if line.startswith("rank"):
            under = [int(rank) for rank in line.removesuffix(":\n").split(" ", 1)[1].replace("-", ", ").split(", ")]
            under = list(range(under[0], under[-1] + 1)) if "-" in line and len(under) == 2 else under
        else:
            for rank in under:
                read[rank] += line
    assert all(read[rank].rstrip("\n") == wrote[rank].rstrip("\n") for rank in wrote)
