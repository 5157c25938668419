"""The planner against PyTorch itself."""

import gc
from dataclasses import replace

from helpers.formats.autocast_rules import autocast_rule
from helpers.planner import ParallelConfig, plan
from helpers.planner.measure import measure_recipe
from helpers.planner.replay import replay
from helpers.planner.simulate import simulate
from helpers.planner.simulate.cuda_kernels import CudaKernels

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.planner.support import SMALL, kept_bytes
from tests.sampling import sample_with_quick

METER = (
    {},
    {"optimizer": "sgd", "optimizer_impl": "for-loop"},
    {"checkpointing": "every"},
    {"checkpointing": "sqrt", "optimizer_impl": "fused"},
    {"gradient_accumulation_steps": 2},
    {"set_to_none": False},
    {"step_in_backward": True, "optimizer_impl": "for-loop"},
    {"step_in_backward": True, "optimizer": "adafactor"},
    {"lora_rank": 4, "lora_targets": ("qkv", "out")},
    {"precision": "bf16"},
    {"precision": "bf16-amp", "optimizer": "adafactor"},
)


@pytest.mark.parametrize(
    "changes",
    sample_with_quick(METER, one_in=3, quick_one_in=4),
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_predictions_agree_with_the_meter(changes):
    """Where CPU and GPU kernels keep the same, the planner can be measured without a GPU."""
    recipe = replace(SMALL, **changes)
    measured = measure_recipe(recipe, torch.device("cpu")).peak_bytes
    # The meter does not know the inputs, and the CPU does not round to 512 bytes.
    assert plan(recipe).peak_allocated_bytes == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float16, 1605636), (torch.bfloat16, 1605636), (None, 1081348)])
def test_a_cross_entropy_under_autocast_keeps_what_an_h100_keeps(dtype, kept):
    """tests/planner/test_on_cuda.py, `cross_entropy`, run there: logarithms in 16 bits, and a copy in FP32."""
    kernels = CudaKernels(dtype)
    with FakeTensorMode(), kernels, kernels.autocast():
        x = torch.empty(2, 8, 256, 64, dtype=dtype or torch.float32, requires_grad=True)
        target = torch.zeros_like(x[..., 0], dtype=torch.long).flatten()
        assert kept_bytes(lambda x: F.cross_entropy(x.flatten(0, -2), target), x) == kept


def _optimizers():
    return sum(issubclass(type(thing), torch.optim.Optimizer) for thing in gc.get_objects())


def test_a_measurement_leaves_no_model_behind():
    """A hook on a parameter that holds its optimizer is a cycle that Python's garbage collector does not see."""
    recipe = replace(SMALL, step_in_backward=True, optimizer_impl="for-loop", micro_batch_size=1)
    measure_recipe(recipe, torch.device("cpu"))
    gc.collect()
    before = _optimizers()
    measure_recipe(recipe, torch.device("cpu"))
    gc.collect()
    assert _optimizers() == before


STEPS = (
    {},
    {"precision": "bf16-amp", "checkpointing": "every"},
    {"gradient_accumulation_steps": 3, "optimizer": "sgd-momentum"},
    {"optimizer": "adafactor"},
    {"optimizer": "adamw-8bit"},
    {"step_in_backward": True},
    {"model": "bert-base", "micro_batch_size": 1, "attention": "eager"},
    {"parallel": ParallelConfig(shard=4, zero="zero2")},
    {"offload": "optimizer"},
)


@pytest.mark.parametrize(
    "changes",
    sample_with_quick(STEPS, one_in=3, quick_one_in=4),
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_a_copied_second_step_is_the_second_step(changes):
    recipe = replace(SMALL, **changes)
    copied, run = (replay(simulate(recipe, repeat=repeat).blocks, False) for repeat in (True, False))
    assert (copied.peak_allocated, copied.at_peak, copied.peak_reserved) == (
        run.peak_allocated,
        run.at_peak,
        run.peak_reserved,
    )


# Its input, which is there anyway, unless autocast runs it in FP32 (not yet in PyTorch 2.9): then an FP32 copy.
RMS_NORM_KEEPS = 4 if autocast_rule(lambda x, y: torch.rms_norm(x, (16,)), "cuda", torch.bfloat16) == "FP32" else 0


@pytest.mark.parametrize(
    ("run", "kept"),
    [
        (lambda x: torch.nn.functional.dropout(x, 0.5), 1),  # CUDA: a mask of one byte; CPU: a float
        (lambda x: torch.nn.functional.layer_norm(x, (64,)), 4),  # autocast to FP32, whose input is kept
        (lambda x: torch.softmax(x, -1), 4),
        (lambda x: torch.nn.functional.rms_norm(x, (64,)), RMS_NORM_KEEPS),
        (lambda x: torch.nn.functional.gelu(x), 0),
    ],
    ids=["dropout", "layer_norm", "softmax", "rms_norm", "gelu"],
)
def test_what_is_kept_is_what_cuda_keeps(run, kept):
    sizes = {}

    def keep(tensor):
        sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    kernels = CudaKernels(torch.bfloat16)
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with FakeTensorMode(), kernels, hooks, kernels.autocast():
        x = torch.empty(128, 64, dtype=torch.bfloat16, requires_grad=True)
        out = run(x)
        sizes.pop(x.untyped_storage()._cdata, None)
        assert out.shape == x.shape
    assert sum(sizes.values()) / (128 * 64) == pytest.approx(kept, abs=0.2)


@pytest.mark.slow
def test_attention_is_the_kernel_that_cuda_would_choose():
    def used(**changes):
        blocks = simulate(replace(SMALL, model="gpt2", micro_batch_size=1, **changes)).blocks
        return {b.op.name for b in blocks if "attention" in b.op.name and b.op.phase == "forward"}

    # Without a cache, Transformers 4 passes a mask, in case sequences are packed; flash attention takes none.
    kernel = "efficient" if transformers.__version__.startswith("4.") else "flash"
    assert used(precision="bf16") == {f"aten._scaled_dot_product_{kernel}_attention.default"}
    assert used(precision="bf16-amp") == {f"aten._scaled_dot_product_{kernel}_attention.default"}
    assert used(precision="fp32") == {"aten._scaled_dot_product_efficient_attention.default"}
    assert used(precision="fp32", attention="eager") == set()
