"""How much memory cuDNN's recurrent layers take, which only cuDNN itself could say.

PyTorch asks cuDNN for two sizes: the reserve space, which the forward pass fills and the backward pass reads, and the
workspace, which each pass takes for itself. Neither is documented. Two programs that were measured on an H100 fit
these figures: an LSTM of two layers keeps five numbers per unit and token (four gates and the cell), and a small one
takes 16 MiB of workspace and its gates once more. GRU and plain layers follow from what their backward pass needs.
"""

import math
from typing import Any, NamedTuple

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)  # `cudnnRNNMode_t`
GATES = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 4, GRU: 3}
DROPOUT_STATE = 2883072  # bytes of random state, which dropout between the layers needs; made once per GPU
_KEPT = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 5, GRU: 5}  # numbers per unit and token: gates, and a cell or a state
_BASE = 2**24  # bytes of workspace, whatever the shape


class RecurrentSizes(NamedTuple):
    """The sizes of a call of cuDNN.

    Attributes:
        output, hidden, cell: shapes, time first; rows of a packed batch are one dimension. `cell` is None without one.
        tokens: of all sequences.
        units: of all layers and directions.
        mode, directions: of the layers.
    """

    output: tuple[int, ...]
    hidden: tuple[int, ...]
    cell: tuple[int, ...] | None
    tokens: int
    units: int
    mode: int
    directions: int

    @classmethod
    def of(cls, named: dict[str, Any]) -> "RecurrentSizes":
        """Return the sizes for the arguments of `aten::_cudnn_rnn`, by name.

        Its input is (T, B, n), (B, T, n) if the batch is first, or (rows, n) if sequences are packed.
        """
        shape, packed = tuple(named["input"].shape), named["batch_sizes"]
        times = shape[1::-1] if named["batch_first"] and not packed else shape[:-1]
        batch = packed[0] if packed else times[1]
        directions = 2 if named["bidirectional"] else 1
        width = named["proj_size"] or named["hidden_size"]
        layers = named["num_layers"] * directions
        cell = (layers, batch, named["hidden_size"]) if named["mode"] == LSTM else None
        units, tokens = layers * named["hidden_size"], math.prod(times)
        return cls((*times, width * directions), (layers, batch, width), cell, tokens, units, named["mode"], directions)

    def reserve(self, item: int) -> int:
        """Return the bytes that a training pass keeps for the backward pass, with `item` bytes per number."""
        return _KEPT[self.mode] * self.tokens * self.units * item

    def workspace(self, item: int) -> int:
        """Return the bytes that a pass takes for itself: the gates of one layer, in both directions."""
        layer = self.units // self.hidden[0] * self.directions
        return _BASE + GATES[self.mode] * self.tokens * layer * item
