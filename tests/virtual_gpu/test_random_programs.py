"""A dry run has the peaks of the same program computed, to the byte.

RANDOM_PROGRAMS="1000 1200" compares the programs of these seeds instead, so that others can be tried.
"""

import gc
import os
import warnings

from helpers.virtual_gpu.install import install, uninstall
from helpers.virtual_gpu.machine import Machine
from helpers.virtual_gpu.waits import Waits

import pytest

from ..sampling import sample
from .random_programs import run_program

CHOSEN = [int(word) for word in os.environ.get("RANDOM_PROGRAMS", "").split()]
FIRST, LAST = CHOSEN or (0, 200)
REFUSALS = (  # of PyTorch itself
    "modified by an inplace operation: [torch.LongTensor []]",  # a compiled checkpoint of a batch norm
    "Output 0 of BackwardHookFunction is a view and is being modified inplace",  # a backward hook of such a layer
    "Tensor cached during selective activation checkpoint has been mutated",
)
PARTS = [range(first, min(LAST, first + 10)) for first in range(FIRST, LAST, 10)]


def outcomes(seeds, dry):
    """Return the figures of each program, or PyTorch's refusal."""
    install(Machine.named("a100-80gb"), Waits() if dry else None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reentrant checkpointing without a gradient
            return {seed: outcome(seed) for seed in seeds}
    finally:
        gc.enable()
        uninstall()


def outcome(seed):
    gc.enable()
    gc.collect()
    gc.disable()  # or what is left in a circle is freed at another moment in each of the two runs
    try:
        return run_program(seed)
    except RuntimeError as error:
        if not any(refusal in str(error) for refusal in REFUSALS):
            raise
        return ["refused"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", PARTS if CHOSEN else sample(PARTS, one_in=10), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}"
)
def test_dry_peaks_are_those_of_computed_programs(seeds):
    dry, computed = outcomes(seeds, dry=True), outcomes(seeds, dry=False)
    assert {seed: (dry[seed], computed[seed]) for seed in seeds if dry[seed] != computed[seed]} == {}
    assert len({tuple(figures) for figures in dry.values()}) > len(seeds) / 2
