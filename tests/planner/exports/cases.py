"""Layouts that the tests of the exports share."""

from helpers.planner.exports.torchtitan_models import FLAVORS
from helpers.planner.layout.arch import Arch
from helpers.planner.layout.layout import Layout

ARCHS = {(flavor.module, flavor.name): arch for arch, flavor in FLAVORS.items()}
LLAMA_8B, LLAMA_70B = ARCHS["llama3", "8B"], ARCHS["llama3", "70B"]
MIXTURE = ARCHS["qwen3", "30B-A3B"]
DEEPSEEK = ARCHS["deepseek_v3", "16B"]
LLAMA_2 = Arch(32, 4096, 32, 32, 128, 11008, 32000)
GPT_2 = Arch(12, 768, 12, 12, 64, 3072, 50257, False, True, True, True, positions=1024)

MEGATRON = {"engine": "megatron", "zero": "zero1"}
# A layout of each engine that it can express.
BASES = {
    "torchtitan": Layout(LLAMA_8B, shard=4, micro_batches=4),
    "megatron": Layout(LLAMA_8B, shard=4, micro_batches=4, **MEGATRON),
    "megatron-bridge": Layout(LLAMA_8B, shard=4, micro_batches=4, **MEGATRON),
    "deepspeed": Layout(LLAMA_8B, shard=4, micro_batches=4),
    "torchrun": Layout(LLAMA_8B, shard=4, micro_batches=4, compile=False),
}
