"""What the planner believes of CUDA, asked of a GPU: autocast, kept tensors, the allocator; and its scripts."""

import json
import os
import random
import subprocess
import sys

from helpers.planner import Recipe
from helpers.planner.allocator import CachingAllocator
from helpers.planner.script import training_script
from helpers.planner.simulate.cuda_kernels import CudaKernels

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from .support import kept_bytes

pytestmark = pytest.mark.cuda
GPU = torch.device("cuda")
LOW = torch.float16  # every GPU has it
SDPA = F.scaled_dot_product_attention


# -- autocast and kernels

KEEPS = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "softmax": lambda x: torch.softmax(x, -1),
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "exp": torch.exp,
    "attention": lambda x: SDPA(x, x, x, is_causal=True),
    "attention with dropout": lambda x: SDPA(x, x, x, dropout_p=0.1),
    "cross_entropy": lambda x: F.cross_entropy(
        x.flatten(0, -2), torch.zeros_like(x[..., 0], dtype=torch.long).flatten()
    ),
}


@pytest.mark.silicon
@pytest.mark.parametrize("dtype", [LOW, torch.float32], ids=str)
@pytest.mark.parametrize("name", KEEPS)
def test_a_gpu_keeps_what_the_plan_says(name, dtype):
    shape, low = (2, 8, 256, 64), LOW if dtype == LOW else None
    real = torch.randn(shape, dtype=dtype, device=GPU, requires_grad=True)
    with torch.autocast("cuda", dtype=low or LOW, enabled=low is not None):
        kept = kept_bytes(KEEPS[name], real)
    kernels = CudaKernels(low)
    with FakeTensorMode(), kernels, kernels.autocast():
        planned = kept_bytes(KEEPS[name], torch.empty(shape, dtype=dtype, requires_grad=True))
    assert planned == pytest.approx(kept, rel=0.01, abs=1024)  # seeds and counters of a few bytes aside


FP32_OPERATIONS = {
    "layer_norm": lambda x: F.layer_norm(x, (16,)),
    "group_norm": lambda x: F.group_norm(x, 4),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(16, dtype=torch.long, device=x.device)),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "l1_loss": lambda x: F.l1_loss(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "normalize": F.normalize,
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "pow": lambda x: torch.pow(x, 2),
    "__pow__": lambda x: x**2,
    "__rpow__": lambda x: 2**x,
    "reciprocal": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "sum": torch.sum,
    "prod": torch.prod,
    "norm": torch.norm,
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "softplus": F.softplus,
}


@pytest.mark.parametrize("name", FP32_OPERATIONS)
def test_the_plans_fp32_list_is_autocasts(name):
    run = FP32_OPERATIONS[name]
    with torch.autocast("cuda", dtype=LOW):
        real = run(torch.rand(16, 16, dtype=LOW, device=GPU) + 1).dtype
    kernels = CudaKernels(LOW)
    with FakeTensorMode(), kernels, kernels.autocast():
        assert run(torch.rand(16, 16, dtype=LOW) + 1).dtype == real


# -- the allocator

PLAY = """
import json, sys, torch
live, seen = {}, []
for name, size in json.loads(sys.stdin.read()):
    if size:
        live[name] = torch.empty(size, dtype=torch.uint8, device="cuda")
    else:
        del live[name]
    seen.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
print(json.dumps(seen))
"""


def requests(seed):
    """Return 400 requests (name, bytes) and releases (name, 0), of all sizes that the allocator tells apart."""
    numbers = random.Random(seed)
    live, events = [], []
    for name in range(400):
        if live and numbers.random() < 0.45:
            events.append((live.pop(numbers.randrange(len(live))), 0))
        else:
            events.append((name, int(2 ** numbers.uniform(8, 25.5))))
            live.append(name)
    return events


@pytest.mark.silicon
@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_allocators_model_is_the_allocator(seed, expandable):
    events = requests(seed)
    setting = f"expandable_segments:{expandable}"
    environment = os.environ | {"PYTORCH_ALLOC_CONF": setting, "PYTORCH_CUDA_ALLOC_CONF": setting}
    done = subprocess.run(
        [sys.executable, "-c", PLAY], input=json.dumps(events), env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    model, live, seen = CachingAllocator(expandable=expandable), {}, []
    for name, size in events:
        if size:
            live[name] = model.allocate(size)
        else:
            model.release(live.pop(name))
        seen.append([model.allocated, model.reserved])
    assert seen == json.loads(done.stdout)


# -- exported scripts


@pytest.mark.parametrize("launcher", [[], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]])
@pytest.mark.parametrize("changes", [{"lora_rank": 8, "precision": "bf16"}, {"precision": "bf16-amp"}], ids=str)
def test_an_exported_script_trains_on_the_gpu(launcher, changes, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(training_script(Recipe("llama-3.2-1b", checkpointing="every", **changes)))
    done = subprocess.run(
        [sys.executable, *launcher, str(script), "--tiny", "--lr", "1e-3"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "loss" in done.stdout
