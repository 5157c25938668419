"""The shape of a model that is known by its name: from its folder, the planner's catalog or the list below.

Sizes are those of the `config.json` that is published under the name on huggingface.co; what is not named there is as
transformers has it for the model type.
"""

import copy
import re
from typing import Any

from ...planner import RecipeError
from ...planner.catalog.configs import CONFIGS
from ...planner.catalog.hub import hub_models, known_name
from ...planner.catalog.models import _TABLES, read_config

_SUFFIXES = (
    r"(-hf|-base|-instruct|-chat|-it|-v\d+(\.\d+)*|-zero|-beta|-alpha|-dpo|-sft|-uncased|-cased|-intermediate.*)+$"
)
_FLOAT32 = {
    *("gpt2", "bert", "distilbert", "roberta", "xlm-roberta", "albert", "electra", "bart", "marian", "t5", "mt5"),
    *("vit", "resnet", "swin", "convnext", "segformer", "clip", "gpt_neo", "gptj", "whisper", "wav2vec2"),
    *("mpnet", "hubert", "dinov2", "detr", "conditional_detr", "deformable_detr", "mask2former", "pegasus", "mbart"),
    *("longformer", "xlnet", "mamba", "rwkv", "deberta", "modernbert", "convnextv2", "siglip", "vit_mae"),
    *("audio-spectrogram-transformer", "clip_text_model"),
}
_FLOAT16 = {"opt", "gpt_neox", "bloom", "deberta-v2"}


class AbsentError(RuntimeError):
    """A program asks for something that is not on this machine, and nothing can stand in for it."""


_LLAMA = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def _llama(kind: str, vocabulary: int, *sizes: int, **more: Any) -> Any:
    return kind, {"vocab_size": vocabulary, **dict(zip(_LLAMA, sizes, strict=True)), **more}


def _bert(kind: str, vocabulary: int, width: int, layers: int, heads: int, **more: Any) -> Any:
    shape = {"vocab_size": vocabulary, "hidden_size": width, "intermediate_size": 4 * width}
    return kind, {**shape, "num_hidden_layers": layers, "num_attention_heads": heads, **more}


def _t5(width: int, inner: int, kv: int, layers: int, heads: int, **more: Any) -> Any:
    shape = {"d_model": width, "d_ff": inner, "d_kv": kv, "num_layers": layers, "num_heads": heads}
    return "t5", {**shape, "decoder_start_token_id": 0, **more}


def _pythia(width: int, layers: int, heads: int, vocabulary: int = 50304) -> Any:
    more = {"rotary_pct": 0.25, "max_position_embeddings": 2048, "use_parallel_residual": True}
    return _bert("gpt_neox", vocabulary, width, layers, heads, **more)


def _opt(width: int, layers: int, heads: int, **more: Any) -> Any:
    shape = {"hidden_size": width, "ffn_dim": 4 * width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return "opt", {**shape, "word_embed_proj_dim": width, **more}


_TIED, _APART = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
_QWEN3 = {"head_dim": 128, "max_position_embeddings": 40960}
_ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0}
_GELU_T5 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def _clip_text(width: int, layers: int, heads: int, projected: int = 768, projects: bool = False) -> Any:
    """Return the shape of a text encoder of Stable Diffusion."""
    name = "CLIPTextModelWithProjection" if projects else "CLIPTextModel"
    shape = {**_bert("", 49408, width, layers, heads)[1], "max_position_embeddings": 77, "projection_dim": projected}
    return "clip_text_model", {**shape, "architectures": [name]}


_CLIP_TEXTS = {  # a word in the name of the model, with its folder -> shape
    "xl/text_encoder_2": _clip_text(1280, 32, 20, 1280, projects=True),
    "xl/tokenizer_2": _clip_text(1280, 32, 20, 1280, projects=True),
    "diffusion-2/": _clip_text(1024, 23, 16, 512),
    "/": _clip_text(768, 12, 12),
}


def _whisper(width: int, layers: int, heads: int) -> Any:
    shape = {"vocab_size": 51865, "d_model": width, "architectures": ["WhisperForConditionalGeneration"]}
    for part in ("encoder", "decoder"):
        shape |= {f"{part}_layers": layers, f"{part}_attention_heads": heads, f"{part}_ffn_dim": 4 * width}
    return "whisper", shape


