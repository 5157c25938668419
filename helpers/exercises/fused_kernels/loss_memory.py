"""Check of what exists of the logits at a time, and of which products are done."""

from collections.abc import Callable

import torch
from torch import Tensor

from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from .loss_evidence import drawn
from .watcher import LogitsWatcher

Loss = Callable[[Tensor, Tensor, Tensor, int], Tensor]


class LogitsNeverWhole(Check):
    """At most `chunk` rows of logits exist at a time; each matmul is done once, and only those that are needed."""

    hint = (
        "Which tensors of a chunk are alive when the next one is made? And which matmuls are needed?\n"
        "Loop over slices of `chunk` rows. Of a chunk only its contribution to the sums may stay: compute "
        "the gradients at once, and release every variable of the chunk's tensors.\n"
        "`ctx.needs_input_grad` says which inputs require a gradient; `torch.is_grad_enabled()`, called before "
        "`apply`, says whether a backward() may follow."
    )
    ROWS, WIDTH, VOCABULARY, CHUNK = 1000, 12, 1500, 32

    @staticmethod
    def probe(seed: int, chunked_cross_entropy: Loss) -> Evidence:
        seen: Evidence = {}
        sizes = LogitsNeverWhole
        for case in ("trained weight", "frozen weight", "under no_grad"):
            hidden, weight, labels = drawn(seed + 4, sizes.ROWS, sizes.WIDTH, sizes.VOCABULARY)
            weight.requires_grad_(case != "frozen weight")
            watcher = LogitsWatcher(sizes.WIDTH, sizes.VOCABULARY)
            with MemoryMeter(device=hidden.device) as meter, watcher, torch.set_grad_enabled(case != "under no_grad"):
                loss = chunked_cross_entropy(hidden, weight, labels, sizes.CHUNK)
                if isinstance(loss, Tensor) and loss.requires_grad:
                    loss.backward()
            seen[case] = {
                "extra": meter.peak_bytes - sum(t.nbytes for t in (hidden, weight, labels)),
                "products": watcher.products,
                "most": watcher.most,
                "most_by": watcher.most_by,
                "weight_products": int(watcher.weight_products),
                "hidden_products": int(watcher.hidden_products),
                "left_over": watcher.left_over,
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        sizes = LogitsNeverWhole
        whole = 4 * sizes.ROWS * sizes.VOCABULARY
        one = whole * sizes.CHUNK / sizes.ROWS
        sums = 4 * sizes.WIDTH * (sizes.ROWS + sizes.VOCABULARY)
        for case, want in expected.items():
            got = seen[case]
            if not got["most"] <= sizes.CHUNK:
                return (
                    f"{case}, chunk={sizes.CHUNK}: aten.{got['most_by']} makes {got['most']} rows x vocabulary at once."
                )
            if not got["products"] or max(got["products"]) < sizes.CHUNK:
                largest = max(got["products"], default=0)
                return f"{case}, chunk={sizes.CHUNK}: no matmul takes more than {largest} rows; take {sizes.CHUNK}."
            if sum(got["products"]) < sizes.ROWS:
                return (
                    f"{case}: logits of {sum(got['products'])} of {sizes.ROWS} rows were computed. Which rows are left "
                    "out?"
                )
            if sum(got["products"]) > sizes.ROWS:
                return (
                    f"{case}: logits of {sum(got['products']):,} rows were computed; there are {sizes.ROWS:,}. Each "
                    "matmul is done once: what could the forward pass save, so that the backward pass needs no logits?"
                )
            if not got["extra"] <= whole / 3:
                return (
                    f"{case}: {got['extra'] / 2**20:.1f} MiB at the peak besides the inputs; a chunk of logits has "
                    f"{one / 2**20:.1f}, all of them {whole / 2**20:.1f}. Which tensors of a chunk are kept?"
                )
            if not got["extra"] <= 3.25 * one + 2 * sums:
                return (
                    f"{case}: besides inputs and sums the peak holds {(got['extra'] - 2 * sums) / one:.1f} times a "
                    "chunk of logits, or more; three are enough. How many tensors as large as the "
                    "chunk's logits does your code hold at once? In-place operations need no new one."
                )
            if got["left_over"]:
                return (
                    f"{case}: tensors of the last chunk that are still alive when the next chunk's logits are made: "
                    f"{got['left_over']}. A variable still refers to them: release it before the next matmul."
                )
            if case != "trained weight" and got["weight_products"]:
                return f"{case}: {got['weight_products']} matmuls for a gradient of the weight, which is not needed."
            if case == "under no_grad" and got["hidden_products"]:
                return f"{case}: {got['hidden_products']} matmuls for a gradient of hidden, which is not needed."
            for name in ("weight_products", "hidden_products"):
                if got[name] > want[name]:
                    what = f"{got[name]} matmuls make the gradient of {name.partition('_')[0]}"
                    return f"{case}: {what}; {want[name]} are enough, one for each chunk."
        return None
