"""From options to one description of a run, and to the GPUs that it runs on.

What is not given is assumed, by one rule: whoever trains all of a decoder's parameters on several GPUs, or with an
engine made for that, has a long sequence, FP32 weights and a compiler; everybody else fine-tunes. How a question is
spelled plays no part.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from .catalog.clusters import CLUSTERS, Cluster, find_cluster
from .catalog.gpus import GIGA
from .catalog.hub import catalog_or_path
from .catalog.models import IMAGE_MODELS, find_context, is_mixture, read_config, writes_answers
from .catalog.this_machine import THIS
from .config import ParallelConfig, RecipeError, TrainingConfig

DIMENSIONS = ("tensor", "pipeline", "context", "shard", "replicate")  # whose product is the number of GPUs
_OF_RANKS = tuple(field.name for field in fields(ParallelConfig))
_OF_TRAINING = tuple(field.name for field in fields(TrainingConfig) if field.name != "parallel")
_SHOWN = (  # what decides most, if it was not given
    *("micro_batch_size", "gradient_accumulation_steps", "seq", "precision", "engine", "compile"),
    *("checkpointing", "attention", "optimizer", "optimizer_impl", "lora_targets", "lora_dtype", "reference"),
)
_ALSO = (  # what the line that sums a plan up leaves out
    *("lora_targets", "lora_alpha", "lora_dropout", "lora_dtype", "dropout", "packed", "lengths", "image_size"),
    *("galore_rank", "set_to_none", "expandable_segments", "channels_last"),
)


@dataclass(frozen=True)
class Described:
    """A run, and what of it was assumed, by name; `context` is the longest sequence that the model reads, 0 if none."""

    config: TrainingConfig
    assumed: dict[str, Any]
    context: int

    @property
    def heading(self) -> str:
        """The model, the sequence, the precision and the engine in a line, and what was assumed in another."""
        config = self.config
        shortest = f"{min(config.lengths):,} to " if config.lengths else ""
        answers = f" and answers of {config.target_seq:,}" if config.target_seq else ""
        pairs = "pairs of " if config.method == "dpo" else ""
        reads = f"{pairs}sequences of {shortest}{config.seq:,} tokens{answers}, " if self.context else ""
        program = {"pytorch": "plain PyTorch"}.get(config.engine, config.engine)
        names = {name: name.replace("_", " ").replace("micro batch", "micro-batch") for name in self.assumed}
        assumed = ", ".join(f"{names[name]} {_word(value)}" for name, value in self.assumed.items())
        head = f"{config.model}, {config.precision}, {reads}{program}"
        return "\n".join([head, *self._also(), f"  assumed: {assumed or 'nothing'}"])

    def _also(self) -> list[str]:
        """Return a line with what was given and no other line of an answer shows, if anything was."""
        plain = TrainingConfig(self.config.model)
        values = {name: getattr(self.config, name) for name in _ALSO if name not in self.assumed}
        given = [
            f"{name.replace('_', ' ')} {_word(value)}"
            for name, value in values.items()
            if value != getattr(plain, name)
        ]
        return [f"  also: {'; '.join(given)}"] if given else []


def _usual_targets(model: str) -> str:
    """Return which layers get adapters where none are named; importing PEFT takes a second or two."""
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    if model in (*IMAGE_MODELS, "small-gpt") or read_config(model)[0] in USUAL:
        return "PEFT's choice"
    return "all linear layers, since PEFT has no choice for this type of model"


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def described(options: Mapping[str, Any]) -> Described:
    """Return the run that `options` describe: fields of `TrainingConfig` and `ParallelConfig`, and `gpus`.

    Options that are None were not given. `ranks` and `recompute_every` are old spellings: the former are GPUs that
    shard nothing unless `zero` says so.

    Raises:
        RecipeError: they contradict each other, or cannot work.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if "ranks" in given:
        given.setdefault("gpus", given["ranks"])
        given.setdefault("zero", "none")
    if "recompute_every" in given:
        if given.get("checkpointing") not in ("full", "every"):
            raise RecipeError("--recompute-every needs --activation-checkpointing full.")
        given["checkpointing"] = f"every-{given['recompute_every']}"
    given["model"] = catalog_or_path(given["model"])
    context, extends = find_context(given["model"])
    ranks = {name: given[name] for name in _OF_RANKS if name in given}
    ranks |= fill(given.get("gpus"), {name: ranks[name] for name in DIMENSIONS if name in ranks})
    training = {name: given[name] for name in _OF_TRAINING if name in given}
    by_engine = _for_engines(training, ranks)
    usual = _usual(training, ranks, by_engine, context)
    if ParallelConfig(**ranks).ranks == 1 and usual["engine"] == "pytorch":
        if ranks.get("zero", "none") != "none":
            raise RecipeError(f"{ranks['zero']} shards over ranks: set --gpus to 2 or more.")
        ranks.pop("zero", None)
        usual.pop("zero")
    zero = {"zero": usual.pop("zero")} if "zero" in usual else {}
    config = TrainingConfig(**{**usual, **training}, parallel=ParallelConfig(**{**zero, **ranks}))
    assumed = {name: getattr(config, name) for name in _SHOWN if name not in given}
    assumed |= zero if "zero" not in ranks else {}
    for name, needed in (
        ("seq", context and not config.lengths),
        ("attention", context),
        ("lora_targets", config.lora_rank),
        ("lora_dtype", config.lora_rank),
        ("reference", config.method != "sft"),
    ):
        if not needed:
            assumed.pop(name, None)
    if not config.target_seq and writes_answers(config.model):
        assumed["target_seq"] = "as long as seq"
    if "lora_targets" in assumed:
        assumed["lora_targets"] = "of attention" if config.by_blocks else _usual_targets(config.model)
    if config.method == "grpo":
        assumed["generation"] = "elsewhere: neither its bytes nor its seconds are part of this"
    if context and config.seq > context:
        if not extends:
            raise RecipeError(f"{config.model} takes at most {context} tokens; seq is {config.seq}.")
        assumed["positions"] = f"rotated beyond the config's {context:,}"
    return Described(config, assumed, context)