def _bart(vocabulary: int, width: int, layers: int, heads: int, inner: int, kind: str = "bart", **more: Any) -> Any:
    shape = {"vocab_size": vocabulary, "d_model": width, **more}
    for part in ("encoder", "decoder"):
        shape |= {f"{part}_layers": layers, f"{part}_attention_heads": heads, f"{part}_ffn_dim": inner}
    return kind, shape


def _marian(vocabulary: int) -> Any:
    ids = {"pad_token_id": vocabulary - 1, "decoder_start_token_id": vocabulary - 1}
    return _bart(vocabulary, 512, 6, 8, 2048, "marian", architectures=["MarianMTModel"], **ids)


def _minilm(layers: int, vocabulary: int = 30522) -> Any:
    return _bert("bert", vocabulary, 384, layers, 12)


def _mpnet() -> Any:
    return _bert("mpnet", 30527, 768, 12, 12, max_position_embeddings=514)


def _wav2vec2(width: int, layers: int, heads: int, normed: bool = True, **more: Any) -> Any:
    """Return the shape of a wav2vec 2.0; those that are not `normed` have one norm in their convolutions."""
    kind = {"feat_extract_norm": "layer", "do_stable_layer_norm": True} if normed else {}
    return _bert("wav2vec2", 32, width, layers, heads, **kind, **more)


def _dinov2(width: int, layers: int, heads: int) -> Any:
    return "dinov2", {**_bert("", 0, width, layers, heads)[1], "image_size": 518, "patch_size": 14}


def _segformer(*depths: int, decoder: int = 768) -> Any:
    return "segformer", {
        **{"hidden_sizes": [64, 128, 320, 512], "depths": list(depths), "decoder_hidden_size": decoder},
        "num_labels": 1000,
    }


def _swin(model_type: str, width: int, depth: int, heads: int, **more: Any) -> Any:
    shape = {"embed_dim": width, "depths": [2, 2, depth, 2], "num_heads": [heads * 2**stage for stage in range(4)]}
    return model_type, {**shape, "num_labels": 1000, **more}


def _clip(patch: int, text: tuple[int, int, int], vision: tuple[int, int, int]) -> Any:
    words, pictures = _bert("", 49408, *text)[1], _bert("", 0, *vision)[1]
    parts = {"text_config": {**words, "projection_dim": text[0]}, "vision_config": {**pictures, "patch_size": patch}}
    parts["vision_config"]["projection_dim"] = text[0]
    return "clip", {**parts, "projection_dim": text[0], "architectures": ["CLIPModel"]}


def _xlnet(width: int, layers: int, heads: int) -> Any:
    shape = {"d_model": width, "n_layer": layers, "n_head": heads, "d_inner": 4 * width, "vocab_size": 32000}
    return "xlnet", shape


def _mamba(width: int, layers: int) -> Any:
    return "mamba", {"vocab_size": 50280, "hidden_size": width, "num_hidden_layers": layers}


def _mask2former(depth: int) -> Any:
    swin = _swin("swin", 96, depth, 3, window_size=7, out_features=["stage1", "stage2", "stage3", "stage4"])[1]
    return "mask2former", {"backbone_config": {"model_type": "swin", **swin}}


