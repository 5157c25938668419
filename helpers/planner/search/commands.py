"""The options of `plan` that stand for a layout, so that a row of the search can be planned in detail and exported."""

import shlex
from dataclasses import dataclass

from ..catalog.clusters import CLUSTERS
from ..layout.layout import Layout

_SIZES = (  # an option, the field of a layout, and the size at which the option can be left out
    ("--tp", "tensor", 1),
    ("--pp", "pipeline", 1),
    ("--cp", "context", 1),
    ("--ep", "expert", 1),
    ("--dp-shard", "shard", 0),
    ("--dp-replicate", "replicate", 1),
    ("--virtual-stages", "virtual_stages", 1),
    ("--micro-batch-size", "micro_batch_size", 0),
    ("--gradient-accumulation-steps", "micro_batches", 0),
)
_STAGES = {"none": "0", "zero1": "1", "zero2": "2", "zero3": "3"}


@dataclass(frozen=True)
class Asked:
    """The words of the question that a `plan` command repeats.

    Attributes:
        model: a name of the catalog, or the path of a config.
        gpu: a GPU or a cluster, as `layout --gpu` takes it.
        gpus_per_node: GPUs in a node; None where the catalog's number holds.
        link_inside, link_outside: GB/s of a GPU's links; None where the catalog's hold.
    """

    model: str
    gpu: str
    gpus_per_node: int | None = None
    link_inside: float | None = None
    link_outside: float | None = None


def plan_options(layout: Layout, asked: Asked) -> list[str]:
    """Return the options by which `plan` plans exactly this layout of the search."""
    words = ["--model", asked.model, "--cluster" if asked.gpu.lower() in CLUSTERS else "--gpu", asked.gpu]
    if asked.gpus_per_node is not None:
        words += ["--gpus-per-node", str(asked.gpus_per_node)]
    for option, speed in (("--link-inside", asked.link_inside), ("--link-outside", asked.link_outside)):
        words += [] if speed is None else [option, f"{speed:g}"]
    words += ["--engine", layout.engine, "--precision", layout.precision, "--seq", str(layout.seq)]
    for option, name, plain in _SIZES:
        size = getattr(layout, name)
        words += [option, str(size)] if size != plain else []
    words += ["--zero-stage", _STAGES[layout.zero]]
    words += ["--schedule", layout.schedule] if layout.pipeline > 1 else []
    words += ["--context-method", layout.context_method] if layout.context > 1 else []
    words += ["--activation-checkpointing", layout.recompute] if layout.recompute != "none" else []
    words += [] if layout.reshard_after_forward else ["--no-reshard-after-forward"]
    words += ["--tensor-overlap"] if layout.tensor_overlap else []
    return words


def plan_command(layout: Layout, asked: Asked, program: str) -> str:
    """Return the command line that plans this layout, ready for a shell; `program` is how the user starts the course.

    A path with spaces is quoted.
    """
    return f"{program} plan {shlex.join(plan_options(layout, asked))}"
