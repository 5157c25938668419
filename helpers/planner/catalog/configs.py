"""Shapes of published models, as Hugging Face configs without weights.

The sizes are those of the `config.json` in the repository that `source` names on huggingface.co. No logic here.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PublishedConfig:
    """A published config: the repository it comes from, its `model_type`, and the sizes that differ from defaults.

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


def _gpt2(source: str, width: int, layers: int, heads: int) -> PublishedConfig:
    return PublishedConfig(
        source, "gpt2", {"max_position_embeddings": 1024, "n_embd": width, "n_layer": layers, "n_head": heads}
    )


_LLAMA_3 = {"vocab_size": 128256, "max_position_embeddings": 131072}
CONFIGS: dict[str, PublishedConfig] = {
    "llama-2-7b": _llama("meta-llama/Llama-2-7b-hf", vocab_size=32000, **_shape(4096, 11008, 32, 32, 32)),
    "llama-2-13b": _llama("meta-llama/Llama-2-13b-hf", vocab_size=32000, **_shape(5120, 13824, 40, 40, 40)),
    "llama-2-70b": _llama("meta-llama/Llama-2-70b-hf", vocab_size=32000, **_shape(8192, 28672, 80, 64, 8)),
    "llama-3.1-8b": _llama("meta-llama/Llama-3.1-8B", **_LLAMA_3, **_shape(4096, 14336, 32, 32, 8)),
    "llama-3.1-70b": _llama("meta-llama/Llama-3.1-70B", **_LLAMA_3, **_shape(8192, 28672, 80, 64, 8)),
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
    "gpt2": _gpt2("openai-community/gpt2", 768, 12, 12),
    "gpt2-medium": _gpt2("openai-community/gpt2-medium", 1024, 24, 16),
    "gpt2-large": _gpt2("openai-community/gpt2-large", 1280, 36, 20),
    "gpt2-xl": _gpt2("openai-community/gpt2-xl", 1600, 48, 25),
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
