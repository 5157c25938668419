"""Shapes of published models, as Hugging Face configs without weights.

The sizes are those of the `config.json` in the repository that `source` names on huggingface.co, or of a paper where no
weights were published. No logic here.
"""

from dataclasses import dataclass
from typing import Any

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # how configs call the number of a mixture's experts

ENCODERS = ("bert", "resnet")  # types of models that write no text


@dataclass(frozen=True)
class PublishedConfig:
    """A published config: where it comes from, its `model_type`, and the sizes that differ from defaults.

    Attributes:
        side: pixels a side of its images; 0 when it reads text.
    """

    source: str
    model_type: str
    sizes: dict[str, Any]
    side: int = 0

    @property
    def context(self) -> int:
        """Its longest sequence; 0 when it looks at images."""
        return self.sizes.get("max_position_embeddings", 0)

    @property
    def rotates(self) -> bool:
        """Whether its positions are rotations, which go on beyond `context`."""
        return self.model_type not in ("gpt2", *ENCODERS)

    @property
    def mixture(self) -> bool:
        """Whether it is a mixture of experts."""
        return any(name in self.sizes for name in EXPERTS)


def _shape(width: int, inner: int, layers: int, heads: int, kv: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
    }


def _llama(source: str, **sizes: Any) -> PublishedConfig:
    return PublishedConfig(source, "llama", {"max_position_embeddings": 4096, "tie_word_embeddings": False, **sizes})


def _qwen(source: str, vocabulary: int, tied: bool, shape: dict[str, int]) -> PublishedConfig:
    rest = {"max_position_embeddings": 32768, "tie_word_embeddings": tied}
    return PublishedConfig(source, "qwen2", {"vocab_size": vocabulary, **shape, **rest})


def _qwen3(source: str, shape: dict[str, int], tied: bool = False, **experts: int) -> PublishedConfig:
    rest = {"head_dim": 128, "max_position_embeddings": 40960, "tie_word_embeddings": tied}
    model_type = "qwen3_moe" if experts else "qwen3"
    return PublishedConfig(source, model_type, {"vocab_size": 151936, **shape, **rest, **experts})


def _gpt2(source: str, width: int, layers: int, heads: int, context: int = 1024) -> PublishedConfig:
    shape = {"n_embd": width, "n_layer": layers, "n_head": heads, "tie_word_embeddings": True}
    return PublishedConfig(source, "gpt2", {"vocab_size": 50257, "max_position_embeddings": context, **shape})


def _mixtral(source: str, shape: dict[str, int], context: int) -> PublishedConfig:
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    rest = {"vocab_size": 32000, "max_position_embeddings": context, "tie_word_embeddings": False}
    return PublishedConfig(source, "mixtral", {**shape, **experts, **rest})


def _deepseek_v3(source: str, heads: int, **sizes: int) -> PublishedConfig:
    latent = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    experts = {"moe_intermediate_size": 2048, "n_shared_experts": 1, "num_experts_per_tok": 8}
    shape = {**_shape(7168, 18432, 61, heads, heads), **latent, "v_head_dim": 128, **experts}
    return PublishedConfig(source, "deepseek_v3", {**shape, "tie_word_embeddings": False, **sizes})


