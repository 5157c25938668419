"""Recurrent layers on a virtual GPU: cuDNN's memory, the CPU's values, and PyTorch's errors."""

from helpers.virtual_gpu import virtual_gpu
from helpers.virtual_gpu.install import install, uninstall
from helpers.virtual_gpu.machine import Machine
from helpers.virtual_gpu.recurrent_sizes import DROPOUT_STATE, LSTM, RecurrentSizes

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

MiB = 2**20
LENGTHS = torch.tensor([5, 3, 4])
TIME_FIRST, BATCH_FIRST = {}, {"batch_first": True}
DEEP = {"num_layers": 2, "bidirectional": True}
LAYERS = [
    *((kind, options, False) for kind in ("LSTM", "GRU", "RNN") for options in (TIME_FIRST, BATCH_FIRST | DEEP)),
    *((kind, DEEP | {"bias": False}, True) for kind in ("LSTM", "GRU", "RNN")),
    ("LSTM", {"proj_size": 3, "num_layers": 2}, False),
    ("LSTM", {"proj_size": 3, "bias": False, "bidirectional": True}, False),
    ("RNN", {"nonlinearity": "relu"}, False),
]


@pytest.fixture
def gpu():
    install(Machine.named("t4"))
    yield
    uninstall()


def trained(kind, options, *, packed=False, device="cuda", autocast=False):
    """Return a layer after one backward pass, with its outputs and gradients."""
    torch.manual_seed(0)
    layer = getattr(nn, kind)(6, 8, **options).to(device)
    x = torch.randn(3, 5, 6) if layer.batch_first else torch.randn(5, 3, 6)
    given = x = x.to(device).requires_grad_()
    if packed:
        given = pack_padded_sequence(x, LENGTHS, batch_first=layer.batch_first, enforce_sorted=False)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        out, states = layer(given)
    if packed:
        out, _ = pad_packed_sequence(out, batch_first=layer.batch_first)
    states = states if isinstance(states, tuple) else (states,)
    (out.float().square().sum() + sum(state.float().cos().sum() for state in states)).backward()
    return layer, [out, *states, x.grad, *(weight.grad for weight in layer.parameters())]


