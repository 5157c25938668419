"""Memory calculator: turn the knobs of a recipe, and see the planner's answer as bars."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from matplotlib.figure import Figure

from ..count import TENANTS
from ..figures import COLOURS
from ..planner import Plan, Recipe
from ..planner.planned import planned
from ..units import GiB, human_bytes
from .explore import explore

MODELS = ("gpt2", "gpt2-xl", "llama-3.2-1b", "llama-2-7b", "vit-l-16")
OPTIMIZERS: Mapping[str, tuple[str, str]] = {
    "AdamW": ("adamw", "foreach"),
    "AdamW, fused": ("adamw", "fused"),
    "AdamW, 8 bit": ("adamw-8bit", "foreach"),
    "SGD": ("sgd", "foreach"),
}
SHOWN_GPUS = {"8 GiB": 8, "16 GiB": 16, "24 GiB": 24, "40 GiB": 40, "80 GiB": 80}
START = Recipe("gpt2-xl", batch=2, seq=1024, precision="bf16-amp")
KNOBS: Mapping[str, tuple] = {
    "model": MODELS,
    "batch": (1, 2, 4, 8, 16, 32),
    "tokens": (128, 256, 512, 1024),
    "precision": ("fp32", "bf16-amp", "bf16"),
    "optimizer": tuple(OPTIMIZERS),
    "checkpointing": ("none", "every-2", "every", "sqrt"),
    "lora_rank": (0, 8, 16, 64),
}
_FIELDS = {"tokens": "seq"}  # knobs whose field of a recipe is called otherwise


def calculator_figure(answer: Plan) -> Figure:
    """Draw the tenants of the peak as one bar, the reserved interval as another, and GPU sizes as lines."""
    figure = Figure(figsize=(8, 2.9), layout="constrained")
    axes = figure.add_subplot()
    left = 0.0
    for tenant, colour in zip(TENANTS, COLOURS, strict=True):
        width = answer.at_peak[tenant] / GiB
        if width:
            axes.barh("allocated", width, left=left, color=colour, label=f"{tenant}: {width:.2f}")
            left += width
    low, high = (n / GiB for n in answer.reserved_bytes)
    axes.barh("reserved", low, color="#DDDDDD")
    axes.barh("reserved", high - low, left=low, color="#DDDDDD", hatch="///", edgecolor="white")
    widest = 1.15 * high
    for name, size in SHOWN_GPUS.items():
        if size < widest:
            axes.axvline(size, color="black", lw=1)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            axes.text(size, 0.5, name, ha="center", va="center", fontsize=8, bbox=box)
    axes.invert_yaxis()
    axes.set(xlim=(0, widest), xlabel="GiB", title=f"peak {human_bytes(answer.peak_allocated_bytes)}\n{answer.peak_at}")
    axes.title.set_fontsize(9)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def explore_memory() -> None:
    """Show the calculator. Plans one knob away from its start are kept; further away the planner takes seconds."""
    explore(
        lambda **knobs: calculator_figure(planned([_recipe(**knobs)])[0]),
        alt="Bars of the memory that the planner predicts for a recipe, by tenant, with the sizes of GPUs as lines.",
        **{name: (first, KNOBS[name]) for name, first in _first().items()},
    )


def near_the_start() -> Iterator[Recipe]:
    """Yield the recipe that the calculator starts with, and those that differ from it in one knob."""
    first = _first()
    yield _recipe(**first)
    for name, values in KNOBS.items():
        yield from (_recipe(**first | {name: value}) for value in values if value != first[name])


def _first() -> dict[str, object]:
    names = {implementation: name for name, implementation in OPTIMIZERS.items()}
    optimizer = names[START.optimizer, START.optimizer_impl]
    return {name: optimizer if name == "optimizer" else getattr(START, _FIELDS.get(name, name)) for name in KNOBS}


def _recipe(model: str, tokens: int, optimizer: str, lora_rank: int, **same: object) -> Recipe:
    name, how = OPTIMIZERS[optimizer]
    targets = ("attention.out_proj", "mlp.0", "mlp.2") if lora_rank and model.startswith("vit") else ()
    lora = {"lora_rank": lora_rank, "lora_targets": targets}
    return replace(START, model=model, seq=tokens, optimizer=name, optimizer_impl=how, **lora, **same)