def _for_engines(training: Mapping[str, Any], ranks: Mapping[str, Any]) -> bool:
    """Return whether an engine for many GPUs would train this: a decoder, whole, on several of them or in its way."""
    config = TrainingConfig(**training, parallel=ParallelConfig(**{"zero": "none", **ranks}))
    if config.by_blocks or (config.quantize == "none" and is_mixture(config.model)):
        return True
    fused = training.get("optimizer_impl", "fused") == "fused" and config.checkpointing != "sqrt"
    return config.ranks > 1 and config.whole and fused and _is_decoder(config.model)


def _is_decoder(model: str) -> bool:
    from .catalog.archs import arch_of

    try:
        arch_of(model)
    except RecipeError:
        return False
    return True


def _usual(training: Mapping[str, Any], ranks: Mapping[str, Any], by_engine: bool, context: int) -> dict[str, Any]:
    """Return what is assumed where nothing is given."""
    engine = training.get("engine", "pytorch")
    if by_engine and "engine" not in training:
        engine = "megatron" if training.get("lora_rank") else "torchtitan"
    quantized = training.get("quantize", "none") != "none"
    usual = {
        "engine": engine,
        "seq": min(4096 if by_engine else 512, context or 512),
        "zero": "zero1" if engine == "megatron" else "none" if quantized else "zero3",
        "gradient_accumulation_steps": ranks.get("pipeline", 1),
    }
    if by_engine:
        usual |= {"precision": "bf16-amp", "compile": True}
        usual |= {"optimizer_impl": "fused"} if training.get("optimizer", "adamw") == "adamw" else {}
    return usual


def fill(gpus: int | None, given: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the dimensions that are not given, so that their product is `gpus`.

    What is left goes to `shard`, or to `replicate` where `shard` is given.

    Raises:
        RecipeError: there is no way.
    """
    for name, size in {**given, "gpus": 1 if gpus is None else gpus}.items():
        if size < 1:
            raise RecipeError(f"{name} is {size}; it must be at least 1.")
    product = math.prod(given.values())
    if gpus is None:
        return {}
    words = " x ".join(f"{name} {size}" for name, size in given.items())
    free = next((name for name in ("shard", "replicate") if name not in given), None)
    if free is None and product != gpus:
        raise RecipeError(f"{words} are {product} ranks, and --gpus says {gpus}.")
    if gpus % product:
        raise RecipeError(f"{gpus} GPUs are not a multiple of {words}" + (f" = {product}." if len(given) > 1 else "."))
    return {free: gpus // product} if free else {}


def no_gpus() -> RecipeError:
    """Return the refusal of what needs a kind of GPU, where none is named."""
    return RecipeError("Name the GPUs with --gpu NAME or --cluster NAME. `plan --list` shows both.")


def cluster_of(options: Mapping[str, Any]) -> Cluster | None:
    """Return the cluster that the options describe; None where they name no GPU of the catalog.

    Raises:
        RecipeError: there is none of this name, or its numbers make no sense.
    """
    cluster, gpu, node = (options.get(name) for name in ("cluster", "gpu", "gpus_per_node"))
    if cluster and gpu:
        raise RecipeError("Give a GPU or a cluster, not both.")
    if cluster and cluster.lower() not in CLUSTERS:
        raise RecipeError(f"There is no cluster {cluster!r}: {', '.join(CLUSTERS)}.")
    if node is not None and node < 1:
        raise RecipeError(f"--gpus-per-node is {node}; a node has at least one GPU.")
    changes = ({} if node is None else {"node": node}) | links_of(options)
    if not (cluster or gpu) or gpu == THIS:
        if changes:
            raise no_gpus()
        return None
    return replace(find_cluster(cluster or gpu), **changes)


def links_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `--link-inside` and `--link-outside` change of a cluster: the bytes/s of its links.

    Raises:
        RecipeError: a bandwidth is not positive.
    """
    changes: dict[str, Any] = {}
    for name in ("inside", "outside"):
        speed = options.get(f"link_{name}")
        if speed is not None:
            if not 0 < speed < math.inf:
                raise RecipeError(f"--link-{name} is {speed:g} GB/s; it must be more than 0.")
            changes[name] = speed * GIGA
    return changes