def storages(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@pytest.mark.parametrize(("kind", "options", "packed"), LAYERS)
def test_values_are_those_of_the_cpu_and_peaks_those_of_a_dry_run(kind, options, packed):
    _, wanted = trained(kind, options, packed=packed, device="cpu")
    install(Machine.named("t4"))
    try:
        layer, found = trained(kind, options, packed=packed)
        for value, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(value.detach().cpu(), expected, rtol=1e-4, atol=1e-5)
        assert len(storages(layer.parameters())) == len(storages(w.grad for w in layer.parameters())) == 1
        peak = torch.cuda.max_memory_allocated()
        del layer, found, value
    finally:
        uninstall()
    with virtual_gpu("t4") as run:
        trained(kind, options, packed=packed)
    assert run.peak_allocated == peak


def trained_cell(kind, device="cuda", autocast=False, **options):
    """Return the outputs of a cell over five time steps, and all gradients."""
    torch.manual_seed(0)
    cell = getattr(nn, kind)(6, 8, **options).to(device)
    x, state, out = torch.randn(5, 3, 6).to(device).requires_grad_(), None, []
    with torch.autocast("cuda", torch.float16, enabled=autocast):
        for step in x:
            state = cell(step, state)
            out.append(state[0] if kind == "LSTMCell" else state)
    last = state[1] if kind == "LSTMCell" else state
    (torch.stack(out).float().square().sum() + last.float().cos().sum()).backward()
    return [*out, x.grad, *(weight.grad for weight in cell.parameters())]


@pytest.mark.parametrize(("kind", "options", "packed"), [layer for layer in LAYERS if not layer[2]])
def test_without_cudnn_a_layer_runs_cell_by_cell(kind, options, packed, monkeypatch):
    _, wanted = trained(kind, options, device="cpu")
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    install(Machine.named("t4"))
    try:
        _, found = trained(kind, options)
        for value, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(value.detach().cpu(), expected, rtol=1e-4, atol=1e-5)
        peak = torch.cuda.max_memory_allocated()
        del found, value
    finally:
        uninstall()
    with virtual_gpu("t4") as run:
        trained(kind, options)
    assert run.peak_allocated == peak


def test_a_layer_in_bf16_keeps_as_much_as_its_cells():
    held = {}
    for kind in (nn.LSTM, nn.LSTMCell):
        with virtual_gpu("a100-40gb"):
            layer, x = kind(512, 512).to("cuda", torch.bfloat16), torch.zeros(9, 64, 512, device="cuda").bfloat16()
            before, state = torch.cuda.memory_allocated(), None
            for step in x if kind is nn.LSTMCell else [x]:
                out = state = layer(step, state)
            held[kind] = torch.cuda.memory_allocated() - before
            del out, state
    stacked = 9 * 64 * 512 * 2  # the output of all steps
    assert held[nn.LSTM] == pytest.approx(held[nn.LSTMCell] + stacked, rel=0.03)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
def test_values_of_cells_are_those_of_the_cpu_and_peaks_those_of_a_dry_run(kind, bias):
    wanted = trained_cell(kind, "cpu", bias=bias)
    install(Machine.named("t4"))
    try:
        found = trained_cell(kind, bias=bias)
        for value, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(value.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
        peak = torch.cuda.max_memory_allocated()
        del found, value
        assert trained_cell(kind, autocast=True, bias=bias)[0].dtype == torch.float16
    finally:
        uninstall()
    with virtual_gpu("t4") as run:
        trained_cell(kind, bias=bias)
    assert run.peak_allocated == peak


@pytest.mark.parametrize(("kind", "wanted"), [("LSTMCell", 12 + 2), ("GRUCell", 11 + 1)])
def test_a_cell_keeps_both_products_its_gates_and_its_states(kind, wanted):
    """derivatives.yaml: `_thnn_fused_lstm_cell` saves (B, 4 H) three times, `_thnn_fused_gru_cell` 3 H, 3 H and 5 H."""
    with virtual_gpu("a100-40gb"):
        cell, x = getattr(nn, kind)(512, 512).cuda(), torch.zeros(256, 512, device="cuda")
        state, held = (x, x) if kind == "LSTMCell" else x, []
        for _ in range(3):
            state = cell(x, state)
            held.append(torch.cuda.memory_allocated())
    assert held[2] - held[1] == wanted * x.nbytes


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_autocast_computes_in_fp16_whatever_it_was_asked_for(gpu, kind):
    _, (out, *_, gradient) = trained(kind, DEEP, autocast=True)
    assert (out.dtype, gradient.dtype) == (torch.float16, torch.float32)


def test_the_backward_pass_drops_what_the_forward_pass_dropped(gpu):
    layer = nn.LSTM(6, 8, 2, dropout=0.5).cuda().double()
    x = torch.randn(5, 3, 6, dtype=torch.float64, device="cuda", requires_grad=True)

    def total(shift):
        torch.manual_seed(1)
        return layer(x + shift)[0].sum()

    total(0).backward()
    slope = (total(1e-6) - total(-1e-6)) / 2e-6
    assert x.grad.sum().item() == pytest.approx(slope.item(), rel=1e-5)


def test_an_lstm_keeps_its_gates_and_cells():
    held = []
    for layers, dropout in ((1, 0.0), (2, 0.0), (2, 0.5)):
        with virtual_gpu("a100-40gb"):
            lstm = nn.LSTM(512, 512, layers, dropout=dropout).cuda()
            x = torch.zeros(64, 128, 512, device="cuda")
            before = torch.cuda.memory_allocated()
            out = lstm(x)
            held.append(torch.cuda.memory_allocated() - before)
            del out
    one, two, with_dropout = held
    tokens = 64 * 128 * 512 * 4
    states = 2 * 2 * 128 * 512 * 4  # the first and the last, of a layer
    assert one == pytest.approx(6 * tokens + states, rel=0.01)
    assert two - one == pytest.approx(5 * tokens + states, rel=0.01)
    assert with_dropout - two == pytest.approx(DROPOUT_STATE, abs=2 * MiB)


def test_the_workspace_of_a_layer_does_not_grow_with_the_number_of_layers():
    sizes = [
        RecurrentSizes((35, 64, 650), (layers, 64, 650), None, 35 * 64, layers * 650, LSTM, 1) for layers in (1, 4)
    ]
    assert sizes[0].workspace(4) == sizes[1].workspace(4)
    assert sizes[1].reserve(4) == 4 * sizes[0].reserve(4)


def test_evaluation_keeps_nothing(gpu):
    layer, x = nn.GRU(64, 64, 2).cuda().eval(), torch.zeros(50, 8, 64, device="cuda")
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        out, _ = layer(x)
    del _
    assert torch.cuda.memory_allocated() - before == out.nbytes
    out, _ = layer(x.requires_grad_())
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        out.sum().backward()


def test_weights_that_are_not_together_are_copied_in_every_call(gpu):
    layer, x = nn.LSTM(64, 64).cuda(), torch.zeros(5, 8, 64, device="cuda")

    def held():
        before = torch.cuda.memory_allocated()
        _out = layer(x)
        return torch.cuda.memory_allocated() - before

    together = held()
    for weight in layer.parameters():
        weight.data = weight.data.clone()
    assert held() - together == pytest.approx(sum(weight.nbytes for weight in layer.parameters()), abs=512)
    layer.flatten_parameters()
    assert held() == together


def test_a_second_derivative_needs_another_way(gpu):
    layer, x = nn.LSTM(6, 8).cuda(), torch.ones(5, 3, 6, device="cuda", requires_grad=True)

    def penalty():
        (slope,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
        slope.square().sum().backward()

    with pytest.raises(RuntimeError, match="Double backwards is not supported for CuDNN RNNs"):
        penalty()
    with torch.backends.cudnn.flags(enabled=False):
        penalty()
    assert x.grad is not None


def test_bf16_goes_pytorchs_other_way(gpu):
    layer = nn.GRU(6, 8).cuda().bfloat16()
    out, _ = layer(torch.ones(5, 3, 6, device="cuda", dtype=torch.bfloat16))
    out.sum().backward()
    assert len(storages(layer.parameters())) == 4


def test_layers_of_the_cpu_are_left_alone():
    x, layer = torch.ones(5, 3, 6), nn.LSTM(6, 8)
    expected = layer(x)[0]
    with virtual_gpu("t4"):
        assert torch.equal(layer(x)[0], expected)
    assert torch.equal(layer(x)[0], expected)
    assert not torch.backends.cudnn.is_acceptable(x)