def _deberta(width: int, layers: int, heads: int) -> Any:
    relative = {"relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm"}
    shares = {"share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
    return _bert("deberta-v2", 128100, width, layers, heads, type_vocab_size=0, **relative, **shares)


def _bloom(width: int, layers: int, heads: int) -> Any:
    return "bloom", {"vocab_size": 250880, "hidden_size": width, "n_layer": layers, "n_head": heads}


def _neo(width: int, layers: int, heads: int) -> Any:
    kinds = [[["global", "local"], layers // 2]]
    return "gpt_neo", {"hidden_size": width, "num_layers": layers, "num_heads": heads, "attention_types": kinds}


_KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "distilgpt2": ("gpt2", {"n_layer": 6}),
    "distilbert": ("distilbert", {}),
    "roberta": _bert("roberta", 50265, 768, 12, 12, **_ROBERTA),
    "roberta-large": _bert("roberta", 50265, 1024, 24, 16, **_ROBERTA),
    "bert-base-cased": _bert("bert", 28996, 768, 12, 12),
    "bert": _bert("bert", 30522, 768, 12, 12),
    "t5-small": _t5(512, 2048, 64, 6, 8),
    "t5": _t5(768, 3072, 64, 12, 12),
    "t5-large": _t5(1024, 4096, 64, 24, 16),
    "t5-3b": _t5(1024, 16384, 128, 24, 32),
    "flan-t5-small": _t5(512, 1024, 64, 8, 6, **_GELU_T5),
    "flan-t5": _t5(768, 2048, 64, 12, 12, **_GELU_T5),
    "flan-t5-large": _t5(1024, 2816, 64, 24, 16, **_GELU_T5),
    "flan-t5-xl": _t5(2048, 5120, 64, 24, 32, **_GELU_T5),
    "vit-base-patch16-224": ("vit", {"num_labels": 1000}),
    "vit-base-patch16-224-in21k": ("vit", {}),
    "vit-large-patch16-224": ("vit", dict(_bert("vit", 0, 1024, 24, 16)[1])),
    "opt-125m": _opt(768, 12, 12),
    "opt-350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-2.7b": _opt(2560, 32, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "pythia-70m": _pythia(512, 6, 8),
    "pythia-160m": _pythia(768, 12, 12),
    "pythia-410m": _pythia(1024, 24, 16),
    "pythia-1b": _pythia(2048, 16, 8),
    "pythia-1.4b": _pythia(2048, 24, 16),
    "pythia-2.8b": _pythia(2560, 32, 32),
    "pythia-6.9b": _pythia(4096, 32, 32, 50432),
    "gpt-neo-125m": _neo(768, 12, 12),
    "gpt-neo-1.3b": _neo(2048, 24, 16),
    "gpt-neo-2.7b": _neo(2560, 32, 20),
    "gpt-j-6b": ("gptj", {}),
    "bloom-560m": _bloom(1024, 24, 16),
    "bloomz-560m": _bloom(1024, 24, 16),
    "bloom-1b1": _bloom(1536, 24, 16),
    "bloom-1b7": _bloom(2048, 24, 16),
    "bloom-3b": _bloom(2560, 30, 32),
    "bloom-7b1": _bloom(4096, 30, 32),
    "distilroberta": _bert("roberta", 50265, 768, 6, 12, **_ROBERTA),
    "xlm-roberta": _bert("xlm-roberta", 250002, 768, 12, 12, **_ROBERTA),
    "xlm-roberta-large": _bert("xlm-roberta", 250002, 1024, 24, 16, **_ROBERTA),
    "albert": _bert("albert", 30000, 768, 12, 12, embedding_size=128),
    "deberta-v3-base": _deberta(768, 12, 12),
    "deberta-v3-xsmall": _deberta(384, 12, 6),
    "deberta-v3-small": _deberta(768, 6, 12),
    "deberta-v3-large": _deberta(1024, 24, 16),
    "electra-small-discriminator": _bert("electra", 30522, 256, 12, 4, embedding_size=128),
    "electra-base-discriminator": _bert("electra", 30522, 768, 12, 12, embedding_size=768),
    "bart": _bart(50265, 768, 6, 12, 3072),
    "bart-large": _bart(50265, 1024, 12, 16, 4096),
    "bart-large-cnn": _bart(50264, 1024, 12, 16, 4096),
    "opus-mt-en-ro": _marian(59543),
    "opus-mt-en-de": _marian(58101),
    "mt5-small": ("mt5", {**_t5(512, 1024, 64, 8, 6, **_GELU_T5)[1], "vocab_size": 250112}),
    "mt5": ("mt5", {**_t5(768, 2048, 64, 12, 12, **_GELU_T5)[1], "vocab_size": 250112}),
    "wav2vec2": ("wav2vec2", {}),
    "wav2vec2-large-xlsr-53": _bert("wav2vec2", 32, 1024, 24, 16, feat_extract_norm="layer", do_stable_layer_norm=True),
    "whisper-tiny": _whisper(384, 4, 6),
    "whisper": _whisper(512, 6, 8),
    "whisper-small": _whisper(768, 12, 12),
    "whisper-medium": _whisper(1024, 24, 16),
    "whisper-large": _whisper(1280, 32, 20),
    "clip-vit-base-patch32": ("clip", {"architectures": ["CLIPModel"]}),
    "swin-tiny-patch4-window7-224": ("swin", {"num_labels": 1000}),
    "convnext-tiny-224": ("convnext", {"num_labels": 1000}),
    "mit-b0": ("segformer", {"num_labels": 1000}),
    "bert-base-multilingual-cased": _bert("bert", 119547, 768, 12, 12),
    "bert-base-multilingual-uncased": _bert("bert", 105879, 768, 12, 12),
    "distilbert-base-multilingual-cased": ("distilbert", {"vocab_size": 119547}),
    "bert-tiny": _bert("bert", 30522, 128, 2, 2),
    "bert-mini": _bert("bert", 30522, 256, 4, 4),
    "bert-small": _bert("bert", 30522, 512, 4, 8),
    "bert-medium": _bert("bert", 30522, 512, 8, 8),
    **dict.fromkeys(("all-minilm-l6", "paraphrase-minilm-l6", "multi-qa-minilm-l6-cos"), _minilm(6)),
    **dict.fromkeys(("all-minilm-l12", "minilm-l12-h384", "bge-small-en", "e5-small", "gte-small"), _minilm(12)),
    "paraphrase-multilingual-minilm-l12": _minilm(12, 250037),
    **dict.fromkeys(("all-mpnet", "mpnet", "paraphrase-mpnet", "multi-qa-mpnet-base-dot"), _mpnet()),
    **dict.fromkeys(("bge-base-en", "e5", "gte"), _bert("bert", 30522, 768, 12, 12)),
    **dict.fromkeys(("bge-large-en", "e5-large", "gte-large"), _bert("bert", 30522, 1024, 24, 16)),
    "codebert": _bert("roberta", 50265, 768, 12, 12, **_ROBERTA),
    "modernbert": ("modernbert", {}),
    "deberta": _bert(
        *("deberta", 50265, 768, 12, 12),
        **{"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        **{"position_biased_input": False, "type_vocab_size": 0},
    ),
    "longformer-base-4096": _bert(
        "longformer", 50265, 768, 12, 12, attention_window=[512] * 12, **{**_ROBERTA, "max_position_embeddings": 4098}
    ),
    "xlnet": _xlnet(768, 12, 12),
    "xlnet-large": _xlnet(1024, 24, 16),
    "t5-v1_1": _t5(768, 2048, 64, 12, 12, **_GELU_T5),
    "t5-v1_1-small": _t5(512, 1024, 64, 8, 6, **_GELU_T5),
    "t5-v1_1-large": _t5(1024, 2816, 64, 24, 16, **_GELU_T5),
    "t5-11b": _t5(1024, 65536, 128, 24, 128),
    "byt5-small": _t5(1472, 3584, 64, 12, 6, num_decoder_layers=4, vocab_size=384, **_GELU_T5),
    "codet5": _t5(768, 3072, 64, 12, 12, vocab_size=32100),
    **dict.fromkeys(("bart-large-mnli", "bart-large-xsum"), _bart(50265, 1024, 12, 16, 4096)),
    **dict.fromkeys(
        ("distilbart-cnn-12-6", "distilbart-xsum-12-6"),
        ("bart", {**_bart(50264, 1024, 12, 16, 4096)[1], "decoder_layers": 6}),
    ),
    **dict.fromkeys(("pegasus-xsum", "pegasus-large"), _bart(96103, 1024, 16, 16, 4096, "pegasus", pad_token_id=0)),
    "mbart-large-50": _bart(250054, 1024, 12, 16, 4096, "mbart"),
    "mbart-large-cc25": _bart(250027, 1024, 12, 16, 4096, "mbart"),
    "hubert-base-ls960": ("hubert", {}),
    "wav2vec2-base-960h": ("wav2vec2", {}),
    "wav2vec2-base-v2": _wav2vec2(768, 12, 12),
    "wav2vec2-large-960h": _wav2vec2(1024, 24, 16, normed=False),
    **dict.fromkeys(("wav2vec2-large-lv60", "wav2vec2-xls-r-300m", "mms-300m"), _wav2vec2(1024, 24, 16)),
    **dict.fromkeys(("wav2vec2-xls-r-1b", "mms-1b"), _wav2vec2(1280, 48, 16)),
    "mms-1b-all": _wav2vec2(1280, 48, 16, adapter_attn_dim=16),
    "ast-finetuned-audioset-10-10-0.4593": ("audio-spectrogram-transformer", {"num_labels": 527}),
    "deit-base-patch16-224": ("vit", {"num_labels": 1000}),
    "deit-small-patch16-224": ("vit", {**_bert("", 0, 384, 12, 6)[1], "num_labels": 1000}),
    "deit-tiny-patch16-224": ("vit", {**_bert("", 0, 192, 12, 3)[1], "num_labels": 1000}),
    "vit-mae": ("vit_mae", {}),
    "dinov2-small": _dinov2(384, 12, 6),
    "dinov2": _dinov2(768, 12, 12),
    "dinov2-large": _dinov2(1024, 24, 16),
    "swin-small-patch4-window7-224": _swin("swin", 96, 18, 3),
    "swin-base-patch4-window7-224": _swin("swin", 128, 18, 4),
    "convnextv2-tiny-1k-224": ("convnextv2", {"num_labels": 1000}),
    "mit-b1": _segformer(2, 2, 2, 2, decoder=256),
    "mit-b2": _segformer(3, 4, 6, 3),
    "mit-b3": _segformer(3, 4, 18, 3),
    "mit-b5": _segformer(3, 6, 40, 3),
    "segformer-b0-finetuned-ade-512-512": ("segformer", {"num_labels": 150}),
    "detr-resnet-50": ("detr", {}),
    "conditional-detr-resnet-50": ("conditional_detr", {}),
    "deformable-detr": ("deformable_detr", {}),
    "mask2former-swin-tiny-coco-instance": _mask2former(6),
    "mask2former-swin-small-coco-instance": _mask2former(18),
    "clip-vit-base-patch16": _clip(16, (512, 12, 8), (768, 12, 12)),
    "clip-vit-large-patch14": _clip(14, (768, 12, 12), (1024, 24, 16)),
    "siglip-base-patch16-224": ("siglip", {}),
    "mamba-130m": _mamba(768, 24),
    "mamba-370m": _mamba(1024, 48),
    "mamba-790m": _mamba(1536, 48),
    "mamba-1.4b": _mamba(2048, 48),
    "rwkv-4-169m-pile": ("rwkv", {"hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 50277}),
    "gemma-3-1b": _llama("gemma3_text", 262144, 1152, 6912, 26, 4, 1, head_dim=256, max_position_embeddings=32768),
    "phi-3.5-mini": _llama("phi3", 32064, 3072, 8192, 32, 32, 32, max_position_embeddings=131072, **_APART),
    "phi-4": _llama("phi3", 100352, 5120, 17920, 40, 40, 10, max_position_embeddings=16384, **_APART),
    "smollm3-3b": _llama("smollm3", 128256, 2048, 11008, 36, 16, 4, max_position_embeddings=65536, **_TIED),
    "yi-6b": _llama("llama", 64000, 4096, 11008, 32, 32, 4, max_position_embeddings=4096, **_APART),
    "deepseek-coder-1.3b": _llama("llama", 32256, 2048, 5504, 24, 16, 16, max_position_embeddings=16384, **_APART),
    "deepseek-r1-distill-qwen-1.5b": _llama(
        "qwen2", 151936, 1536, 8960, 28, 12, 2, max_position_embeddings=131072, **_APART
    ),
    "deepseek-r1-distill-qwen-7b": _llama(
        "qwen2", 152064, 3584, 18944, 28, 28, 4, max_position_embeddings=131072, **_APART
    ),
    "tiny-gpt2": ("gpt2", {"n_embd": 2, "n_layer": 2, "n_head": 2}),
    "smollm-135m": _llama("llama", 49152, 576, 1536, 30, 9, 3, max_position_embeddings=2048, **_TIED),
    "smollm-360m": _llama("llama", 49152, 960, 2560, 32, 15, 5, max_position_embeddings=2048, **_TIED),
    "smollm-1.7b": _llama("llama", 49152, 2048, 8192, 24, 32, 32, max_position_embeddings=2048, **_TIED),
    "smollm2-135m": _llama("llama", 49152, 576, 1536, 30, 9, 3, max_position_embeddings=8192, **_TIED),
    "smollm2-360m": _llama("llama", 49152, 960, 2560, 32, 15, 5, max_position_embeddings=8192, **_TIED),
    "smollm2-1.7b": _llama("llama", 49152, 2048, 8192, 24, 32, 32, max_position_embeddings=8192, **_TIED),
    "tinyllama-1.1b": _llama("llama", 32000, 2048, 5632, 22, 32, 4, max_position_embeddings=2048, **_APART),
    "llama-7b": _llama("llama", 32000, 4096, 11008, 32, 32, 32, max_position_embeddings=2048, **_APART),
    "codellama-7b": _llama("llama", 32016, 4096, 11008, 32, 32, 32, max_position_embeddings=16384, **_APART),
    "vicuna-7b": _llama("llama", 32000, 4096, 11008, 32, 32, 32, max_position_embeddings=4096, **_APART),
    "mistral-7b": _llama("mistral", 32000, 4096, 14336, 32, 32, 8, max_position_embeddings=32768, **_APART),
    "zephyr-7b": _llama("mistral", 32000, 4096, 14336, 32, 32, 8, max_position_embeddings=32768, **_APART),
    "qwen2-0.5b": _llama("qwen2", 151936, 896, 4864, 24, 14, 2, max_position_embeddings=32768, **_TIED),
    "qwen2-1.5b": _llama("qwen2", 151936, 1536, 8960, 28, 12, 2, max_position_embeddings=32768, **_TIED),
    "qwen2-7b": _llama("qwen2", 152064, 3584, 18944, 28, 28, 4, max_position_embeddings=32768, **_APART),
    "qwen3-0.6b": _llama("qwen3", 151936, 1024, 3072, 28, 16, 8, **_QWEN3, **_TIED),
    "qwen3-1.7b": _llama("qwen3", 151936, 2048, 6144, 28, 16, 8, **_QWEN3, **_TIED),
    "qwen3-4b": _llama("qwen3", 151936, 2560, 9728, 36, 32, 8, **_QWEN3, **_TIED),
    "gemma-2b": _llama("gemma", 256000, 2048, 16384, 18, 8, 1, head_dim=256, max_position_embeddings=8192),
    "gemma-7b": _llama("gemma", 256000, 3072, 24576, 28, 16, 16, head_dim=256, max_position_embeddings=8192),
    "gemma-2-2b": _llama("gemma2", 256000, 2304, 9216, 26, 8, 4, head_dim=256, max_position_embeddings=8192),
    "phi-1_5": _llama("phi", 51200, 2048, 8192, 24, 32, 32, partial_rotary_factor=0.5, max_position_embeddings=2048),
    "phi-2": _llama("phi", 51200, 2560, 10240, 32, 32, 32, partial_rotary_factor=0.4, max_position_embeddings=2048),
    "phi-3-mini-4k": _llama("phi3", 32064, 3072, 8192, 32, 32, 32, max_position_embeddings=4096, **_APART),
}


def known_config(name: str, subfolder: str | None = None) -> dict[str, Any] | None:
    """Return the config published under `name`, as a `config.json` has it; None where it is not known."""
    if subfolder in ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"):
        return _text_encoder(str(name).lower(), subfolder)
    last = str(name).replace("\\", "/").rstrip("/").split("/")[-1].lower()
    sources = {config.source.split("/")[-1].lower(): key for key, config in CONFIGS.items()}
    sources |= {_short(source): key for source, key in sources.items()}
    for candidate in (last, last.removeprefix("meta-"), _short(last), _short(last.removeprefix("meta-"))):
        if candidate in _KNOWN:
            model_type, sizes = _KNOWN[candidate]
            return _whole(model_type, sizes)
        if candidate in CONFIGS or candidate in sources:
            try:
                return _whole(*read_config(candidate if candidate in CONFIGS else sources[candidate]))
            except RecipeError:
                return None
    hub = hub_models().get(known_name(str(name)))
    sizes = copy.deepcopy(hub.config) if hub else {}
    if sizes:
        return _whole(sizes.pop("model_type"), sizes)
    tuned = re.search(r"-((llama|qwen|mistral|gemma|phi)[a-z0-9.-]*-\d+(\.\d+)?b)$", _short(last))
    return known_config(tuned[1]) if tuned else None


def _text_encoder(name: str, subfolder: str) -> dict[str, Any]:
    """Return the config of the text encoder in a folder of a diffusion model."""
    name = re.sub(r"(sd|diffusion-)xl[^/]*", "xl", name)
    name = re.sub(r"stable-diffusion-2[^/]*", "diffusion-2", name)
    return next(_whole(*shape) for words, shape in _CLIP_TEXTS.items() if words in f"{name}/{subfolder}")


def _short(name: str) -> str:
    return re.sub(_SUFFIXES, "", name)


def _whole(model_type: str, sizes: dict[str, Any]) -> dict[str, Any]:
    first_llamas = model_type == "llama" and sizes.get("vocab_size") in (32000, 32016) and sizes["hidden_size"] > 2048
    half = "float16" if first_llamas or model_type in _FLOAT16 else "bfloat16"
    dtype = "float32" if model_type in _FLOAT32 else half
    return {"model_type": model_type, "dtype": dtype, "architectures": _class_of(model_type), **sizes}


def _class_of(model_type: str) -> list[str] | None:
    """Return the class that configs of this type name: the one with the head of its pretraining."""
    from transformers.models.auto import modeling_auto

    for table in _TABLES.values():
        names = getattr(modeling_auto, table).get(model_type)
        if names:
            return [names if isinstance(names, str) else names[0]]
    return None
