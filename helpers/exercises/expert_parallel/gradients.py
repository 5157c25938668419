"""Checks of which gradients are averaged over which ranks, on a mesh of replicas x expert ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from ..tensor_parallel.said import by_rank, noted, wrong_tensor
from .parcels import Parcels

MESHES = {"2 x 2": (2, 2), "1 x 4": (1, 4), "4 x 1": (4, 1)}  # replicas x expert ranks
SHAPES = {"shared": ((3, 4), (5,)), "experts": ((2, 3, 2), (2, 2, 3))}


def _gradients(seed: int, kind: str) -> list[list[Tensor]]:
    """Return for each rank the gradients that its backward pass has left; the same on every rank."""
    generator = torch.Generator().manual_seed(seed + len(kind))
    world = range(dist.get_world_size())
    return [[torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES[kind]] for _ in world]


def _copies(mesh: DeviceMesh) -> list[int]:
    """Return the ranks that hold the experts of this one."""
    return dist.get_process_group_ranks(mesh.get_group("replica"))


def _reduced(seed: int, average_gradients: Any) -> Evidence:
    """One rank of four, on three meshes: gradients afterwards, and what was sent among whom."""
    me, seen = dist.get_rank(), {}
    for case, shape in MESHES.items():
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replica", "expert"))
        left = {kind: _gradients(seed, kind) for kind in SHAPES}
        held = {kind: [nn.Parameter(torch.ones_like(g)) for g in left[kind][me]] for kind in SHAPES}
        for kind, parameters in held.items():
            for parameter, gradient in zip(parameters, left[kind][me], strict=True):
                parameter.grad = gradient.clone()
        with Parcels() as parcels:
            average_gradients(held["shared"], held["experts"], mesh)
        copies, n = _copies(mesh), mesh.size()
        experts = [[left["experts"][rank][i] for rank in copies] for i in range(2)]
        everyone = [[gradients[i] for gradients in left["experts"]] for i in range(2)]
        seen[case] = {
            "got": {kind: [noted(p.grad) for p in parameters] for kind, parameters in held.items()},
            "shared": [noted(sum(g[i] for g in left["shared"]) / n) for i in range(2)],
            "experts": [noted(sum(parts) / n) for parts in experts],
            "alone": {kind: [noted(g) for g in left[kind][me]] for kind in SHAPES},
            "over all": [noted(sum(parts) / n) for parts in everyone],
            "over copies": [noted(sum(parts) / len(parts)) for parts in experts],
            "kept": all(bool((p == 1).all()) for parameters in held.values() for p in parameters),
            "sent": [[list(p.ranks), p.left] for p in parcels.parcels if len(p.ranks) > 1],
            "copies": copies,
        }
    return seen


def observe(seed: int, average_gradients: Any) -> Evidence:
    """Return what each of four ranks measured."""
    return {"ranks": on_ranks(_reduced, 4, seed, average_gradients)}


class AveragesAmongTheirCopies(Check):
    """Each gradient, shared or an expert's, is that of the mean loss over all ranks."""

    hint = (
        "Which ranks' losses have already reached this rank's expert gradients, through the exchange?\n"
        "The loss is a mean over all ranks, so divide every sum by their number, `mesh.size()`.\n"
        '`mesh.get_group("replica")` contains the ranks that hold the same experts as this one.'
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in MESHES:
            for kind in SHAPES:
                for i in range(2):
                    texts = [
                        wrong_tensor(got[case]["got"][kind][i], want[case][kind][i], _mistakes(want[case], kind, i))
                        for got, want in zip(seen["ranks"], expected["ranks"], strict=True)
                    ]
                    if said := by_rank(f"{case} (replica x expert), gradient {i} of {kind}", texts):
                        return said
            if not all(got[case]["kept"] for got in seen["ranks"]):
                return f"{case}: a parameter was changed; only gradients should change."
        return None


def _mistakes(want: Evidence, kind: str, i: int) -> dict[str, Evidence]:
    """Return what well-known mistakes leave, by what to say of it."""
    mistakes = {"is unchanged since the backward pass": want["alone"][kind][i]}
    if kind == "experts":
        mistakes["is the mean over all ranks: different experts were mixed"] = want["over all"][i]
        mistakes["is the mean over its copies: the loss is a mean over all ranks"] = want["over copies"][i]
    return mistakes


class SendsAmongTheirCopies(Check):
    """Shared gradients are sent once among all ranks, an expert's once among the ranks that hold it."""

    hint = (
        "The check lists the bytes sent in each group of ranks. Which gradient goes to ranks that do not use it, or is "
        "sent twice?"
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in MESHES:
            texts = []
            for got, want in zip(seen["ranks"], expected["ranks"], strict=True):
                mine, right = _by_group(got[case]["sent"]), _by_group(want[case]["sent"])
                texts.append(None if mine == right else f"sends {_words(mine)}; it should send {_words(right)}")
            if said := by_rank(f"{case} (replica x expert), what is sent", texts):
                return said
        return None


def _by_group(sent: list[list[Any]]) -> dict[tuple[int, ...], int]:
    """Add up the bytes that were sent in each group of ranks."""
    total: dict[tuple[int, ...], int] = {}
    for ranks, left in sent:
        total[tuple(ranks)] = total.get(tuple(ranks), 0) + left
    return dict(sorted(total.items()))


def _words(sent: dict[tuple[int, ...], int]) -> str:
    return " and ".join(f"{left:,} B among ranks {list(ranks)}" for ranks, left in sent.items()) or "nothing"


GRADIENTS = (AveragesAmongTheirCopies, SendsAmongTheirCopies)
