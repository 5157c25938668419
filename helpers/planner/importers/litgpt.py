"""LitGPT's YAML: `litgpt pretrain`, `finetune_lora` and `finetune_full`, with Lightning Fabric's precisions.

What its files leave out is what its scripts do (litgpt/finetune/lora.py, full.py and pretrain.py): several GPUs shard
all weights, fine-tuning then recomputes every block, and pretraining compiles the model and fuses the optimizer.
"""

from typing import Any

from .names import catalog_name
from .said import OFF, Imported, Said

_PRECISIONS = {
    "bf16-true": "bf16",
    "16-true": "fp16",
    "bf16-mixed": "bf16-amp",
    "16-mixed": "fp16-amp",
    "32-true": "fp32",
}
_QUANTIZED = {"bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-dq", "bnb.int8": "int8", "bnb.int8-training": "int8"}
_OPTIMIZERS = {
    "AdamW": "adamw",
    "Adam": "adam",
    "SGD": "sgd",
    "AdamW8bit": "adamw-8bit",
    "PagedAdamW": "adamw-32bit-paged",
    "PagedAdamW32bit": "adamw-32bit-paged",
    "PagedAdamW8bit": "adamw-8bit-paged",
}
_PLACES = {  # which of its layers have adapters, by default too, and what they are called in the models of the catalog
    "lora_query": (True, ("q_proj",)),
    "lora_key": (False, ("k_proj",)),
    "lora_value": (True, ("v_proj",)),
    "lora_projection": (False, ("o_proj",)),
    "lora_mlp": (False, ("gate_proj", "up_proj", "down_proj")),
    "lora_head": (False, ("lm_head",)),
}
_QUIET = (
    *("out_dir", "data", "data.*", "eval.*", "logger_name", "log.*", "seed", "resume", "tokenizer_dir", "access_token"),
    *("train.*", "optimizer.*", "model_name", "model_config.*", "initial_checkpoint_dir", "lora_alpha"),
)


def is_litgpt(given: dict[str, Any]) -> bool:
    """Return whether a YAML is one of LitGPT's."""
    train = given.get("train")
    return isinstance(train, dict) and "micro_batch_size" in train and bool({"checkpoint_dir", "model_name"} & {*given})


def read_litgpt(given: dict[str, Any]) -> Imported:
    """Return the run of a LitGPT YAML."""
    said = Said(given)
    pretrains = "checkpoint_dir" not in said
    devices, nodes = said.number("devices", default=1), said.number("num_nodes", default=1)
    gpus, size = devices * nodes, said.number("train.micro_batch_size", default=4)
    batch = said.number("train.global_batch_size", default=64)
    precision = said.text("precision", default="bf16-true" if not pretrains else "bf16-mixed")
    options: dict[str, Any] = {
        "engine": "pytorch",
        "micro_batch_size": size,
        "gradient_accumulation_steps": max(1, batch // gpus // size),
        "precision": _PRECISIONS.get(precision, "fp32"),
        "compile": pretrains,
        "checkpointing": "none" if pretrains or gpus == 1 else "full",
    }
    imported = Imported("LitGPT's YAML", None, options)
    imported.unknown += [] if precision in _PRECISIONS else [f"precision {precision}"]
    options |= {"gpus": gpus, "zero": "zero3"} if gpus > 1 else {}
    imported.assumed |= {"devices": 1} if str(given.get("devices")) == "auto" else {}
    seq = said.number("train.max_seq_length")
    options |= {"seq": seq} if seq else {}
    _model(said, imported, pretrains)
    _optimizer(said, imported, pretrains)
    if "lora_r" in said:
        _adapters(said, imported)
    quantized = said.text("quantize", default="none")
    if quantized in _QUANTIZED:
        options["quantize"] = _QUANTIZED[quantized]
    elif quantized.lower() not in OFF:
        imported.unknown.append(f"quantize {quantized}")
    imported.unknown += said.unknown(_QUIET)
    return imported


def _model(said: Said, imported: Imported, pretrains: bool) -> None:
    name = said.text("model_name") if pretrains else said.text("checkpoint_dir")
    known = catalog_name(name.replace("tiny-llama-1.1b", "tinyllama-1.1b"))
    imported.options |= {"model": known} if known else {}
    imported.unknown += [] if known else [f"the sizes of {name}"]


def _optimizer(said: Said, imported: Imported, pretrains: bool) -> None:
    name = said.text("optimizer.class_path", "optimizer", default="AdamW").rpartition(".")[2]
    if name in _OPTIMIZERS:
        imported.options["optimizer"] = _OPTIMIZERS[name]
        imported.options["optimizer_impl"] = "fused" if pretrains and name in ("AdamW", "Adam", "SGD") else "foreach"
    else:
        imported.unknown.append(f"optimizer {name}")


def _adapters(said: Said, imported: Imported) -> None:
    """Take the adapters, which have the weights' dtype, as Fabric's true precisions give it to all of a model."""
    chosen = [names for place, (usual, names) in _PLACES.items() if (said.flag(place) if place in said else usual)]
    imported.options |= {
        "lora_rank": said.number("lora_r", default=8),
        "lora_targets": tuple(name for names in chosen for name in names),
        "lora_dropout": said.share("lora_dropout", 0.05),
        "lora_dtype": "weights",
    }
