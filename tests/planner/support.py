"""Recipes and figures that several tests of the planner share."""

import os
import subprocess
import sys
from dataclasses import replace

from helpers.planner import Recipe, plan

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
SMALL = Recipe("small-gpt", precision="fp32", micro_batch_size=8, seq=256)
PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "tinyllama-1.1b": 1_100_048_384,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "vit-b-16": 86_567_656,
    "vit-l-16": 304_326_632,
    "vit-h-14": 632_045_800,
    "resnet-50": 25_557_032,
}


def peak(recipe, **changes):
    return plan(replace(recipe, **changes)).peak_allocated_bytes


def command(*arguments):
    """Run `python -m helpers plan`, without what this machine's user keeps."""
    kept_nothing = os.environ | {"TAS_PROGRESS": "off"}
    order = [sys.executable, "-m", "helpers", "plan", *arguments]
    return subprocess.run(order, capture_output=True, text=True, check=False, env=kept_nothing)
