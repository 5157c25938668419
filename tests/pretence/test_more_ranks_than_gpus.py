"""With one GPU and more ranks than that, ranks stay on the CPU together, and labs print the figures of a plain CPU."""

import os
import re
import subprocess
import sys

from helpers.core.files import ROOT

import pytest

from ..sampling import runs_whole

LABS = ("11b_x3_ddp", "11_data_parallel", "11b_when_ranks_go_wrong", "12_sharding", "12b_fully_shard")
GPU = ["-m", "tests.pretence", "--gpu", "h100", "--gpus", "1"]
# Lines that name the machine, or whose figures are seconds.
OF_THE_MACHINE = re.compile(
    r"torch \d|rows per second|times one rank|under way|this machine|[Ss]econds|times as long|Time in"
    r"|You said|busy|recorded"
)
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[-+]\d+)?")
PEAK = re.compile(r"peak| MiB")  # messages travel beside the computation, so peaks differ a little from run to run
ROOM = 0.08  # relative, for peaks and what follows from them


def printed(script: str, *launcher: str) -> list[str]:
    """Return the lines that a lab's source prints, without those of the machine."""
    done = subprocess.run(
        [sys.executable, *launcher, f"solutions/{script}.py"],
        cwd=ROOT,
        env=os.environ | {"MPLBACKEND": "agg", "TAS_PROGRESS": "off"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if not OF_THE_MACHINE.search(line)]


def differences(plain: list[str], pretended: list[str]) -> list[str]:
    """Return the pairs of lines that differ: in their words, or in a figure."""
    assert len(plain) == len(pretended), "\n".join([*plain, "-- against --", *pretended])
    return [f"{a}\n{b}" for a, b in zip(plain, pretended, strict=True) if a != b and not same_but_for_peaks(a, b)]


def same_but_for_peaks(a: str, b: str) -> bool:
    """Whether two lines have the same words, and figures of peaks that are nearly alike."""
    if " ".join(NUMBER.sub("#", a).split()) != " ".join(NUMBER.sub("#", b).split()) or not PEAK.search(a):
        return False
    pairs = [(number(x), number(y)) for x, y in zip(NUMBER.findall(a), NUMBER.findall(b), strict=True)]
    return all(abs(x - y) <= ROOM * max(x, y) for x, y in pairs)


def number(text: str) -> float:
    """Return the number that `text` writes, with commas between the thousands."""
    return float(text.replace(",", ""))


def test_a_difference_is_seen():
    line = "ZeRO-1  4  loss 0.255349, 10.06 bytes a parameter"
    assert differences([line], [line]) == []
    assert differences([line], [line.replace("10.06", "10.07")])
    assert differences([line], [line.replace("loss", "Loss")])
    peak = "blocks  peak  23.19 MiB"
    assert differences([peak], ["blocks  peak   23.6 MiB"]) == []
    assert differences([peak], ["blocks  peak  33.19 MiB"])


@pytest.mark.slow
@pytest.mark.parametrize("lab", LABS if runs_whole() else LABS[:1])  # the others take minutes
def test_figures_are_those_of_the_cpu(lab):
    differing = differences(printed(lab), printed(lab, *GPU))
    assert not differing, "\n\n".join(differing)
