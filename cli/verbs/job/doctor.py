"""`probe doctor [PID]`."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, TypeAlias

import click

from probe.errors import UsageError

from ...attaching import who
from ...choosing import ranks_of
from ...options import process_argument
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import say

if TYPE_CHECKING:
    from probe.attach.doctor import Condition

Checked: TypeAlias = "list[tuple[int | None, int | None, list[Condition]]]"  # rank, pid, …; None: of the machine
COLUMNS = ("rank", "pid", "condition", "holds", "told", "remedy", "code")
PEAK_COLUMNS = ("processor", "dtype", "gflops_s", "gbps", "ridge_flops_a_byte")
_INDENT = 19  # what stands before the text of a line


@click.command("doctor")
@process_argument
@click.option("--gpu", is_flag=True, help="Also show drivers, devices and what is recorded on them.")
@click.option("--peak", is_flag=True, help="Measure what the processors can do; the machine has to be idle.")
@click.option("--threads", type=click.IntRange(1), metavar="N",
              help="With --peak: CPU threads to measure with. Default: as many as torch uses.")  # fmt: skip
@output_options
def command(pid: int | None, gpu: bool, peak: bool, threads: int | None, output: Output) -> None:
    """Check whether you can attach, and how to fix it.

    Without a PID, it checks this machine and this shell; with one, also that process, or each rank under it.
    Nothing is changed or stopped. The exit status is 0 only if attaching would work, else that of attach.

    With --gpu, it also says what can be told of devices by reading alone, with no attach and no CUDA context: the
    driver, the devices, what the process has mapped and open, and what an agent would record there. The exit status
    does not depend on it.

    With --peak, it measures instead what the CPU and each CUDA device can do, by matrix products and copies, in a
    process of its own, and keeps it for python.module_cost: a CPU has no data sheet. A job with another number of
    threads than torch takes by itself needs --threads.

    \b
    Example:
      probe doctor
      probe doctor 4242
      probe doctor 4242 --gpu
      probe doctor --peak --threads 8
    """
    if peak:
        if pid is not None or gpu:
            raise UsageError("--peak measures this machine, and checks nothing.", "Try: probe doctor --peak")
        show_peaks(threads or 0, output)
        return
    from probe.attach import doctor

    pids = ranks_of([pid], every_job=True) if pid is not None else {}
    checked: Checked = [(None, None, doctor.of_machine())]
    checked += [(rank, pid, doctor.of_process(pid)) for pid, rank in pids.items()]
    if gpu:
        add_devices(checked)
    if output.is_default:
        for rank, pid, conditions in checked:
            if pid is not None:
                click.echo(f"\n{who(rank, pid)}")
            print_conditions(conditions)
    else:
        rows = [
            (rank, pid, one.name, one.holds, one.detail, one.error and one.error.hint, one.error and one.error.code)
            for rank, pid, conditions in checked
            for one in conditions
        ]
        output.show(Records(COLUMNS, rows))
    for error in (each.error for _, _, conditions in checked for each in conditions if each.error is not None):
        raise error
    if output.is_default:
        click.echo("You can attach." if pids else "You can attach from here. To check a process: probe doctor PID")


def show_peaks(threads: int, output: Output) -> None:
    """Measure them, keep them, and show a row for each processor and type."""
    from probe.host.peaks import known, measurement

    say("Measuring; this takes some ten seconds a processor.")
    found = measurement.measure(threads)
    file = known.keep(found)
    output.show(Records(PEAK_COLUMNS, [
        (name, dtype, flops_s / 1e9, peak.bytes_s / 1e9, flops_s / peak.bytes_s)
        for name, peak in found.items() for dtype, flops_s in peak.flops_s.items()
    ]))  # fmt: skip
    say(f"kept in {file}")


def add_devices(checked: Checked) -> None:
    """Append to the conditions of the machine and of each process what can be read of devices."""
    from probe.attach import doctor_gpu
    from probe.host.nvml import read_nvml

    nvml = read_nvml()
    for _, pid, conditions in checked:
        conditions += doctor_gpu.of_machine(nvml) if pid is None else doctor_gpu.of_process(pid, nvml)


def print_conditions(conditions: list[Condition]) -> None:
    """Lines as wide as a terminal is, but whole ones, which can be searched, elsewhere."""
    for one in conditions:
        mark = {True: "ok", False: "NO", None: ""}[one.holds]
        hint = one.error.hint if one.error is not None else ""
        lines = [*_wrapped(one.detail), *(_wrapped(hint) if hint else [])]
        for place, line in enumerate(lines):
            click.echo(f"{'' if place else mark:<4}{'' if place else one.name:<{_INDENT - 4}}{line}")


def _wrapped(text: str) -> list[str]:
    if not sys.stdout.isatty():
        return [text]
    width = max(40, shutil.get_terminal_size().columns) - _INDENT
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
