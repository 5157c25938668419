"""`nn.LSTMCell` and `nn.GRUCell` as CUDA runs them: two matmuls and one fused kernel for all that follows. So run the
layers that cuDNN does not take, one time step after another.

The kernel leaves the backward pass more than the CPU's separate operations do: autograd's own formula of
`aten::_thnn_fused_lstm_cell` saves the products of both matmuls, beside the gates. This file stands for the kernels
below it (aten/src/ATen/native/cuda/RNN.cu), whose gates are in the order of `nn.LSTMCell` and `nn.GRUCell`.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from .homes import on_gpu
from .patches import Patches

_aten = torch.ops.aten


def _sum_of(*parts: Tensor | None) -> Tensor:
    given = [part for part in parts if part is not None]
    return sum(given[1:], given[0])


def _lstm(
    of_x: Tensor,  # (B, 4 H), as are the gates
    of_hidden: Tensor,
    cell: Tensor,  # (B, H), as are all states
    bias_x: Tensor | None = None,  # (4 H,)
    bias_hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return both states and the gates."""
    i, f, g, o = _sum_of(of_x, of_hidden, bias_x, bias_hidden).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    after = f * cell + i * g
    return o * after.tanh(), after, torch.cat((i, f, g, o), 1)


def _lstm_backward(
    for_hidden: Tensor | None, for_cell: Tensor | None, cell: Tensor, after: Tensor, gates: Tensor, biases: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of the gates, of the cell state, and of a bias."""
    i, f, g, o = gates.chunk(4, 1)
    given = torch.zeros_like(after) if for_hidden is None else for_hidden
    bent = after.tanh()
    for_after = _sum_of(given * o * (1 - bent**2), for_cell)
    for_i, for_f = for_after * g * i * (1 - i), for_after * cell * f * (1 - f)
    for_g, for_o = for_after * i * (1 - g**2), given * bent * o * (1 - o)
    for_gates = torch.cat((for_i, for_f, for_g, for_o), 1)
    return for_gates, for_after * f, for_gates.sum(0) if biases else None


def _gru(
    of_x: Tensor,  # (B, 3 H)
    of_hidden: Tensor,
    hidden: Tensor,  # (B, H)
    bias_x: Tensor | None = None,  # (3 H,)
    bias_hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the state, and what the backward pass needs: (B, 5 H)."""
    r_x, z_x, n_x = _sum_of(of_x, bias_x).chunk(3, 1)
    r_hidden, z_hidden, n_hidden = _sum_of(of_hidden, bias_hidden).chunk(3, 1)
    r, z = (r_x + r_hidden).sigmoid(), (z_x + z_hidden).sigmoid()
    n = (n_x + r * n_hidden).tanh()
    return n + z * (hidden - n), torch.cat((r, z, n, hidden, n_hidden), 1)


def _gru_backward(given: Tensor, kept: Tensor, biases: bool) -> tuple[Tensor | None, ...]:
    """Return the gradients of both products, of the state, and of both biases."""
    r, z, n, hidden, n_hidden = kept.chunk(5, 1)
    for_n = given * (1 - z) * (1 - n**2)
    for_r, for_z = for_n * n_hidden * r * (1 - r), given * (hidden - n) * z * (1 - z)
    for_x, for_hidden = torch.cat((for_r, for_z, for_n), 1), torch.cat((for_r, for_z, for_n * r), 1)
    of_biases = (for_x.sum(0), for_hidden.sum(0)) if biases else (None, None)
    return for_x, for_hidden, given * z, *of_biases


def _lstm_cell(x: Tensor, states: list[Tensor], w_x: Tensor, w_hidden: Tensor, *biases: Tensor) -> tuple[Tensor, ...]:
    hidden, cell = states
    return _aten._thnn_fused_lstm_cell(x @ w_x.t(), hidden @ w_hidden.t(), cell, *biases)[:2]


def _gru_cell(x: Tensor, hidden: Tensor, w_x: Tensor, w_hidden: Tensor, *biases: Tensor) -> Tensor:
    return _aten._thnn_fused_gru_cell(x @ w_x.t(), hidden @ w_hidden.t(), hidden, *biases)[0]


_CELLS = {"lstm": _lstm_cell, "gru": _gru_cell, "rnn_tanh": torch.rnn_tanh_cell, "rnn_relu": torch.rnn_relu_cell}


def layers_by_cells(
    name: str,
    x: Tensor,  # (T, B, inputs), or (B, T, inputs)
    states: Any,  # (layers and directions, B, H) each: h and c of an LSTM, h of the others
    weights: list[Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Return what `torch.lstm`, `torch.gru` and their like return."""
    x, ways, parts = x.transpose(0, 1) if batch_first else x, 1 + bidirectional, 2 + 2 * biases
    is_lstm = name == "lstm"
    projects = is_lstm and states[0].shape[2] != states[1].shape[2]
    before = list(zip(*states, strict=True)) if is_lstm else list(states)
    each = [weights[at : at + parts + projects] for at in range(0, len(weights), parts + projects)]
    after = []
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            state, own, steps = before[layer * ways + way], each[layer * ways + way], []
            for step in x.unbind()[:: -1 if way else 1]:
                state = _CELLS[name](step, list(state) if is_lstm else state, *own[:parts])
                if projects:
                    state = state[0] @ own[parts].t(), state[1]
                steps.append(state[0] if is_lstm else state)
            after.append(state)
            outputs.append(torch.stack(steps[:: -1 if way else 1]))
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if train and dropout and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    ends = map(torch.stack, zip(*after, strict=True)) if is_lstm else [torch.stack(after)]
    return x.transpose(0, 1) if batch_first else x, *ends


def _choose(op: Any, fused: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return fused(*args) if on_gpu(args[0]) else op._op_dk(DispatchKey.CompositeImplicitAutograd, *args)

    return run


def install(patches: Patches) -> None:
    """Let cells of a virtual GPU go to CUDA's kernels."""
    library = torch.library.Library("aten", "IMPL")
    patches.later(library._destroy)
    for name, fused in {"lstm_cell": _lstm_cell, "gru_cell": _gru_cell}.items():
        for key in ("AutogradCPU", "CPU"):
            library.impl(name, _choose(getattr(_aten, name).default, fused), key)
    kernels = {
        "_thnn_fused_lstm_cell": _lstm,
        "_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
        "_thnn_fused_gru_cell": _gru,
        "_thnn_fused_gru_cell_backward": _gru_backward,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced: those of PyTorch's meta device want biases
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CPU")
            library.impl(name, kernel, "Meta", allow_override=True)  # for shapes
