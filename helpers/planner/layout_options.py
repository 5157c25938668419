"""From the options of the command line to a layout and a cluster."""

import argparse
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from .catalog.clusters import CLUSTERS, Cluster, find_cluster
from .catalog.gpus import GIGA
from .layout.layout import Layout
from .recipe import Recipe, RecipeError

DIMENSIONS = ("tensor", "pipeline", "context", "shard", "replicate")  # whose product is the number of GPUs
SHARED = ("model", "micro_batch_size", "seq", "precision", "attention", "compile")  # recipes and layouts have these
INSTEAD = {  # what a layout has instead of an option of a recipe
    "checkpointing": "--recompute",
    "gradient_accumulation_steps": "--micro-batches",
    "ranks": "--gpus",
    "shard": "--zero",
}
_DEST = {"shard": "data_shard"}  # --shard says what a recipe shards


def layout_of(args: argparse.Namespace) -> Layout:
    """Return the layout that the options describe.

    Raises:
        RecipeError: they contradict each other, or cannot work.
    """
    _refuse_recipe_options(args)
    given = {
        field.name: value
        for field in fields(Layout)
        if (value := getattr(args, _DEST.get(field.name, field.name), None)) is not None
    }
    if given.get("attention") == "sdpa":  # as recipes call it
        given["attention"] = "fused"
    given |= fill(args.gpus, {name: given[name] for name in DIMENSIONS if name in given})
    if (args.export or "").startswith("megatron"):
        given.setdefault("engine", "megatron")
    given.setdefault("zero", "zero1" if given.get("engine") == "megatron" else "zero3")
    given.setdefault("micro_batches", given.get("pipeline", 1))
    from .catalog.archs import arch_of

    return Layout(arch_of(args.model), **given)


def _refuse_recipe_options(args: argparse.Namespace) -> None:
    for field in fields(Recipe):
        default = "" if field.name == "lora_targets" else field.default
        if field.name not in SHARED and getattr(args, field.name) != default:
            flag = "--" + field.name.replace("_", "-")
            instead = f", but {INSTEAD[field.name]}" if field.name in INSTEAD else ""
            raise RecipeError(f"A layout over many GPUs has no {flag}{instead}.")
    for name in ("budget", "measure"):
        if getattr(args, name):
            raise RecipeError(f"--{name} asks about one GPU, not about a layout over many.")


def fill(gpus: int | None, given: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the dimensions that are not given, so that their product is `gpus`.

    What is left goes to `shard`, or to `replicate` where `shard` is given.

    Raises:
        RecipeError: there is no way.
    """
    if any(size < 1 for size in given.values()) or (gpus is not None and gpus < 1):
        raise RecipeError("gpus and every dimension must be at least 1.")
    product = math.prod(given.values())
    if gpus is None:
        return {}
    words = " x ".join(f"{name} {size}" for name, size in given.items())
    free = next((name for name in ("shard", "replicate") if name not in given), None)
    if free is None and product != gpus:
        raise RecipeError(f"{words} are {product} ranks, and --gpus says {gpus}.")
    if gpus % product:
        raise RecipeError(f"{gpus} GPUs are no multiple of {words}" + (f" = {product}." if len(given) > 1 else "."))
    return {free: gpus // product} if free else {}


def cluster_of(args: argparse.Namespace) -> Cluster:
    """Return the cluster that the options describe.

    Raises:
        RecipeError: there is none of this name, or its numbers make no sense.
    """
    if args.cluster and args.gpu:
        raise RecipeError("Give a GPU or a cluster, not both.")
    if not (args.cluster or args.gpu):
        raise RecipeError("On which GPUs? --gpu NAME or --cluster NAME; --list shows both.")
    if args.cluster and args.cluster.lower() not in CLUSTERS:
        raise RecipeError(f"There is no cluster {args.cluster!r}: {', '.join(CLUSTERS)}.")
    found = find_cluster(args.cluster or args.gpu)
    if args.gpus_per_node is not None and args.gpus_per_node < 1:
        raise RecipeError(f"--gpus-per-node is {args.gpus_per_node}; a node has at least one GPU.")
    changes: dict[str, Any] = {} if args.gpus_per_node is None else {"node": args.gpus_per_node}
    for name in ("inside", "outside"):
        speed = getattr(args, f"link_{name}")
        if speed is not None:
            if not 0 < speed < math.inf:
                raise RecipeError(f"--link-{name} is {speed:g} GB/s; it must be more than 0.")
            changes[name] = speed * GIGA
    return replace(found, **changes)
