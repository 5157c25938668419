"""Check of the partition: all parameters of a unit in one flat vector, of which each rank keeps a slice."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..base import Check, Evidence
from .layout import SHAPES, WORLDS, end_to_end, make_parameters, shard_size

Partition = Callable[[list[Any], int, int], Any]
DTYPES = {"21 numbers": torch.float64, "24 numbers": torch.float32, "2 numbers": torch.bfloat16}


def _cases() -> list[tuple[str, str, int, int]]:
    """Return (case, shapes, rank, ranks) for each rank of each number of ranks."""
    return [
        (f"{shapes}, rank {rank} of {n}", shapes, rank, n)
        for shapes in SHAPES
        for n in (1, *WORLDS)
        for rank in range(n)
    ]


def observe(seed: int, partition: Partition) -> Evidence:
    """Return, for each rank of each number of ranks, what an answer does with parameters."""
    seen: Evidence = {}
    for case, shapes, rank, n in _cases():
        parameters = make_parameters(SHAPES[shapes], seed, DTYPES[shapes])
        before = [_numbers(p) for p in parameters]
        numbers = sum(map(len, before))
        right = end_to_end(parameters, n)
        given = list(parameters)
        returned = partition(given, rank, n)
        if not (isinstance(returned, tuple | list) and len(returned) == 2 and all(map(torch.is_tensor, returned))):
            raise TypeError(
                f"partition returned {type(returned).__name__}; it must return two tensors, flat and shard."
            )
        flat, shard = returned
        seen[case] = {
            "numbers": numbers,
            "ranks": n,
            "flat": _numbers(flat),
            "right": _numbers(right),
            "shape": list(flat.shape),
            "dtype": str(flat.dtype),
            "graph": flat.requires_grad,
            "held": flat.untyped_storage().nbytes(),
            "needed": flat.nbytes,
            "shard": _numbers(shard),
            "slice": _numbers(right.chunk(n)[rank]),
            "view": _within(shard, flat),
            "size": shard_size(numbers, n),
            "shapes": [list(p.shape) for p in parameters],
            "same": [_numbers(p) for p in parameters] == before,
            "listed": len(given) == len(parameters) and all(map(operator.is_, given, parameters)),
            "views": [_within(p, flat) for p in parameters],
            "trained": all(p.requires_grad and p.is_leaf for p in parameters),
        }
        with torch.no_grad():
            flat += 1
        seen[case] |= {
            "places": _numbers(torch.cat([p.detach().flatten() for p in parameters])),
            "flat after": _numbers(flat),
        }
    return seen | {"device": _device(partition)}


def _device(partition: Partition) -> str | None:
    """Return where `flat` is if the parameters are not on the CPU: every machine has the meta device."""
    parameters = [nn.Parameter(torch.empty(shape, device="meta")) for shape in SHAPES["21 numbers"]]
    try:
        return partition(parameters, 0, 2)[0].device.type
    except (RuntimeError, TypeError):
        return None  # tensors on two devices


def _cases_of(expected: Evidence) -> list[tuple[str, Evidence]]:
    """Return the cases, without what was seen on another device."""
    return [(case, want) for case, want in expected.items() if case != "device"]


def _numbers(tensor: Tensor) -> list[float]:
    return tensor.detach().double().flatten().tolist()


def _within(inner: Tensor, outer: Tensor) -> bool:
    """Whether `inner` has no memory of its own, but lives in that of `outer`."""
    return inner.untyped_storage().data_ptr() == outer.untyped_storage().data_ptr()


class OneVectorForAll(Check):
    """The vector holds all parameters end to end, then just enough zeros to make its length divisible by N."""

    hint = (
        "A shard has as many numbers as all parameters divided by N, rounded up: -(-a // b) rounds up.\n"
        "Make a vector of N shards full of zeros (`new_zeros` keeps dtype and device), then copy one parameter after "
        "the other into its place."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in _cases_of(expected):
            got, right, numbers = seen[case], want["right"], want["numbers"]
            if got["shape"] != want["shape"]:
                return (
                    f"{case}: flat has the shape {got['shape']}; it should have {want['shape']}: in one dimension, "
                    f"the smallest multiple of {want['ranks']} that is at least {numbers}."
                )
            if got["dtype"] != want["dtype"]:
                return f"{case}: flat is {got['dtype']}; it should be {want['dtype']}, as the parameters are."
            if got["flat"][:numbers] != right[:numbers]:
                return (
                    f"{case}: flat does not begin with the parameters' values, in their order. "
                    "Where does each parameter begin?"
                )
            if got["flat"] != right:
                return f"{case}: the padding at the end is {got['flat'][numbers:]}; it must be zeros."
            if got["graph"]:
                return (
                    f"{case}: flat requires a gradient: autograd recorded how it was made from the parameters. "
                    "Copy their `.data`."
                )
            if got["held"] > got["needed"]:
                return (
                    f"{case}: flat needs {got['needed']} bytes, and its storage has {got['held']}. Is it a slice of a "
                    "larger tensor?"
                )
        if seen["device"] != expected["device"]:
            return (
                f"if the parameters are on the device {expected['device']}, flat is on {seen['device'] or 'another'}. "
                "Make it on the parameters' own."
            )
        return None


class ShardIsThisRanksSlice(Check):
    """The shard is a view of this rank's slice of the vector; all ranks' shards have the same size."""

    hint = (
        "Rank r's shard is the r-th of N slices of equal size, even where it holds padding.\n"
        "A slice of a tensor is a view: flat[a:b] shares its memory. clone() and torch.tensor do not."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in _cases_of(expected):
            got = seen[case]
            if len(got["shard"]) != want["size"]:
                return (
                    f"{case}: the shard has {len(got['shard'])} numbers; it should have {want['size']}. The optimizer "
                    "keeps state for every number of the shard, and collectives need shards of equal size."
                )
            if got["shard"] != want["slice"]:
                return f"{case}: the shard does not hold this rank's slice of the vector. Where does the slice begin?"
            if not got["view"]:
                return f"{case}: the shard is a copy. A step on it would not reach the vector; a view would."
        return None


class ParametersAreViews(Check):
    """Each parameter is the same object with the same shape and values, and its memory is that of the vector."""

    hint = (
        "Keep the parameter object, because its module holds it. Replace only its data.\n"
        "`view_as` gives a slice the shape of a parameter. What is assigned to `.data` is the parameter's new memory."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in _cases_of(expected):
            got = seen[case]
            if not got["same"] or got["shapes"] != want["shapes"]:
                return f"{case}: the parameters' values or shapes have changed; their shapes are now {got['shapes']}."
            if not got["listed"]:
                return f"{case}: the list of parameters was changed. Leave it as it is: the caller still uses it."
            if not all(got["views"]):
                return (
                    f"{case}: parameter {got['views'].index(False)} has its own memory. Numbers gathered into the "
                    "vector would never reach it, and everything is stored twice."
                )
            if got["places"] != got["flat after"][: len(got["places"])]:
                return f"{case}: a parameter is a view of the wrong place in the vector. Where does each one begin?"
            if not got["trained"]:
                return (
                    f"{case}: a parameter is no longer a leaf that requires a gradient. Was more than its `.data` "
                    "replaced?"
                )
        return None


PARTITION = (OneVectorForAll, ShardIsThisRanksSlice, ParametersAreViews)
