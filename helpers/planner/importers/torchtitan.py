"""torchtitan's TOML files, KempnerForge's, which look alike, and the module that `--export torchtitan` writes."""

import ast
from dataclasses import asdict
from typing import Any

from ..config import RecipeError
from ..exports.torchtitan import SCHEDULES
from ..exports.torchtitan_models import FLAVORS
from ..layout.arch import Arch
from .said import Imported, Said

_QUIET = (
    *(
        "job.*",
        "profiling.*",
        "metrics.*",
        "optimizer.lr*",
        "optimizer.eps",
        "optimizer.beta*",
        "optimizer.weight_decay",
    ),
    *(
        "optimizer.fused",
        "optimizer.name",
        "optimizer.implementation",
        "lr_scheduler.*",
        "checkpoint.*",
        "validation.*",
        "comm.*",
    ),
    *("fault_tolerance.*", "experimental.custom_import", "model.tokenizer*", "model.norm_type", "training.steps"),
    *("training.max_norm", "training.dataset*", "training.warmup_steps", "training.gc_freq", "training.seed"),
    *("float8.*", "compile.components", "model.hf_*"),
    *(
        "activation_checkpoint.*",
        "quantize.*",
        "memory_estimation.*",
        "training.mixed_precision*",
        "parallelism.pipeline_parallel_schedule*",
        "distributed.nccl*",
    ),
    *("model.rope_theta", "train.max_steps", "train.grad_clip_norm", "train.seed", "scheduler.*", "data.*", "debug.*"),
    *("profile.*", "eval.*", "model.max_seq_len", "model.activation", "parallelism.pipeline_parallel_degree"),
)
_DEGREES = ("data_parallel_shard", "data_parallel_replicate", "tensor_parallel", "pipeline_parallel")


def read_toml(given: dict[str, Any]) -> Imported:
    """Return the run of a TOML file.

    Raises:
        RecipeError: the file is none of those that are known.
    """
    said = Said(given)
    if "model.dim" in said and "model.n_heads" in said:
        return _kempnerforge(said)
    if "training" not in given or "model" not in given:
        raise RecipeError("This TOML lacks [model] and [training]; torchtitan's files have both.")
    imported = Imported("torchtitan's TOML", _row(said))
    name, flavor = said.text("model.name"), said.text("model.flavor")
    found = next((arch for arch, known in FLAVORS.items() if (known.module, known.name) == (name, flavor)), None)
    if found is not None:
        imported.row["arch"] = _plain(found)
    else:
        imported.unknown.append(f"the sizes of {name} {flavor}".rstrip())
    _count(imported, [said.number(f"parallelism.{each}_degree", f"training.{each}_degree") for each in _DEGREES])
    imported.unknown += _not_planned(said) + said.unknown(_QUIET)
    return imported


def _not_planned(said: Said) -> list[str]:
    """Return what the file says of updates, casts and experts that engines, as they are planned, do not do."""
    usual = {
        "optimizer.name": ("AdamW",),
        "optimizer.implementation": ("fused",),
        "training.mixed_precision_reduce": ("float32",),
        "training.mixed_precision_param": ("bfloat16", "float32"),
        "training.dtype": ("float32", "bfloat16"),
        "parallelism.expert_tensor_parallel_degree": ("1",),
    }
    found = [
        f"{name} {said.text(name)}" for name, values in usual.items() if name in said and said.text(name) not in values
    ]
    converters = said.first("model.converters", default=())
    kinds = [converters] if isinstance(converters, str) else list(converters)
    return found + [f"model.converters {kind}" for kind in kinds if kind and "float8" not in str(kind)]


def _resharded(said: Said, pipeline: int) -> dict[str, Any]:
    """Return whether gathered parameters are freed after the forward pass, where the file says it."""
    policy = said.text("parallelism.fsdp_reshard_after_forward", "training.fsdp_reshard_after_forward").lower()
    known = {"always": True, "never": False, "default": pipeline == 1}
    return {"reshard_after_forward": known[policy]} if policy in known else {}


def _precision_of(said: Said, eight: bool) -> str:
    if eight:
        return "fp8"
    if said.text("training.dtype") == "bfloat16":
        return "bf16"
    return "fp32" if said.text("training.mixed_precision_param") == "float32" else "bf16-amp"


