"""Check of hooks that move what autograd saves: what goes, what stays, and what comes back when."""

import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance

Moved = Callable[..., AbstractContextManager]


class _Attic:
    """Keeps tensors as arrays outside of PyTorch's memory, and notes what is put there and fetched."""

    def __init__(self, scale: float = 1.0) -> None:
        self.sizes: list[int] = []
        self.fetched = 0
        self.scale = scale

    def put(self, tensor: Tensor) -> Any:
        """Return a ticket for a copy of `tensor`."""
        self.sizes.append(tensor.nbytes)
        return tensor.detach().numpy().copy()

    def get(self, ticket: Any) -> Tensor:
        """Return the tensor of a ticket, times `scale`."""
        self.fetched += 1
        tensor = torch.from_numpy(ticket)
        return tensor if self.scale == 1 else tensor * self.scale


class _Watching(_Attic):
    """An attic that notes the addresses and the dtypes of what is put there."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[int] = []
        self.dtypes: list[str] = []

    def put(self, tensor: Tensor) -> Any:
        """Return a ticket for a copy of `tensor`."""
        self.addresses.append(tensor.untyped_storage().data_ptr())
        self.dtypes.append(str(tensor.dtype).removeprefix("torch."))
        return super().put(tensor)


class _Shelf(_Attic):
    """An attic whose tickets are tensors themselves, as where `put` changes the format."""

    def put(self, tensor: Tensor) -> Tensor:
        """Return a copy of `tensor`, which is its own ticket."""
        return torch.from_numpy(super().put(tensor))

    def get(self, ticket: Tensor) -> Tensor:
        """Return the tensor of a ticket, times `scale`."""
        return super().get(ticket.numpy())


class _Numbered(_Attic):
    """An attic whose tickets are made of a number; the first is 0."""

    def __init__(self, ticket: Callable[[int], Any], number: Callable[[Any], int]) -> None:
        super().__init__(2.0)
        self.ticket, self.number = ticket, number
        self.arrays: list[Any] = []

    def put(self, tensor: Tensor) -> Any:
        """Return a ticket for a copy of `tensor`."""
        self.arrays.append(super().put(tensor))
        return self.ticket(len(self.arrays) - 1)

    def get(self, ticket: Any) -> Tensor:
        """Return the tensor of a ticket, times `scale`."""
        return super().get(self.arrays[self.number(ticket)])


class BringsBackWhatWasSaved(Check):
    """What is put away comes back through get, when the backward pass needs it and not before."""

    hint = (
        "pack returns what get needs; unpack is called in the backward pass, with what pack has returned.\n"
        "A ticket may be anything, even a tensor, so mark the tensors that stay in a way that no ticket can match."
    )

    @staticmethod
    def probe(seed: int, moved: Moved) -> Evidence:
        seen: Evidence = {}
        attics = {
            "get returns what was put": _Attic(1.0),
            "get returns twice what was put": _Attic(2.0),
            "the ticket is a tensor": _Shelf(2.0),
            "the ticket is a number, such as 0": _Numbered(int, int),
            "the ticket is a tuple": _Numbered(lambda n: (False, n), lambda ticket: ticket[1]),
        }
        for case, attic in attics.items():
            torch.manual_seed(seed)
            x = torch.randn(30).double().requires_grad_()
            with moved([], attic.put, attic.get, 0):
                y = x.tanh().exp().sigmoid()
            early = attic.fetched
            y.sum().backward(retain_graph=True)
            y.sum().backward()
            seen[case] = {"gradient": x.grad.tolist(), "early": early, "gets": attic.fetched}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["early"]:
                return (
                    f"{got['early']} tensors were fetched during the forward pass. Call get in unpack, and nowhere "
                    "else."
                )
            if not got["gets"]:
                return f"When {case}, nothing was fetched in the backward pass. Call get in unpack."
            off = relative_distance(got["gradient"], want["gradient"])
            if not off <= 1e-9:
                return (
                    f"When {case}, the gradient is off by {100 * off:.3g}%. Unpack must return what get(ticket) "
                    "returns."
                )
            if got["gets"] != want["gets"]:
                return (
                    f"In two backward passes through one graph, get was called {got['gets']} times; expected "
                    f"{want['gets']}, once for each tensor and pass. Only the ticket is kept."
                )
        return None


class LeavesParameters(Check):
    """Parameters stay: they exist anyway, and so does the memory of a view of one, such as a transposed weight."""

    hint = (
        "A linear layer saves weight.t(): another tensor that shares the same memory.\n"
        "Two tensors share their memory if their untyped_storage().data_ptr() is the same."
    )

    @staticmethod
    def probe(seed: int, moved: Moved) -> Evidence:
        torch.manual_seed(seed + 1)
        layers = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16), nn.Sigmoid()).double()
        layers[2].weight.requires_grad_(False)  # a frozen parameter is one, too
        x = torch.randn(8, 16).double()
        z = torch.randn(8, 16).double().requires_grad_()
        attic = _Watching()
        with moved(layers.parameters(), attic.put, attic.get, 0):
            y = layers(x) * layers[0].bias[8:]  # begins in the middle of its memory
            y = y + F.linear(z, layers[0].weight.data[:16])  # a view of another tensor on the weight's memory
        y.sum().backward()
        own = {p.untyped_storage().data_ptr() for p in layers.parameters()}
        return {"parameters": sum(address in own for address in attic.addresses), "put": len(attic.addresses)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["parameters"]:
            return (
                f"Of the {seen['put']} tensors put away, {seen['parameters']} share memory with a parameter. Compare "
                "storages, not tensors."
            )
        if seen["put"] < expected["put"]:
            return f"{seen['put']} tensors were put away; expected {expected['put']}, all that are not parameters."
        return None


class LeavesWhatIsSmall(Check):
    """Tensors of fewer than `least` bytes stay; those of `least` bytes or more go."""

    hint = (
        "tensor.nbytes counts bytes, tensor.numel() counts elements. Exactly `least` bytes are enough.\n"
        "A view may be small although its storage is large: count the bytes of the tensor."
    )

    @staticmethod
    def probe(seed: int, moved: Moved) -> Evidence:
        seen: Evidence = {}
        for dtype in (torch.float32, torch.float64, torch.float16):
            torch.manual_seed(seed + 2)
            sizes = torch.randperm(40)[:4].sort().values.add(8).tolist()
            rows = [torch.randn(size, dtype=dtype).requires_grad_() for size in sizes]
            attic = _Attic()
            with moved([], attic.put, attic.get, rows[2].nbytes):
                total = sum(row.exp().sum() for row in rows)
            total.backward()
            name = str(dtype).removeprefix("torch.")
            seen[name] = {"put": sorted(attic.sizes), "least": rows[2].nbytes, "all": [row.nbytes for row in rows]}
        parts, attic = torch.randn(sum(sizes)).requires_grad_().split(sizes), _Attic()
        with moved([], attic.put, attic.get, parts[2].nbytes):
            total = sum(part.sin().sum() for part in parts)  # sin saves what it is given
        total.backward()
        every = [part.nbytes for part in parts]
        seen["views of one tensor"] = {"put": sorted(attic.sizes), "least": parts[2].nbytes, "all": every}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            if seen[case]["put"] != want["put"]:
                saved = f"{case}: tensors of {want['all']} bytes were saved, least = {want['least']}."
                return f"{saved} You put away those of {seen[case]['put']} bytes; expected {want['put']}."
        return None


class LeavesNonFloats(Check):
    """Integer and Boolean tensors stay, because `put` may change the format."""

    hint = "tensor.is_floating_point() is False for indices, targets and masks."

    @staticmethod
    def probe(seed: int, moved: Moved) -> Evidence:
        torch.manual_seed(seed + 3)
        table = nn.Embedding(9, 6).double()
        ids, mask = torch.randint(9, (30,)), torch.rand(30, 6) > 0.5
        attic = _Watching()
        with moved(table.parameters(), attic.put, attic.get, 0):
            x = table(ids).exp()
            loss = F.cross_entropy(torch.where(mask, x, -x), ids.clamp(max=5))
        loss.backward()
        return {dtype: attic.dtypes.count(dtype) for dtype in ("int64", "bool", "float64")}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for dtype in ("int64", "bool"):
            if seen[dtype]:
                return f"{seen[dtype]} tensors of {dtype} were put away; only floating-point tensors may go."
        return None


class KeepsNothingThatMoved(Check):
    """What was put away is freed: none of it is held between the passes or after them."""

    hint = "pack should return the ticket that put gives, and not the tensor as well."

    @staticmethod
    def probe(seed: int, moved: Moved) -> Evidence:
        torch.manual_seed(seed + 4)
        x = torch.randn(4, 16, 512).requires_grad_()
        attic = _Attic()
        with MemoryMeter(device=x.device) as meter, moved([], attic.put, attic.get, 1000):
            y = x.tanh().exp().sigmoid().sum()
        with MemoryMeter(device=x.device) as later:
            y.backward()
        return {
            moment: sum(seen.timeline[-1].held.values()) / x.nbytes
            for moment, seen in (("forward", meter), ("backward", later))
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for moment in expected:
            more = seen[moment] - expected[moment]
            if not more < 0.5:
                return (
                    f"After the {moment} pass, {more:.1f} tensors that were put away are still held in memory. Does "
                    "pack return more than the ticket?"
                )
        return None


class MakesNoCycle(Check):
    """A tensor that stays is kept detached, not copied, so that an unused graph is freed at once."""

    hint = (
        "exp saves its own result. A pack hook that returns this same tensor makes a reference cycle, which only "
        "Python's garbage collector can free.\n"
        "tensor.detach() shares the memory and makes no cycle."
    )

    @staticmethod
    def probe(seed: int, moved: Moved) -> Evidence:
        torch.manual_seed(seed + 5)
        x = torch.randn(20).requires_grad_()
        attic = _Attic()
        enabled = gc.isenabled()
        gc.disable()
        try:
            with moved([], attic.put, attic.get, 10_000):
                y, z = x.exp(), x.sin()
            copied = z.grad_fn._saved_self.data_ptr() != x.data_ptr()
            ended: list[bool] = []
            weakref.finalize(y.untyped_storage(), ended.append, True)
            del y
            return {"freed": bool(ended), "copied": copied}
        finally:
            if enabled:
                gc.enable()

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["copied"]:
            return "A tensor that stays is copied, and the copy takes memory of its own. Keep tensor.detach()."
        if seen["freed"]:
            return None
        return (
            "exp ran under your hooks and its result was deleted, but the memory was not freed. Keep tensor.detach()."
        )


MOVED = (
    BringsBackWhatWasSaved,
    LeavesParameters,
    LeavesWhatIsSmall,
    LeavesNonFloats,
    KeepsNothingThatMoved,
    MakesNoCycle,
)
