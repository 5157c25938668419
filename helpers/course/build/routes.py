"""The routes through the labs: for each kind of reader the labs in order, with the time that their cards say."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from .card import card, minutes
from .source import Source, sources


class Route(NamedTuple):
    """One way through the course.

    Attributes:
        want: what the reader wants, as the end of "I want to ...".
        labs: names of sources without their numbers, in order.
        first: what to do first.
    """

    want: str
    labs: tuple[str, ...]
    first: str


_START = ("start_here", "where_memory_goes")
_ONE_GPU = (
    *(*_START, "number_formats", "mixed_precision", "loss_scaling"),
    *("gradient_accumulation", "activation_checkpointing"),
)
ROUTES = (
    Route(
        "fine-tune a 7B model on one GPU",
        (
            *(*_ONE_GPU, "selective_checkpointing"),
            *("memory_profiling", "oom_clinic", "lora", "x4_lora", "adapters_in_practice"),
        ),
        "`make lab`",
    ),
    Route(
        "train on many GPUs",
        (
            *_ONE_GPU,
            *(
                "data_parallel",
                "when_ranks_go_wrong",
                "x3_ddp",
                "sharding",
                "fully_shard",
                "x7_fits_on_no_rank",
                "tensor_parallel",
                "tensor_parallel_in_practice",
                "pipeline",
                "pipelines_in_practice",
                "choosing_a_layout",
                "layouts_in_practice",
            ),
            *("runs_that_survive", "failures", "x6_survive"),
        ),
        "`make lab`",
    ),
    Route(
        "teach a course",
        (),
        "[a ten-week syllabus](docs/paths.md), then [the instructor's guide](solutions/README.md)",
    ),
    Route(
        "know whether my run fits",
        ("start_here",),
        "`make planner`, or [a command](#will-it-fit) for a recipe, a script or a config file",
    ),
)
# Ten weeks: what each is about, and its labs. A graded exercise is what the week hands in.
WEEKS = (
    ("What fills memory", (*_START, "number_formats")),
    ("Training in 16 bits", ("mixed_precision", "loss_scaling", "x1_amp_cnn")),
    ("Large batches", ("gradient_accumulation", "x2_batch_256")),
    (
        "Fewer activations, and finding leaks",
        ("activation_checkpointing", "selective_checkpointing", "memory_profiling", "oom_clinic"),
    ),
    ("Where the time goes", ("where_the_time_goes", "traces", "compilation_and_fusion", "fused_kernels")),
    (
        "Lean optimizers, and 7B in 24 GB",
        ("lean_optimizers", "muon_and_in_place", "lora", "x4_lora", "adapters_in_practice"),
    ),
    (
        "Data, and many ranks",
        ("data_loading", "workers_in_practice", "tokens", "data_parallel", "when_ranks_go_wrong", "x3_ddp"),
    ),
    (
        "Splitting state and layers",
        ("sharding", "fully_shard", "x7_fits_on_no_rank", "tensor_parallel", "tensor_parallel_in_practice"),
    ),
    (
        "Pipelines and long sequences",
        ("pipeline", "pipelines_in_practice", "context_parallel", "balance_and_documents", "x5_ring_attention"),
    ),
    (
        "Choosing a layout, and runs that survive",
        ("choosing_a_layout", "layouts_in_practice", "runs_that_survive", "failures", "x6_survive"),
    ),
)


def routes_table() -> str:
    """Return the table of README.md: what people want, where they begin, their labs and the hours."""
    known = _by_topic()
    lines = ["| I want to … | First | Labs, in order | Time |", "|---|---|---|---|"]
    for route in ROUTES:
        labs = " · ".join(_link(known[name], "labs/") for name in route.labs) or "all"
        lines.append(
            f"| **{route.want}** | {route.first} | {labs} | {_hours([known[n] for n in route.labs or known])} |"
        )
    return "\n".join(lines)


def routes() -> Iterator[dict[str, Any]]:
    """Yield the routes as plain values: what people want, the hours, and (name, number) of the labs in order."""
    known = _by_topic()
    for route in ROUTES:
        labs = [known[name] for name in route.labs]
        shorts = [(source.name, card(source)["title"].partition(" · ")[0]) for source in labs]
        yield {"want": route.want, "hours": _hours(labs or list(known.values())), "labs": shorts}


def weeks_table() -> str:
    """Return the table of docs/paths.md: each week's subject, labs, hours and what is due."""
    known = _by_topic()
    lines = ["| Week | Subject | Labs | Time | Due |", "|---|---|---|---|---|"]
    for number, (subject, names) in enumerate(WEEKS, start=1):
        chosen = [known[name] for name in names]
        labs = " · ".join(_link(source, "../labs/") for source in chosen if not source.graded)
        due = " · ".join(_link(source, "../labs/") for source in chosen if source.graded) or "guesses, not graded"
        lines.append(f"| {number} | {subject} | {labs} | {_hours(chosen)} | {due} |")
    return "\n".join(lines)


def _by_topic() -> dict[str, Source]:
    return {source.topic: source for source in sources()}


def _link(source: Source, folder: str) -> str:
    title = card(source)["title"]
    short = title.partition(" · ")[0]
    return f"[{short}]({folder}{source.name}.ipynb)"


def _hours(chosen: list[Source]) -> str:
    """Return "15 to 17 hours", or minutes where it is less than two hours."""
    least, most = (sum(each) for each in zip(*map(minutes, chosen), strict=True))
    if most < 120:
        return f"{most} minutes"
    low, high = round(least / 60), round(most / 60)
    return f"{low} hours" if low == high else f"{low} to {high} hours"
