"""The settings of the layout explorer: what its controls can be set to."""

from dataclasses import asdict, dataclass, fields, replace

from ..planner import RecipeError
from ..planner.catalog.archs import arch_names, arch_of
from ..planner.catalog.clusters import CLUSTERS
from ..planner.config import CONTEXTS, SCHEDULES
from ..planner.layout.layout import RECOMPUTATIONS, Layout

SHARDINGS = {  # what the controls call it: the values of a layout that it stands for
    "FSDP": {"engine": "torchtitan", "zero": "zero3"},
    "FSDP, not resharded": {"engine": "torchtitan", "zero": "zero3", "reshard_after_forward": False},
    "ZeRO-1 (Megatron)": {"engine": "megatron", "zero": "zero1"},
    "ZeRO-1 (Megatron, TP overlap)": {"engine": "megatron", "zero": "zero1", "tensor_overlap": True},
    "nothing (Megatron)": {"engine": "megatron", "zero": "none"},
    "nothing (Megatron, TP overlap)": {"engine": "megatron", "zero": "none", "tensor_overlap": True},
    "nothing": {"engine": "torchtitan", "zero": "none"},
}
_POWERS = tuple(2**n for n in range(11))
CHOICES: dict[str, tuple] = {
    "model": tuple(arch_names()),
    "cluster": tuple(CLUSTERS),
    "gpus": _POWERS,
    "tokens": tuple(2**n for n in range(14, 25)),
    "seq": tuple(2**n for n in range(9, 18)),
    "tensor": _POWERS[:7],
    "pipeline": _POWERS[:7],
    "schedule": SCHEDULES,
    "virtual_stages": tuple(range(1, 65)),
    "context": _POWERS[:7],
    "context_method": CONTEXTS,
    "expert": _POWERS[:9],
    "sharding": tuple(SHARDINGS),
    "replicate": _POWERS,
    "micro_batch_size": _POWERS[:8],
    "recompute": RECOMPUTATIONS,
}


@dataclass(frozen=True)
class Settings:
    """What the controls of the explorer are set to; `CHOICES` has what each can be."""

    model: str = "llama-3.1-70b"
    cluster: str = "dgx-h100"
    gpus: int = 64
    tokens: int = 2**22
    seq: int = 8192
    tensor: int = 2
    pipeline: int = 1
    schedule: str = "1f1b"
    virtual_stages: int = 1
    context: int = 1
    context_method: str = "ring"
    expert: int = 1
    sharding: str = "FSDP"
    replicate: int = 1
    micro_batch_size: int = 1
    recompute: str = "selective"

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value not in CHOICES[name]:
                raise RecipeError(f"{name} is {value!r}; it can be {', '.join(map(str, CHOICES[name]))}.")

    def layout(self) -> Layout:
        """Return the layout.

        Raises:
            RecipeError: there is none of these numbers.
        """
        split = self.tensor * self.pipeline * self.context
        data, rest = divmod(self.gpus, split)
        if rest:
            raise RecipeError(f"tensor x pipeline x context is {split} ranks; it must divide the {self.gpus} GPUs.")
        if data % self.replicate:
            raise RecipeError(f"replicate {self.replicate} does not divide the {data} data ranks.")
        sequences = self.tokens // self.seq
        count, rest = divmod(sequences, data * self.micro_batch_size)
        if rest or not count:
            size = self.micro_batch_size
            raise RecipeError(f"{data} data ranks cannot take the {sequences} sequences of a step {size} at a time.")
        given = {name: getattr(self, name) for name in _SAME}
        shard = {"shard": data // self.replicate, "replicate": self.replicate, "micro_batches": count}
        how = SHARDINGS[self.sharding]
        return Layout(arch_of(self.model), **given, **shard, **how)

    def of(self, layout: Layout) -> "Settings | None":
        """Return these settings with another layout of the same question; None if the controls cannot say it."""
        values = {name: getattr(layout, name) for name in _SAME}
        usual = {"reshard_after_forward": True, "tensor_overlap": False}
        kept = {name: getattr(layout, name) for name in ("engine", "zero", *usual)}
        sharding = next((name for name, how in SHARDINGS.items() if usual | how == kept), "")
        try:
            other = replace(self, **values, gpus=layout.ranks, replicate=layout.replicate, sharding=sharding)
        except RecipeError:
            return None
        return other


_SAME = tuple({field.name for field in fields(Settings)} & {field.name for field in fields(Layout)} - {"replicate"})
