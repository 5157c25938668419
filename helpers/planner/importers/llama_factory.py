"""LLaMA-Factory's YAML: Hugging Face's `TrainingArguments`, with names of its own for the model and its adapters.

Its defaults are those of src/llamafactory/hparams: blocks are recomputed unless it is told not to, adapters go to all
linear layers, and weights that are trained are FP32 unless `pure_bf16` is set.
"""

import json
import re
from pathlib import Path
from typing import Any

from .said import OFF, Imported, Said

KEYS = {"finetuning_type", "template", "cutoff_len", "stage"}  # one of which each of its files has
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
QUIET = (
    *(
        "dataset*",
        "template",
        "max_samples",
        "preprocessing_*",
        "plot_loss",
        "overwrite_cache",
        "media_dir",
        "val_size",
    ),
    *(
        "save_only_model",
        "ray_*",
        "swanlab_*",
        "use_swanlab",
        "loraplus_*",
        "pref_beta",
        "pref_ftx",
        "kto_*",
        "tokenized_*",
    ),
    *("streaming", "buffer_size", "mix_strategy", "interleave_probs", "ignore_pad_token_for_loss", "mask_history"),
    *(
        "lora_target",
        "lora_rank",
        "resize_vocab",
        "use_fast_tokenizer",
        "split_special_tokens",
        "new_special_tokens",
        "lora_alpha",
        "include_*",
    ),
    *(
        "pissa_iter",
        "pissa_convert",
        "use_rslora",
        "create_new_adapter",
        "predict_*",
        "compute_accuracy",
        "enable_thinking",
    ),
    *(
        "double_quantization",
        "ddp_*",
        "disable_shuffling",
        "train_on_prompt",
        "upcast_layernorm",
        "cache_dir",
        "default_system",
    ),
)


def is_llama_factory(given: dict[str, Any]) -> bool:
    """Return whether names and values are those of LLaMA-Factory's trainer."""
    return "model_name_or_path" in given and len(KEYS & set(given)) > 1


def read_method(said: Said, imported: Imported) -> None:
    """Take adapters, quantization, precision and recomputation, where they are not those of `TrainingArguments`."""
    options, kind = imported.options, said.text("finetuning_type", default="lora").lower()
    assert options is not None
    options["checkpointing"] = "none" if said.flag("disable_gradient_checkpointing") else "full"
    options.setdefault("seq", 2048)
    half = said.flag("bf16", "pure_bf16") or not said.flag("fp16")
    if kind == "lora":
        options["precision"] = "bf16" if half else "fp16"
        _adapters(said, imported)
    elif kind == "full":
        options["precision"] = "bf16" if said.flag("pure_bf16") else options["precision"]
    else:
        imported.unknown.append(f"finetuning_type {kind}")
    if said.flag("use_galore"):
        options |= {"optimizer": "galore", "optimizer_impl": "foreach"}
        options["galore_rank"] = said.number("galore_rank", default=16)
    attention = said.text("flash_attn", default="auto").lower()
    options |= {"attention": "eager"} if attention == "disabled" else {}
    options |= {"loss": "fused"} if said.flag("enable_liger_kernel") else {}
    if said.text("pref_loss").lower() in ("orpo", "simpo"):
        options["reference"] = False


def _adapters(said: Said, imported: Imported) -> None:
    options = imported.options
    assert options is not None
    options["lora_rank"] = said.number("lora_rank", default=8)
    named = said.first("lora_target", default="all")
    names = [str(name).strip() for name in (named if isinstance(named, list) else str(named).split(","))]
    options["lora_targets"] = LINEAR if names == ["all"] else tuple(names)
    options["lora_dropout"] = said.share("lora_dropout")
    options |= {"dora": True} if said.flag("use_dora") else {}
    saved = said.text("additional_target")
    options |= {"modules_to_save": tuple(name.strip() for name in saved.split(","))} if saved else {}
    if said.flag("pure_bf16"):
        options["lora_dtype"] = "weights"
    bits, method = said.number("quantization_bit"), said.text("quantization_method", default="bnb").lower()
    if bits:
        nested = "nf4" if said.text("double_quantization").lower() in OFF[1:] else "nf4-dq"
        known = {4: nested, 8: "int8"} if method in ("bnb", "bitsandbytes") else {}
        if bits in known:
            options["quantize"] = known[bits]
        else:
            imported.unknown.append(f"quantization_bit {bits} by {method}")


def deepspeed_beside(named: str, folder: Path) -> dict[str, Any]:
    """Return the DeepSpeed JSON of this name, from the folder of the file that names it or one above it; {} if none."""
    if not named.endswith(".json"):
        return {}
    for place in (folder, *folder.resolve().parents, Path()):
        path = place / named
        if path.is_file() and path.stat().st_size < 2**20:
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def sharded_by(named: str, beside: dict[str, Any]) -> dict[str, Any]:
    """Return what a DeepSpeed file shards and offloads; by its name where it is not there."""
    zero = beside.get("zero_optimization") or {}
    stage = re.search(r"z(?:ero)?[_-]?(\d)", named.rpartition("/")[2])
    number = int(zero.get("stage", stage[1] if stage else 3))
    found: dict[str, Any] = {"zero": "none" if number == 0 else f"zero{number}"}
    for what, device in (("optimizer", "offload_optimizer"), ("all", "offload_param")):
        if (zero.get(device) or {}).get("device", "none") != "none":
            found["offload"] = what
    return found
