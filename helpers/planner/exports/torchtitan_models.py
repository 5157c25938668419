"""The models that torchtitan knows by name, found by their sizes.

Sizes are those of torchtitan 0.3, in torchtitan/models/*/__init__.py; a test compares them with the installed package.
"""

from dataclasses import dataclass, replace

from ..layout.arch import Arch


@dataclass(frozen=True)
class Flavor:
    """One of torchtitan's models.

    Attributes:
        module, name: whose `model_registry` builds it, and how it is called there.
        config: a training configuration of that module to start from.
        assets: its tokenizer's folder, below ./assets/hf.
    """

    module: str
    name: str
    config: str
    assets: str


def _dense(layers: int, hidden: int, heads: tuple[int, int], ffn: int, tied: bool = False) -> Arch:
    """Return a Llama 3 or a Qwen3; heads: of queries, and of keys and values."""
    return Arch(layers, hidden, *heads, hidden // heads[0], ffn, 128256, tied=tied)


def _qwen(arch: Arch) -> Arch:
    return replace(arch, head_dim=128, vocab=151936)


def _qwen_moe(layers: int, hidden: int, heads: int, moe_ffn: int) -> Arch:
    return Arch(layers, hidden, heads, 4, 128, 0, 151936, experts=128, experts_per_token=8, moe_ffn=moe_ffn)


def _deepseek(layers: int, hidden: int, heads: int, widths: tuple[int, int], **sizes: int) -> Arch:
    """Return a DeepSeek-V3; widths: of the dense blocks and of an expert."""
    latent = {"kv_lora": 512, "rope_dim": 64, "value_dim": 128}
    return Arch(layers, hidden, heads, heads, 192, widths[0], moe_ffn=widths[1], **latent, **sizes)


FLAVORS = {
    _dense(16, 2048, (32, 8), 8192, tied=True): Flavor("llama3", "1B", "llama3_8b", "Llama-3.2-1B"),
    _dense(28, 3072, (24, 8), 8192, tied=True): Flavor("llama3", "3B", "llama3_8b", "Llama-3.2-3B"),
    _dense(32, 4096, (32, 8), 14336): Flavor("llama3", "8B", "llama3_8b", "Llama-3.1-8B"),
    _dense(80, 8192, (64, 8), 28672): Flavor("llama3", "70B", "llama3_70b", "Llama-3.1-70B"),
    _dense(126, 16384, (128, 8), 53248): Flavor("llama3", "405B", "llama3_70b", "Llama-3.1-405B"),
    _qwen(_dense(28, 1024, (16, 8), 3072, tied=True)): Flavor("qwen3", "0.6B", "qwen3_0_6b", "Qwen3-0.6B"),
    _qwen(_dense(28, 2048, (16, 8), 6144, tied=True)): Flavor("qwen3", "1.7B", "qwen3_1_7b", "Qwen3-1.7B"),
    _qwen(_dense(36, 4096, (32, 8), 12288)): Flavor("qwen3", "8B", "qwen3_14b", "Qwen3-8B"),
    _qwen(_dense(40, 5120, (40, 8), 17408)): Flavor("qwen3", "14B", "qwen3_14b", "Qwen3-14B"),
    _qwen(_dense(64, 5120, (64, 8), 25600)): Flavor("qwen3", "32B", "qwen3_32b", "Qwen3-32B"),
    _qwen_moe(48, 2048, 32, 768): Flavor("qwen3", "30B-A3B", "qwen3_30b_a3b", "Qwen3-30B-A3B"),
    _qwen_moe(94, 4096, 64, 1536): Flavor("qwen3", "235B-A22B", "qwen3_30b_a3b", "Qwen3-235B-A22B"),
    _deepseek(
        27,
        2048,
        16,
        (10944, 1408),
        vocab=102400,
        experts=64,
        experts_per_token=6,
        shared_experts=2,
        dense_layers=1,
    ): Flavor("deepseek_v3", "16B", "deepseek_v3_16b", "deepseek-moe-16b-base"),
    _deepseek(
        61,
        7168,
        128,
        (18432, 2048),
        vocab=129280,
        experts=256,
        experts_per_token=8,
        shared_experts=1,
        dense_layers=3,
        q_lora=1536,
    ): Flavor("deepseek_v3", "671B", "deepseek_v3_671b", "DeepSeek-V3.1-Base"),
}


def flavor_of(arch: Arch) -> Flavor | None:
    """Return torchtitan's model of these sizes; None if it has none."""
    unused = arch.experts > 0 and arch.dense_layers == 0  # then no block is as wide as `ffn`
    return FLAVORS.get(replace(arch, ffn=0) if unused else arch)


def is_llama(arch: Arch) -> bool:
    """Return whether torchtitan's Llama is this model, in other sizes."""
    plain = not (arch.experts or arch.kv_lora or arch.bias or arch.layer_norm or arch.positions)
    return plain and arch.gated
