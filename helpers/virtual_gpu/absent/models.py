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
    return "t5", {"d_model": width, "d_ff": inner, "d_kv": kv, "num_layers": layers, "num_heads": heads, **more}


_TIED, _APART = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
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


_KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base-cased": _bert("bert", 28996, 768, 12, 12),
    "t5": _t5(768, 3072, 64, 12, 12),
    "flan-t5": _t5(768, 2048, 64, 12, 12, **_GELU_T5),
    "vit-base-patch16-224-in21k": ("vit", {}),
    "vit-large-patch16-224": ("vit", dict(_bert("vit", 0, 1024, 24, 16)[1])),
    "distilroberta": _bert("roberta", 50265, 768, 6, 12, **_ROBERTA),
    "albert": _bert("albert", 30000, 768, 12, 12, embedding_size=128),
    "deberta-v3-base": _deberta(768, 12, 12),
    "bart": _bart(50265, 768, 6, 12, 3072),
    "opus-mt-en-ro": _marian(59543),
    "mt5": ("mt5", {**_t5(768, 2048, 64, 12, 12, **_GELU_T5)[1], "vocab_size": 250112}),
    "wav2vec2": ("wav2vec2", {}),
    "wav2vec2-large-xlsr-53": _bert("wav2vec2", 32, 1024, 24, 16, feat_extract_norm="layer", do_stable_layer_norm=True),
    "whisper-tiny": _whisper(384, 4, 6),
    "whisper": _whisper(512, 6, 8),
    "whisper-small": _whisper(768, 12, 12),
    "whisper-medium": _whisper(1024, 24, 16),
    "whisper-large": _whisper(1280, 32, 20),
    "clip-vit-base-patch32": ("clip", {"architectures": ["CLIPModel"]}),
    "mit-b0": ("segformer", {"num_labels": 1000}),
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
    "byt5-small": _t5(1472, 3584, 64, 12, 6, num_decoder_layers=4, vocab_size=384, **_GELU_T5),
    "codet5": _t5(768, 3072, 64, 12, 12, vocab_size=32100),
    **dict.fromkeys(("bart-large-mnli", "bart-large-xsum"), _bart(50265, 1024, 12, 16, 4096)),
    **dict.fromkeys(
        ("distilbart-cnn-12-6", "distilbart-xsum-12-6"),
        ("bart", {**_bart(50264, 1024, 12, 16, 4096)[1], "decoder_layers": 6}),
    ),
    "mbart-large-cc25": _bart(250027, 1024, 12, 16, 4096, "mbart"),
    "hubert-base-ls960": ("hubert", {}),
    "wav2vec2-base-960h": ("wav2vec2", {}),
    "wav2vec2-base-v2": _wav2vec2(768, 12, 12),
    "wav2vec2-large-960h": _wav2vec2(1024, 24, 16, normed=False),
    **dict.fromkeys(("wav2vec2-large-lv60", "wav2vec2-xls-r-300m", "mms-300m"), _wav2vec2(1024, 24, 16)),
    **dict.fromkeys(("wav2vec2-xls-r-1b", "mms-1b"), _wav2vec2(1280, 48, 16)),
    "mms-1b-all": _wav2vec2(1280, 48, 16, adapter_attn_dim=16),
    "ast-finetuned-audioset-10-10-0.4593": ("audio-spectrogram-transformer", {"num_labels": 527}),
    "vit-mae": ("vit_mae", {}),
    "dinov2-small": _dinov2(384, 12, 6),
    "dinov2": _dinov2(768, 12, 12),
    "dinov2-large": _dinov2(1024, 24, 16),
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
    "phi-3.5-mini": _llama("phi3", 32064, 3072, 8192, 32, 32, 32, max_position_embeddings=131072, **_APART),
    "tiny-gpt2": ("gpt2", {"n_embd": 2, "n_layer": 2, "n_head": 2}),
    "tinyllama-1.1b": _llama("llama", 32000, 2048, 5632, 22, 32, 4, max_position_embeddings=2048, **_APART),
    "mistral-7b": _llama("mistral", 32000, 4096, 14336, 32, 32, 8, max_position_embeddings=32768, **_APART),
    "qwen2-0.5b": _llama("qwen2", 151936, 896, 4864, 24, 14, 2, max_position_embeddings=32768, **_TIED),
    "qwen2-1.5b": _llama("qwen2", 151936, 1536, 8960, 28, 12, 2, max_position_embeddings=32768, **_TIED),
    "qwen2-7b": _llama("qwen2", 152064, 3584, 18944, 28, 28, 4, max_position_embeddings=32768, **_APART),
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
    starts = {"decoder_start_token_id": 0} if model_type == "t5" else {}  # which transformers has for mT5 alone
    return {"model_type": model_type, "dtype": dtype, "architectures": _class_of(model_type), **starts, **sizes}


def _class_of(model_type: str) -> list[str] | None:
    """Return the class that configs of this type name: the one with the head of its pretraining."""
    from transformers.models.auto import modeling_auto

    for table in _TABLES.values():
        names = getattr(modeling_auto, table).get(model_type)
        if names:
            return [names if isinstance(names, str) else names[0]]
    return None
