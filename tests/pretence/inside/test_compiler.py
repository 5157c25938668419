"""`torch.compile` on a pretended GPU: it records the graphs that it would record on a real one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

HERE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def forget_graphs():
    torch._dynamo.reset()


@pytest.fixture(params=["eager", "aot_eager"])
def backend(request):
    return request.param


def counting():
    """Return a backend, and the list to which it adds each graph."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    return keep, graphs


def test_values_and_gradients_are_those_of_eager_mode(backend):
    def program(x):
        i = torch.arange(len(x), device=x.device)
        mask = torch.ones(4, 4, dtype=torch.bool, device="cuda").triu(1)
        y = x.masked_fill(mask, 0.0) + x.new_ones(4) + torch.full((4,), 2.0, device=x.device)
        y = y + F.one_hot(i, 4) + torch.tensor(0.5, device="cuda")  # C++ makes tensors in between
        return y[i, i].sum() + y[1:, :2].norm()

    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    expected = program(x)
    (gradient,) = torch.autograd.grad(expected, x)
    y = torch.compile(program, backend=backend, fullgraph=True)(x)
    y.backward()
    assert y.device == x.grad.device == HERE
    assert y.item() == pytest.approx(expected.item())
    assert x.grad.allclose(gradient)


def test_moves_are_recorded_with_their_gradients(backend):
    def program(here, there):
        product = here.to("cuda") * there
        return product, product.cpu() + here, there.half() + torch.zeros(3, device="cuda")

    here, there = torch.ones(3, requires_grad=True), torch.ones(3, device="cuda", requires_grad=True)
    on_gpu, on_cpu, half = torch.compile(program, backend=backend, fullgraph=True)(here, there)
    assert [t.device.type for t in (on_gpu, on_cpu, half)] == ["cuda", "cpu", "cuda"]
    (on_gpu.sum().cpu() + on_cpu.sum()).backward()
    assert here.grad.device.type == "cpu"
    assert here.grad.tolist() == [3, 3, 3]
    assert there.grad.device == HERE
    assert there.grad.tolist() == [2, 2, 2]


def test_devices_may_not_meet(backend):
    added = torch.compile(lambda a, b: a + b, backend=backend)
    with pytest.raises(RuntimeError, match="same device"):
        added(torch.ones(3), torch.ones(3, device="cuda"))
    assert added(torch.ones(3, device="cuda"), torch.ones(3, device="cuda")).device == HERE


def test_checkpointing_is_recorded(backend):
    layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(2)).cuda()

    def program(x):
        for layer in layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()

    x = torch.randn(4, 8, device="cuda")
    expected = torch.autograd.grad(program(x), list(layers.parameters()))
    torch.compile(program, backend=backend, fullgraph=True)(x).backward()
    for parameter, gradient in zip(layers.parameters(), expected, strict=True):
        assert parameter.grad.device == HERE
        assert parameter.grad.allclose(gradient, atol=1e-6)


def test_autocast_follows_the_lists_of_cuda(backend):
    layer, x = nn.Linear(4, 4).cuda(), torch.randn(2, 4, device="cuda")

    def program(x):
        with torch.autocast("cuda", torch.float16):
            y = layer(x)
            assert y.dtype is torch.float16  # true while it is recorded, too
            return y, y.exp(), y.relu()

    results = torch.compile(program, backend=backend, fullgraph=True)(x)
    assert [result.dtype for result in results] == [torch.float16, torch.float32, torch.float16]


def test_memory_is_that_of_the_graph_when_it_runs(backend):
    def program(x):
        for _ in range(4):
            x = torch.tanh(x * 2)
        return x.sum()

    def peak(run):
        x.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(x).backward()
        return torch.cuda.max_memory_allocated() - before

    x = torch.randn(2**18, device="cuda", requires_grad=True)
    compiled = torch.compile(program, backend=backend)
    assert peak(compiled) == peak(compiled) == peak(program)


def test_a_graph_breaks_where_python_looks_into_a_tensor():
    def program(x):
        y = x * 2
        if y.mean() > 0:
            y = y - 1
        return y / y.abs().max().item()

    x = torch.linspace(-1, 2, 8, device="cuda")
    assert torch._dynamo.explain(program)(x).graph_count == 3
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(program, backend="eager", fullgraph=True)(x)


@pytest.mark.parametrize(("dynamic", "expected"), [(False, [1, 2, 3, 4]), (None, [1, 2, 2, 2]), (True, [1, 1, 1, 1])])
def test_another_length_or_device_takes_another_graph(dynamic, expected):
    backend, graphs = counting()
    program = torch.compile(lambda x: torch.tanh(x) + torch.ones(1, device=x.device), backend=backend, dynamic=dynamic)
    seen = []
    for length in (10, 11, 12, 50):
        assert program(torch.ones(length, device="cuda")).device == HERE
        seen.append(len(graphs))
    assert seen == expected
    for device in ("cpu", "cuda", "cpu"):
        assert program(torch.ones(50, device=device)).device.type == device
    assert len(graphs) == expected[-1] + 1


def test_torchscript_records_with_its_constants():
    traced = torch.jit.trace(lambda x: x + 1, torch.ones(3, device="cuda"))
    assert traced(torch.ones(3, device="cuda")).tolist() == [2, 2, 2]
