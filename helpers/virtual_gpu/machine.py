"""The machine that a program is made to believe in."""

import json
import os
from dataclasses import asdict, dataclass

from ..planner.catalog.gpus import find_gpu

_VARIABLE = "PRETENDED_MACHINE"


@dataclass(frozen=True)
class Machine:
    """GPUs of one kind.

    Attributes:
        name: what `torch.cuda.get_device_name` says.
        total_memory: bytes of each GPU, as `torch.cuda.get_device_properties` says them.
        context: of these, bytes that the CUDA context takes.
        capability: compute capability, e.g. (9, 0).
        gpus: how many there are.
        kind: "cuda", or "mps" for Apple's GPU.
        gpu: its name in the catalog; "" for Apple's.
    """

    name: str
    total_memory: int
    context: int
    capability: tuple[int, int]
    gpus: int = 1
    kind: str = "cuda"
    gpu: str = ""

    @classmethod
    def named(cls, gpu: str, gpus: int = 1) -> "Machine":
        """Return a machine with GPUs from the planner's catalog.

        Raises:
            RecipeError: the catalog has no such GPU, or several.
        """
        if gpu == "apple":
            return APPLE
        found = find_gpu(gpu)
        return cls(
            f"virtual {found.name}", found.total, found.context, found.capability or (8, 0), gpus, gpu=found.name
        )

    def environment(self) -> dict[str, str]:
        """Return the variable from which a new process learns of this machine."""
        return {_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> "Machine | None":
        """Return the machine that the environment names."""
        text = os.environ.get(_VARIABLE)
        if not text:
            return None
        fields = json.loads(text)
        return cls(**fields | {"capability": tuple(fields["capability"])})


APPLE = Machine("virtual Apple GPU", 12 * 2**30, 0, (0, 0), kind="mps")
