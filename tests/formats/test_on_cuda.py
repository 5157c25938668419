"""Autocast's rules and FP8's rounding, as told on any machine, against a GPU."""

import math

from helpers.formats import autocast_rules
from helpers.formats.autocast_rules import autocast_rule
from helpers.formats.float_format import FORMATS

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.cuda
GPU = torch.device("cuda")
OPERATIONS = {
    "matmul": torch.matmul,
    "linear": F.linear,
    "exp": lambda a, b: a.exp(),
    "sum": lambda a, b: a.sum(),
    "pow": lambda a, b: a.pow(2),
    "softmax": lambda a, b: a.softmax(-1),
    "softplus": lambda a, b: F.softplus(a),
    "layer_norm": lambda a, b: F.layer_norm(a, (16,)),
    "group_norm": lambda a, b: F.group_norm(a, 4),
    "rms_norm": lambda a, b: F.rms_norm(a, (16,)),
    "mse_loss": F.mse_loss,
    "relu": lambda a, b: F.relu(a),
    "gelu": lambda a, b: F.gelu(a),
    "add": torch.add,
    "cat": lambda a, b: torch.cat([a, b]),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_rule_told_without_a_gpu_is_the_gpus(name, monkeypatch):
    on_the_gpu = autocast_rule(OPERATIONS[name], "cuda", torch.float16)
    monkeypatch.setattr(autocast_rules.torch.cuda, "is_available", lambda: False)
    assert autocast_rule(OPERATIONS[name], "cuda", torch.float16) == on_the_gpu


@pytest.mark.parametrize("name", ["FP16", "BF16", "E4M3", "E5M2"])
def test_a_cast_on_the_gpu_rounds_as_the_course_does(name):
    dtypes = {"FP16": torch.float16, "BF16": torch.bfloat16, "E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}
    form = FORMATS[name]
    numbers = [x * sign for x in (0.0, 0.1, 1 / 3, 1.0625, 1.1, 3.14159, 200.7, 2**-9, 1e-3) for sign in (1, -1)]
    cast = torch.tensor(numbers, device=GPU).to(dtypes[name]).float().tolist()
    expected = [form.decode(form.encode(x)) for x in numbers]
    assert all(math.isclose(one, other, rel_tol=1e-7, abs_tol=0) for one, other in zip(cast, expected, strict=True))
