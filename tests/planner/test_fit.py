"""What fits, what to change if it does not, and many plans at once."""

import json
import re
import subprocess
import sys
from dataclasses import replace

from helpers import GiB
from helpers.planner import Recipe, RecipeError, plan, plan_many
from helpers.planner.catalog import GPUS, find_gpu

import pytest

from tests.planner.support import PARAMETERS, SMALL


@pytest.mark.slow
def test_remedies_lower_the_peak_and_the_sufficing_come_first():
    recipe = Recipe("gpt2", precision="fp32", micro_batch_size=8, seq=512, attention="eager")
    answer = plan(recipe, budget=6)
    assert answer.fits == {"6 GiB": False}
    assert len(answer.remedies) >= 5
    verdicts = [remedy["fits"] for remedy in answer.remedies]
    assert verdicts == sorted(verdicts, reverse=True)
    assert any(verdicts)
    for remedy in answer.remedies[:2]:
        again = plan(Recipe(**remedy["recipe"]), budget=6)
        assert again.peak_allocated_bytes == pytest.approx(remedy["peak_allocated_bytes"], rel=0.01)
        assert again.peak_allocated_bytes < answer.peak_allocated_bytes
        assert again.fits["6 GiB"] == remedy["fits"]
    assert plan(recipe, budget=60).remedies == []


@pytest.mark.slow
def test_a_recipe_may_fit_where_the_cache_would_not():
    """Reserved memory may want more than there is; the allocator then hands its cache back."""
    recipe = replace(SMALL, micro_batch_size=16, seq=512)
    answer = plan(recipe)
    context = GPUS["t4-16gb"].context
    between = (answer.peak_allocated_bytes + answer.reserved_bytes[1]) / 2
    assert plan(recipe, budget=(context + 1.02 * answer.reserved_bytes[1]) / GiB).fits.popitem()[1]
    assert not plan(recipe, budget=(context + 0.9 * answer.peak_allocated_bytes) / GiB).fits.popitem()[1]
    assert plan(recipe, budget=(context + between) / GiB).fits.popitem()[1] in (True, False)


def test_gpus_are_found_by_the_beginning_of_their_names():
    assert find_gpu("RTX 4090").name == find_gpu("4090").name == "rtx-4090-24gb"
    assert find_gpu("t4").name == "t4-16gb"
    assert find_gpu("h100").total < 80 * GiB


def test_equal_recipes_are_planned_once_and_kept_in_order():
    a, b = SMALL, replace(SMALL, micro_batch_size=2)
    first, second, third = plan_many([a, b, a])
    assert first is third
    assert first.peak_allocated_bytes > second.peak_allocated_bytes
    with pytest.raises(RecipeError):
        plan_many([a], gpu="nonesuch")


@pytest.mark.slow
def test_70b_on_8_ranks_takes_little_memory_here():
    program = (
        "import json, sys\n"
        "from helpers.planner import ParallelConfig, Recipe, plan\n"
        "p = plan(Recipe('llama-2-70b', seq=2048, parallel=ParallelConfig(shard=8), checkpointing='every'))\n"
        "status = open('/proc/self/status').read() if sys.platform == 'linux' else 'VmHWM: 0 kB'\n"
        "print(json.dumps([p.peak_allocated_bytes, p.at_peak['parameters'], status]))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    bytes_at_peak, parameters, status = json.loads(run.stdout)
    n = PARAMETERS["llama-2-70b"]
    assert parameters == pytest.approx(2 * n / 8, rel=0.02)
    assert bytes_at_peak == pytest.approx(10 * n / 8, rel=0.05)  # weights, gradients, two moments, foreach's copy
    assert int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) < 3 * 2**20


def test_cublas_workspaces_are_pytorchs():
    """`CublasHandlePool.cpp`: `:4096:2:16:8`, and 32 MiB on Hopper and Blackwell."""
    assert GPUS["a100-80gb"].cublas_workspace == GPUS["t4-16gb"].cublas_workspace == 8_519_680
    assert GPUS["h100-80gb"].cublas_workspace == GPUS["b200-192gb"].cublas_workspace == 32 * 2**20
    assert all(gpu.source for gpu in GPUS.values())
    without = {name.partition("-")[0] for name, gpu in GPUS.items() if not gpu.bf16}
    assert without == {"t4", "v100", "p40", "p100", "rtx", "titan", "quadro"}
    assert all("-20" in name for name, gpu in GPUS.items() if not gpu.bf16 and name.startswith("rtx"))
