"""Recipes and figures that several tests of the planner share."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from helpers.planner import Recipe, plan

import torch

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
# Models of few blocks, and of few tokens where logits would weigh most: what holds for each parameter or block holds
# here, too, in a fraction of the time.
GPT2 = str(Path(__file__).with_name("gpt2_short.json"))
GPT2_PARAMETERS = 35_430_912
LLAMA = str(Path(__file__).with_name("llama_short.json"))
LLAMA_PARAMETERS = 666_914_816
SMALL = Recipe("small-gpt", precision="fp32", micro_batch_size=8, seq=256)
PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "tinyllama-1.1b": 1_100_048_384,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,  # the paper says 174,600M
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "vit-b-16": 86_567_656,
    "vit-l-16": 304_326_632,
    "vit-h-14": 632_045_800,
    "resnet-50": 25_557_032,
}
MIXTURES = {  # of the weights, without heads that predict more than one token
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v3": 671_026_404_352,
    "kimi-k2": 1_026_408_209_408,
    "gpt-oss-120b": 116_829_156_672,
}
# Billions of parameters in all and for a token, as papers and model cards print them. Some count the input embedding
# among those for a token. Kimi K2's card says 1T, its report 1.04T, which is a block of experts more than its config.
PRINTED = {
    "mixtral-8x7b": (46.7, 12.9),
    "mixtral-8x22b": (141, 39),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235, 22),
    "deepseek-v3": (671, 37),
    "gpt-oss-120b": (116.8, 5.1),
}


def peak(recipe, **changes):
    return plan(replace(recipe, **changes)).peak_allocated_bytes


def command_alone(*arguments):
    """Run `python -m helpers plan` in a process of its own, without what this machine's user keeps."""
    kept_nothing = os.environ | {"TAS_PROGRESS": "off"}
    order = [sys.executable, "-m", "helpers", "plan", *arguments]
    return subprocess.run(order, capture_output=True, text=True, check=False, env=kept_nothing)


def kept_bytes(run, x):
    """Return the bytes that autograd keeps of `run(x)`, other than `x` itself."""
    sizes = {}

    def keep(tensor):
        sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = run(x)
    sizes.pop(x.untyped_storage()._cdata, None)
    del out
    return sum(sizes.values())
