"""Watch an answer at work: how many rows of logits each of its operations makes."""

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ...meter.operations_seen import OperationWatch


class LogitsWatcher(OperationWatch):
    """Notes how many rows of logits each operation makes, and how many products have the width of the gradients."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.width, self.vocabulary = width, vocabulary
        self.products: list[int] = []  # rows of logits that matrix products made
        self.most, self.most_by = 0, ""
        self.weight_products = self.hidden_products = 0
        self.left_over = 0  # most tensors of logits that were alive when a product made new ones
        self._made: dict[int, StorageWeakRef] = {}
        self.short = ""  # the first softmax, or the like, whose result has 16 bits

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = func._schema.name.removeprefix("aten::")
        product = "mm" in name or name in ("linear", "matmul", "addmv", "mv", "dot")
        for tensor in tree_leaves(result):
            if not isinstance(tensor, Tensor):
                continue
            if self.vocabulary not in tensor.shape:
                self.hidden_products += product and self.width in tensor.shape and not func.is_view
                continue
            if self.width in tensor.shape:
                self.weight_products += product and not func.is_view
                continue
            rows = tensor.numel() // self.vocabulary
            if name in ("_softmax", "_log_softmax", "exp", "exp_") and tensor.element_size() < 4:
                self.short = self.short or name
            if product:
                self.products.append(rows)
                self._count_left_over(tensor)
            self._remember(tensor)
            if rows > self.most:
                self.most, self.most_by = rows, name

    def _remember(self, tensor: Tensor) -> None:
        reference = StorageWeakRef(tensor.untyped_storage())
        self._made.setdefault(reference.cdata, reference)

    def _count_left_over(self, fresh: Tensor) -> None:
        """Count the tensors of logits that are alive beside the `fresh` ones."""
        self._made = {place: made for place, made in self._made.items() if not made.expired()}
        own = StorageWeakRef(fresh.untyped_storage()).cdata
        self.left_over = max(self.left_over, len(self._made.keys() - {own}))