_LLAMA_3 = {"vocab_size": 128256, "max_position_embeddings": 131072}
_SHORT = {"max_position_embeddings": 8192}
CONFIGS: dict[str, PublishedConfig] = {
    "llama-2-7b": _llama("meta-llama/Llama-2-7b-hf", vocab_size=32000, **_shape(4096, 11008, 32, 32, 32)),
    "llama-2-13b": _llama("meta-llama/Llama-2-13b-hf", vocab_size=32000, **_shape(5120, 13824, 40, 40, 40)),
    "llama-2-70b": _llama("meta-llama/Llama-2-70b-hf", vocab_size=32000, **_shape(8192, 28672, 80, 64, 8)),
    "llama-3-8b": _llama("meta-llama/Meta-Llama-3-8B", **_LLAMA_3 | _SHORT, **_shape(4096, 14336, 32, 32, 8)),
    "llama-3-70b": _llama("meta-llama/Meta-Llama-3-70B", **_LLAMA_3 | _SHORT, **_shape(8192, 28672, 80, 64, 8)),
    "llama-3.1-8b": _llama("meta-llama/Llama-3.1-8B", **_LLAMA_3, **_shape(4096, 14336, 32, 32, 8)),
    "llama-3.1-70b": _llama("meta-llama/Llama-3.1-70B", **_LLAMA_3, **_shape(8192, 28672, 80, 64, 8)),
    "llama-3.1-405b": _llama("meta-llama/Llama-3.1-405B", **_LLAMA_3, **_shape(16384, 53248, 126, 128, 8)),
    "llama-3.2-1b": _llama(
        "meta-llama/Llama-3.2-1B", **_LLAMA_3, **_shape(2048, 8192, 16, 32, 8), head_dim=64, tie_word_embeddings=True
    ),
    "llama-3.2-3b": _llama(
        "meta-llama/Llama-3.2-3B", **_LLAMA_3, **_shape(3072, 8192, 28, 24, 8), head_dim=128, tie_word_embeddings=True
    ),
    "tinyllama-1.1b": _llama(
        "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", vocab_size=32000, **_shape(2048, 5632, 22, 32, 4)
    ),
    "mistral-7b": PublishedConfig(
        "mistralai/Mistral-7B-Instruct-v0.2",
        "mistral",
        {
            "vocab_size": 32000,
            **_shape(4096, 14336, 32, 32, 8),
            "max_position_embeddings": 32768,
            "sliding_window": None,
            "tie_word_embeddings": False,
        },
    ),
    "qwen2.5-0.5b": _qwen("Qwen/Qwen2.5-0.5B", 151936, True, _shape(896, 4864, 24, 14, 2)),
    "qwen2.5-1.5b": _qwen("Qwen/Qwen2.5-1.5B", 151936, True, _shape(1536, 8960, 28, 12, 2)),
    "qwen2.5-3b": _qwen("Qwen/Qwen2.5-3B", 151936, True, _shape(2048, 11008, 36, 16, 2)),
    "qwen2.5-7b": _qwen("Qwen/Qwen2.5-7B", 152064, False, _shape(3584, 18944, 28, 28, 4)),
    "qwen2.5-14b": _qwen("Qwen/Qwen2.5-14B-Instruct", 152064, False, _shape(5120, 13824, 48, 40, 8)),
    "qwen2.5-32b": _qwen("Qwen/Qwen2.5-32B-Instruct", 152064, False, _shape(5120, 27648, 64, 40, 8)),
    "qwen2.5-72b": _qwen("Qwen/Qwen2.5-72B-Instruct", 152064, False, _shape(8192, 29568, 80, 64, 8)),
    "qwen3-0.6b": _qwen3("Qwen/Qwen3-0.6B", _shape(1024, 3072, 28, 16, 8), tied=True),
    "qwen3-1.7b": _qwen3("Qwen/Qwen3-1.7B", _shape(2048, 6144, 28, 16, 8), tied=True),
    "qwen3-4b": _qwen3("Qwen/Qwen3-4B", _shape(2560, 9728, 36, 32, 8), tied=True),
    "qwen3-8b": _qwen3("Qwen/Qwen3-8B", _shape(4096, 12288, 36, 32, 8)),
    "qwen3-14b": _qwen3("Qwen/Qwen3-14B", _shape(5120, 17408, 40, 40, 8)),
    "qwen3-32b": _qwen3("Qwen/Qwen3-32B", _shape(5120, 25600, 64, 64, 8)),
    "qwen3-30b-a3b": _qwen3(
        "Qwen/Qwen3-30B-A3B",
        _shape(2048, 6144, 48, 32, 4),
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
    ),
    "qwen3-235b-a22b": _qwen3(
        "Qwen/Qwen3-235B-A22B",
        _shape(4096, 12288, 94, 64, 4),
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=1536,
    ),
    "mixtral-8x7b": _mixtral("mistralai/Mixtral-8x7B-v0.1", _shape(4096, 14336, 32, 32, 8), 32768),
    "mixtral-8x22b": _mixtral("mistralai/Mixtral-8x22B-v0.1", _shape(6144, 16384, 56, 48, 8), 65536),
    "deepseek-v3": _deepseek_v3(
        "deepseek-ai/DeepSeek-V3",
        128,
        vocab_size=129280,
        n_routed_experts=256,
        first_k_dense_replace=3,
        max_position_embeddings=163840,
    ),
    "kimi-k2": _deepseek_v3(  # whose own model type, kimi_k2, is that of DeepSeek-V3 with other sizes
        "moonshotai/Kimi-K2-Instruct",
        64,
        vocab_size=163840,
        n_routed_experts=384,
        first_k_dense_replace=1,
        max_position_embeddings=131072,
    ),
    "gpt-oss-120b": PublishedConfig(
        "openai/gpt-oss-120b",
        "gpt_oss",
        {
            "vocab_size": 201088,
            **_shape(2880, 2880, 36, 64, 8),
            "head_dim": 64,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
        },
    ),
    "gpt2": _gpt2("openai-community/gpt2", 768, 12, 12),
    "gpt2-medium": _gpt2("openai-community/gpt2-medium", 1024, 24, 16),
    "gpt2-large": _gpt2("openai-community/gpt2-large", 1280, 36, 20),
    "gpt2-xl": _gpt2("openai-community/gpt2-xl", 1600, 48, 25),
    "gpt3-175b": _gpt2("arXiv 2005.14165, table 2.1", 12288, 96, 96, 2048),  # its attention was sparse in every second
    "bert-base": PublishedConfig(
        "google-bert/bert-base-uncased",
        "bert",
        {"max_position_embeddings": 512, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
    ),
    "bert-large": PublishedConfig(
        "google-bert/bert-large-uncased",
        "bert",
        {
            "max_position_embeddings": 512,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
    ),
    "resnet-50": PublishedConfig("microsoft/resnet-50", "resnet", {"num_labels": 1000}, side=224),
}