def _row(said: Said) -> dict[str, Any]:
    def degree(name: str) -> int:
        places = [f"{table}.{name}_degree" for table in ("parallelism", "training", "experimental")]
        return max(1, said.number(*places, default=1))

    mode = said.text("activation_checkpoint.mode", default="none")
    option = said.text("activation_checkpoint.selective_ac_option", default="op")
    eight = said.flag("float8.enable_float8_linear") or "float8" in said.text("model.converters")
    shard = said.number("parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree", default=-1)
    row: dict[str, Any] = {
        "framework": "torchtitan",
        "tensor": degree("tensor_parallel"),
        "pipeline": degree("pipeline_parallel"),
        "context": degree("context_parallel"),
        "expert": degree("expert_parallel"),
        "seq": said.number("training.seq_len", default=2048),
        "micro_batch_size": said.number("training.local_batch_size", "training.batch_size", default=8),
        "precision": _precision_of(said, eight),
        "checkpointing": f"every-{option}" if mode == "selective" and option.isdecimal() else mode,
        "compile": said.flag("compile.enable", "training.compile"),
    }
    replicate = degree("data_parallel_replicate")
    row |= {"replicate": replicate} if replicate > 1 else {}
    apart = said.text("training.data_parallel_type") == "ddp"
    row |= {"zero": "none"} if apart or (shard == 1 and replicate > 1) else {}
    overlaps = said.flag(*(f"{table}.enable_async_tensor_parallel" for table in ("parallelism", "experimental")))
    row |= {"tensor_overlap": True} if overlaps and row["tensor"] > 1 else {}
    row |= _resharded(said, row["pipeline"])
    if row["pipeline"] > 1:
        size = said.number("parallelism.pipeline_parallel_microbatch_size", default=1)
        row["gradient_accumulation_steps"] = max(1, row["micro_batch_size"] // size)
        row["micro_batch_size"] = size
        schedule = said.text("parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule")
        row["schedule"] = schedule or "1f1b"
    elif "training.global_batch_size" in said and said.number("training.global_batch_size") > 0:
        row["global_batch_size"] = said.number("training.global_batch_size")
    return row


def _count(imported: Imported, degrees: list[int]) -> None:
    """Say how many GPUs the run needs at least, where the file does not."""
    ranks = 1
    for degree in degrees:
        ranks *= max(1, degree)
    ranks *= imported.row.get("context", 1)
    imported.row["gpus"] = imported.assumed["gpus"] = ranks if -1 not in degrees and ranks > 1 else -(-ranks // 8) * 8


def _kempnerforge(said: Said) -> Imported:
    hidden, heads = said.number("model.dim"), said.number("model.n_heads")
    layers = said.number("model.n_layers")
    if not (hidden and heads and layers):
        raise RecipeError("This TOML has no model.dim, n_heads and n_layers.")
    multiplier = said.share("model.ffn_dim_multiplier", 1.0)
    inner = int(multiplier * int(8 * hidden / 3))
    multiple = said.number("model.multiple_of", default=256)
    arch = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": said.number("model.n_kv_heads", default=heads),
        "ffn": said.number("model.ffn_hidden_dim", default=-(-inner // multiple) * multiple),
        "vocab": said.number("model.vocab_size", default=32000),
        "tied": said.flag("model.tie_embeddings"),
    }
    row = {
        "framework": "kempnerforge",
        "arch": arch,
        "tensor": said.number("distributed.tp", default=1),
        "pipeline": said.number("distributed.pp", default=1),
        "context": said.number("distributed.cp", default=1),
        "expert": said.number("distributed.ep", default=1),
        "seq": said.number("train.seq_len", default=2048),
        "micro_batch_size": said.number("train.batch_size", default=8),
        "gradient_accumulation_steps": said.number("train.grad_accum_steps", default=1),
        "checkpointing": said.text("train.activation_checkpointing", default="none"),
        "compile": said.flag("train.compile_model"),
    }
    for name, where in (("experts", "num_experts"), ("experts_per_token", "moe_top_k")):
        if said.number(f"model.{where}"):
            arch[name] = said.number(f"model.{where}")
    imported = Imported("KempnerForge's TOML", row)
    replicate = said.number("distributed.dp_replicate", default=1)
    row |= {"replicate": replicate} if replicate > 1 else {}
    shard = said.number("distributed.dp_shard", default=-1)
    _count(imported, [shard, replicate, row["tensor"], row["pipeline"]])
    imported.unknown = said.unknown(_QUIET)
    return imported


def _plain(arch: Arch) -> dict[str, Any]:
    """Return sizes by name, without those that are nothing."""
    return {name: value for name, value in asdict(arch).items() if value or isinstance(value, bool)}


# -- the exported module


def read_module(text: str, gpu: str = "") -> Imported:
    """Return the run of a Python module as `--export torchtitan` writes it, on GPUs of this name if there is one.

    Raises:
        RecipeError: it is not one.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise RecipeError(f"This Python file cannot be read: {error}.") from None
    calls: dict[str, dict[str, Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            named = {each.arg: _value(each.value) for each in node.keywords if each.arg}
            calls.setdefault(ast.unparse(node.func), named | ({"": _value(node.args[0])} if node.args else {}))
    if not {"TrainingConfig", "ParallelismConfig", "model_registry"} <= set(calls):
        raise RecipeError(
            "This is a Python file, but not a torchtitan module that --export torchtitan wrote. To learn what a "
            "training script takes, use `python -m helpers dry-run`."
        )
    training, ranks = calls["TrainingConfig"], calls["ParallelismConfig"]
    stages = sum(isinstance(node, ast.Call) and ast.unparse(node.func) == "range" for node in ast.walk(tree))
    whole = "sizes" in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    row = _ranks_of_module(ranks, training, stages - whole) | {
        "framework": "torchtitan",
        "arch": _sizes(calls) if whole else _known(text, calls),
        "seq": training["seq_len"],
        "precision": _precision(training, "Float8LinearConverter.Config" in calls),
        "checkpointing": next((mode for mode in ("full", "selective") if f"{mode.title()}AC.Config" in calls), "none"),
        "compile": calls["CompileConfig"]["enable"],
        "attention": "fused",
    }
    return Imported("a torchtitan module", row | ({"gpu": gpu} if gpu else {}))


def _value(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else ast.unparse(node)


def _precision(training: dict[str, Any], eight: bool) -> str:
    if training["dtype"] == "bfloat16":
        return "bf16"
    return "fp32" if training["mixed_precision_param"] == "float32" else "fp8" if eight else "bf16-amp"


def _ranks_of_module(ranks: dict[str, Any], training: dict[str, Any], stages: int) -> dict[str, Any]:
    tensor, pipeline = ranks["tensor_parallel_degree"], ranks.get("pipeline_parallel_degree", 1)
    shard, replicate = ranks["data_parallel_shard_degree"], ranks["data_parallel_replicate_degree"]
    size = ranks.get("pipeline_parallel_microbatch_size", training["local_batch_size"])
    names = {theirs: ours for ours, theirs in SCHEDULES.items()}
    sharded = {"zero": "none"} if shard == 1 and replicate > 1 else {"zero": "zero3"}
    return sharded | {
        "gpus": tensor * pipeline * shard * replicate,
        "tensor": tensor,
        "pipeline": pipeline,
        "expert": ranks["expert_parallel_degree"],
        "shard": shard * replicate if sharded["zero"] == "none" else shard,
        "replicate": 1 if sharded["zero"] == "none" else replicate,
        "sequence_parallel": ranks["enable_sequence_parallel"],
        "reshard_after_forward": ranks["fsdp_reshard_after_forward"] == "always",
        "micro_batch_size": size,
        "global_batch_size": training["global_batch_size"],
        **({"schedule": names[ranks["pipeline_parallel_schedule"]]} if pipeline > 1 else {}),
        "virtual_stages": max(1, stages // pipeline) if pipeline > 1 else 1,
    }


def _known(text: str, calls: dict[str, dict[str, Any]]) -> dict[str, Any]:
    module = text.partition("from torchtitan.models.")[2].partition(" ")[0]
    name = calls["model_registry"][""]
    for arch, flavor in FLAVORS.items():
        if (flavor.module, flavor.name) == (module, name):
            return _plain(arch)
    raise RecipeError(f"torchtitan's model {module} {name} is not known here.")


def _sizes(calls: dict[str, dict[str, Any]]) -> dict[str, Any]:
    heads, model = calls["make_gqa_config"], calls["Llama3Model.Config"]
    blocks = str(model["layers"]).partition("range(")[2].partition(")")[0]
    return {
        "layers": int(blocks),
        "hidden": model["dim"],
        "heads": heads["n_heads"],
        "kv_heads": heads["n_kv_heads"],
        "head_dim": heads["head_dim"],
        "ffn": calls["make_ffn_config"]["hidden_dim"],
        "vocab": model["vocab_size"],
        "tied": model["enable_weight_tying"],
    }
