"""A dry run has the peaks of the same program computed, to the byte."""

import warnings

from helpers.virtual_gpu.install import install, uninstall
from helpers.virtual_gpu.machine import Machine
from helpers.virtual_gpu.waits import Waits

import pytest

from tests.sampling import runs_whole

from .random_programs import run_program

SEEDS = range(200 if runs_whole() else 12)


def peaks(dry):
    install(Machine.named("a100-80gb"), Waits() if dry else None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reentrant checkpointing without a gradient
            return {seed: run_program(seed) for seed in SEEDS}
    finally:
        uninstall()


@pytest.mark.slow
def test_dry_peaks_are_those_of_computed_programs():
    dry, computed = peaks(dry=True), peaks(dry=False)
    assert {seed: (dry[seed], computed[seed]) for seed in SEEDS if dry[seed] != computed[seed]} == {}
    assert len({tuple(figures) for figures in dry.values()}) > len(SEEDS) / 2
