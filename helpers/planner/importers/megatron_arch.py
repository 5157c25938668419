"""The sizes of a model by Megatron-LM's arguments."""

import math
import re
from typing import Any

from ..config import RecipeError
from .names import catalog_name
from .said import Said

VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "Llama2Tokenizer": 32000,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996 + 100,  # with the <extra_id_...> that core/tokenizers/utils/build_tokenizer.py adds
}
ASSUMED_WORDS = 131072  # of a tokenizer whose name does not tell


def is_bert(said: Said) -> bool:
    """Return whether the arguments train BERT: they name its script's option, its tokenizer, or its data."""
    names = ("tokenizer-type", "vocab-file", "data-path")
    return "encoder-num-layers" not in said and (
        "bert-no-binary-head" in said or any("bert" in said.text(name).lower() for name in names)
    )


def vocabulary_of(said: Said) -> int:
    """Return how many tokens the tokenizer has; 0 where its name does not tell."""
    kind = said.text("tokenizer-type", default="BertWordPieceLowerCase" if is_bert(said) else "GPT2BPETokenizer")
    if kind in VOCABULARIES:
        return VOCABULARIES[kind]
    known = catalog_name(said.text("tokenizer-model")) or catalog_name(kind)
    if not known:
        return 0
    from ..catalog.configs import CONFIGS

    return int(CONFIGS[known].sizes.get("vocab_size", 0)) if known in CONFIGS else 0


def arch_of_arguments(said: Said) -> dict[str, Any]:
    """Return the sizes that the arguments of Megatron-LM give, by the names of `Arch`.

    Raises:
        RecipeError: its experts are not all alike, or not in the last blocks.
    """
    hidden, heads, gated = said.number("hidden-size"), said.number("num-attention-heads"), said.flag("swiglu")
    words = said.number("vocab-size") or vocabulary_of(said) or ASSUMED_WORDS
    tensor = said.number("tensor-model-parallel-size", default=1)
    multiple = said.number("make-vocab-size-divisible-by", default=128) * tensor
    kv_heads = said.number("num-query-groups", default=heads) if said.flag("group-query-attention") else heads
    learned = said.text("position-embedding-type", default="learned_absolute") == "learned_absolute"
    inner = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    return {
        "layers": said.number("num-layers", "decoder-num-layers"),
        "encoder_layers": said.number("encoder-num-layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": said.number("kv-channels", default=hidden // max(1, heads)),
        "ffn": said.number("ffn-hidden-size", default=inner),
        "vocab": math.ceil(words / multiple) * multiple,
        "gated": gated,
        "tied": not said.flag("untie-embeddings-and-output-weights"),
        "bias": not said.flag("disable-bias-linear"),
        "layer_norm": said.text("normalization", default="LayerNorm") == "LayerNorm",
        "positions": said.number("max-position-embeddings", "seq-length") if learned else 0,
        "further": said.number("mtp-num-layers"),
        "qk_norm": said.flag("qk-layernorm"),
        "masked": (masked := is_bert(said)),
        "pairs": masked and not said.flag("bert-no-binary-head"),
        **(_latent(said) if said.flag("multi-latent-attention") else {}),
        **(_experts(said, said.number("ffn-hidden-size", default=inner)) if "num-experts" in said else {}),
    }


def _latent(said: Said) -> dict[str, int]:
    rotated = said.number("qk-pos-emb-head-dim", default=64)
    return {
        "head_dim": said.number("qk-head-dim", default=128) + rotated,
        "rope_dim": rotated,
        "value_dim": said.number("v-head-dim", default=128),
        "q_lora": said.number("q-lora-rank"),
        "kv_lora": said.number("kv-lora-rank", default=512),
    }


def _experts(said: Said, ffn: int) -> dict[str, float]:
    inner = said.number("moe-ffn-hidden-size", default=ffn)
    shared = said.number("moe-shared-expert-intermediate-size") / max(1, inner)
    found = re.fullmatch(r"\(?(?:\[0\]\*(\d+)\+)?\[1\]\*\d+\)?", said.text("moe-layer-freq", default="([1]*1)"))
    if not found:
        raise RecipeError(f"--moe-layer-freq {said.text('moe-layer-freq')}: experts must come after the dense blocks.")
    return {
        "experts": said.number("num-experts"),
        "experts_per_token": said.number("moe-router-topk", default=2),
        "moe_ffn": inner,
        "shared_experts": int(shared) if shared == int(shared) else shared,
        "dense_layers": int(found[1] or 0),
    }
