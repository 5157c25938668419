"""The league's formulas against what their authors' own code and pages state, and its table against the page."""

from dataclasses import replace

from helpers.core.units import GiB
from helpers.planner.catalog.archs import arch_of
from helpers.planner.layout.arch import Arch

import pytest
from accelerate.commands.estimate import estimate_training_usage

from tests.planner import league
from tests.planner.league import Job
from tests.planner.published import TABLE_PAGE, shown

LLAMA = Job("", arch_of("llama-2-7b"), 1, 1, 1, 1, 0, 1, 4096, False, "bf16")


@pytest.mark.parametrize(("precision", "name"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_accelerate_states_as_much(precision, name):
    theirs = estimate_training_usage(4 * LLAMA.arch.count(), name)
    assert league.accelerate(replace(LLAMA, precision=precision)) == max(theirs.values())
    assert league.accelerate(replace(LLAMA, gpus=2, tensor=2)) is None


def test_deepspeed_states_as_much():
    """Its page (docs/code-docs/source/memory.rst) has t5-3b on eight GPUs: 2,851 million parameters, 32 in a layer."""
    t5 = Arch(layers=1, hidden=1000, heads=1, kv_heads=1, head_dim=1, ffn=939_665, vocab=32_000, tied=True)
    job = replace(LLAMA, arch=t5, gpus=8, stage=3)
    assert t5.count() == pytest.approx(2851e6, rel=1e-4)
    assert league.deepspeed(job) / GiB == pytest.approx(6.10, abs=0.01)
    assert league.deepspeed(replace(job, stage=2)) / GiB == pytest.approx(15.93, abs=0.01)
    assert league.deepspeed(replace(job, stage=1)) is None


def test_eleuther_states_as_much():
    """What calc_transformer_mem.py prints for Llama 2 7B on eight GPUs."""
    assert league.eleuther(replace(LLAMA, gpus=8, tensor=2, stage=1)) / GiB == pytest.approx(90.33, abs=0.005)
    recomputed = replace(LLAMA, gpus=8, stage=3, recomputes=True)
    assert league.eleuther(recomputed) / GiB == pytest.approx(33.95, abs=0.005)


def test_the_page_has_the_bytes_of_its_other_tables():
    page = shown(TABLE_PAGE, league.BYTES).splitlines()
    again = league.bytes_table([*league.of_megatron(), *league.on_one_gpu()]).splitlines()
    assert len(again) == 7
    assert set(again) <= set(page), "run python -m tests.planner.league"


def test_one_mfu_is_that_of_other_sources():
    assert {name for name, *_ in league.reached()} >= {"simumax", "mlperf", "dgxc", "torchtitan"}
    (row, *_) = [league.as_simumax(row) for row in league._simumax_rows()]
    question = league.read_line(row)
    mine = league.mfu(question, 1.0)
    alone = league.one_mfu("simumax", question, 1.0)
    assert league.one_mfu("simumax", question, 2.0) == pytest.approx(alone)  # knows nothing of what was measured
    assert 0.2 < mine / alone < 0.7
