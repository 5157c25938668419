"""A lab's solution, dry: each cell has the allocated peak that it has computed, or a value was missing on its way."""

import json
import os
import subprocess
import sys

from helpers.core.files import ROOT

import pytest

from ..sampling import sample
from .solution_cells import __file__ as program

SECONDS = 120  # of the processor, after which no further cell is computed
# The last cell of each lab, where others take a CPU minutes; "": any in so many seconds. Labs 08c, 11 to 14b, 15b, 16b,
# 17, 17b and 18 have nothing on a GPU in their own process.
LABS = {
    "00_start_here": "",
    "01_where_memory_goes": "",
    "02_number_formats": "",
    "03_mixed_precision": "",
    "03b_loss_scaling": "",
    "03b_x1_amp_cnn": "step_check",
    "04_gradient_accumulation": "",
    "04_x2_batch_256": "table",
    "05_activation_checkpointing": "",
    "05b_selective_checkpointing": "",
    "06_memory_profiling": "",
    "06b_oom_clinic": "inference",
    "07_where_the_time_goes": "launch",
    "07b_traces": "first_call",
    "08_data_loading": "guess_thread",  # then a thread loads ahead, in every run another number of batches
    "08b_workers_in_practice": "",
    "09_lean_optimizers": "",
    "09b_muon_and_in_place": "search",
    "10_compilation_and_fusion": "",
    "10b_fused_kernels": "softmax_picture",
    "15_context_parallel": "plan",
    "16_mixture_of_experts": "kernel_run",
    "19_fp8": "",
    "19b_training_in_fp8": "train_compare",
    "20_lora": "adapt",
    "20_x4_lora": "tried",
    "20b_adapters_in_practice": "pack_hint",
    "21_capstone": "stacked",
    "21b_choosing_a_recipe": "one_device",
}
OF_VALUES = {  # cells in which values decide how much is done: a dry run has none
    "04_gradient_accumulation": {"critical", "betas"},  # they train until a loss is reached
    "19_fp8": {"largest"},  # what a mask selects
}


def rows_of(solution, *options):
    done = subprocess.run(
        [
            *(sys.executable, program, str(ROOT / "solutions" / f"{solution}.py"), *options),
            *("--seconds", str(SECONDS), "--until", LABS[solution]),
        ],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("solution", sample(list(LABS), one_in=len(LABS)))
def test_cells_have_the_same_peaks(solution):
    dry, computed = rows_of(solution, "--dry"), rows_of(solution)
    assert any(peak > 0 for _, peak, _, _ in computed)
    missing = {name for name, _, _, error in dry if error} - {name for name, _, _, error in computed if error}
    ends = next((number for number, row in enumerate(dry) if row[0] in missing), min(len(dry), len(computed)))
    assert ends > 4
    same = [number for number in range(ends) if computed[number][0] not in OF_VALUES.get(solution, ())]
    assert [dry[number][:2] for number in same] == [computed[number][:2] for number in same]
