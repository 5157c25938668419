"""The work of operations: kinds, shapes, bytes; on real tensors and on fake ones."""

from helpers import works_of
from helpers.meter.kinds import KINDS, is_composite, kind_of, kind_of_kernel
from helpers.meter.spans import TOP, place_of, span_trees

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from .training import ARCHITECTURES, RECIPES, first_step


def the_one(fn):
    (work,) = works_of(fn)
    return work


def test_the_work_of_a_product():
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    work = the_one(lambda: a @ b)
    assert (work.name, work.kind, work.flops) == ("aten.mm", "matmul", 2 * 3 * 5 * 7)
    assert (work.bytes, work.dtype, work.shape) == (4 * (15 + 35 + 21), "float32", (3, 7, 5))


def test_shared_weights_fold_the_batch_and_others_do_not():
    a, b = torch.randn(2, 3, 5), torch.randn(2, 5, 7)
    assert the_one(lambda: torch.bmm(a, b)).shape == (2, 3, 7, 5)
    assert the_one(lambda: torch.bmm(a, b[:1].expand(2, 5, 7))).shape == (6, 7, 5)
    assert [w.shape for w in works_of(lambda: F.linear(a, torch.randn(4, 5))) if w.kind == "matmul"] == [(6, 4, 5)]
    assert the_one(lambda: a[0] @ b[0, :, 0]).shape == (3, 1, 5)


def test_a_convolution_has_the_shape_of_its_product_in_both_directions():
    layer, x = nn.Conv2d(8, 12, 3, groups=2), torch.randn(2, 8, 6, 6, requires_grad=True)
    forward, back = (w for w in works_of(lambda: layer(x).sum().backward()) if w.kind == "convolution")
    m, n, k = 2 * 4 * 4, 12 // 2, 8 // 2 * 3 * 3  # of each of two groups
    assert forward.shape == back.shape == (m, n, k)
    assert (forward.flops, back.flops) == (2 * 2 * m * n * k, 2 * 4 * m * n * k)


def test_attention_has_to_do_half_where_it_is_causal():
    q, k = torch.randn(2, 4, 16, 8), torch.randn(2, 4, 32, 8)
    whole = the_one(lambda: F.scaled_dot_product_attention(q, k, k))
    assert (whole.kind, whole.shape) == ("attention", (8, 16, 32, 8))
    causal = the_one(lambda: F.scaled_dot_product_attention(k, k, k, is_causal=True))
    assert causal.flops == the_one(lambda: F.scaled_dot_product_attention(k, k, k)).flops // 2


def test_views_and_bare_memory_are_no_work():
    x = torch.randn(4, 6)
    assert works_of(lambda: x.view(2, 12).t()[0].expand(3, 2).detach()) == []
    assert works_of(lambda: torch.empty(5)) == []


@pytest.mark.parametrize(
    ("fn", "nbytes"),
    [
        (lambda x, y: x + y, 3),
        (lambda x, y: x.add_(y), 3),
        (lambda x, y: x.copy_(y), 2),  # what it writes on, it does not read
        (lambda x, y: x.zero_(), 1),
        (lambda x, y: torch.ones_like(x), 1),
        (lambda x, y: torch.add(x, x, out=y), 2),
        (lambda x, y: torch._foreach_add_([x], [y]), 3),
    ],
)
def test_bytes_are_read_and_written_once(fn, nbytes):
    x, y = torch.randn(32, 32), torch.randn(32, 32)
    assert the_one(lambda: fn(x, y)).bytes == nbytes * x.nbytes


def test_a_look_up_reads_as_much_as_it_returns():
    table, rows = torch.randn(1000, 8), torch.arange(4)
    assert the_one(lambda: F.embedding(rows, table)).bytes == 2 * 4 * 8 * 4 + rows.nbytes


def test_a_fused_optimizer_reads_gradients_and_writes_the_rest():
    p = nn.Parameter(torch.randn(32, 32))
    p.grad = torch.randn(32, 32)
    optimizer = torch.optim.AdamW([p], fused=True)
    optimizer.step()
    (work,) = (w for w in works_of(optimizer.step) if w.name == "aten._fused_adamw_")
    assert work.bytes // p.nbytes == 4 + 3  # weight, gradient, two averages; without the gradient


def test_kinds_of_operations():
    kinds = {
        "aten::addmm": "matmul", "aten::linear": "matmul", "aten::convolution_backward": "convolution",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention",
        "aten::native_layer_norm_backward": "norm", "aten::_softmax": "norm", "aten::gelu_backward": "pointwise",
        "aten::_foreach_addcdiv_": "pointwise", "aten::_fused_adamw_": "pointwise", "aten::sum": "pointwise",
        "aten::native_dropout": "pointwise", "aten::_to_copy": "copy", "aten::_foreach_copy_": "copy",
        "aten::embedding": "copy", "c10d::allreduce_": "collective", "aten::sort": "other", "mine::kernel": "other",
        "aten::view": None, "aten::empty": None, "aten::matmul": None, "aten::layer_norm": None,
    }  # fmt: skip
    assert {name: kind_of(name) for name in kinds} == kinds
    assert set(kinds.values()) - {None} == set(KINDS)
    assert is_composite("aten::linear")
    assert not is_composite("aten::mm")


def can_be_taken_apart_and_has_a_kernel():
    """Yield the name and the kind of each operation of PyTorch that it can take apart, but runs as one kernel."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, plain = name.partition("::")
        if namespace != "aten" or "." in plain:
            continue
        kernel = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
        if kernel and getattr(torch.ops.aten, plain).default._can_decompose():
            yield name, kind_of(name)


def test_what_can_be_taken_apart_but_runs_as_one_kernel_is_work():
    kinds = dict(can_be_taken_apart_and_has_a_kernel())
    sizes = [f"{name}{n}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)]
    known = {"native_batch_norm": "norm", "native_channel_shuffle": "copy"}
    known |= dict.fromkeys(["silu_backward", "mish_backward", *sizes], "pointwise")
    assert {f"aten::{name}": kind for name, kind in known.items()}.items() <= kinds.items()
    assert set(kinds.values()) <= {"norm", "pointwise", "copy"}, kinds
    assert not any(map(is_composite, kinds))


def in_the_trace(fn):
    """Return the operations of `fn()` to which the profiler's spans belong, the outermost of each."""
    with profile(activities=[ProfilerActivity.CPU]) as traced:
        fn()
    found = []

    def walk(spans, around):
        for span in spans:
            place = place_of(span, around)
            if place.operation and not around.operation:
                found.append(place.operation[1])
            walk(span.inside, place)

    for roots in span_trees(traced.profiler.kineto_results.events()).values():
        walk(roots, TOP)
    return found


def interpolated(mode, dims):
    x = torch.randn(1, 2, *[4] * dims, requires_grad=True)
    return lambda: F.interpolate(x, scale_factor=2, mode=mode).sum().backward()


@pytest.mark.parametrize(
    ("names", "fn"),
    [
        (["native_batch_norm", "native_batch_norm_backward"], lambda x: nn.BatchNorm2d(8)(x)),
        (["native_batch_norm", "native_batch_norm_backward"], lambda x: nn.BatchNorm2d(8).eval()(x)),
        (["silu", "silu_backward"], F.silu),
        (["mish", "mish_backward"], F.mish),
        (["channel_shuffle", "channel_shuffle"], lambda x: F.channel_shuffle(x, 2)),
        *(
            ([f"{name}{n}d", f"{name}{n}d_backward"], lambda x, mode=mode, n=n: interpolated(mode, n)())
            for mode, name in (("nearest", "upsample_nearest"), ("nearest-exact", "_upsample_nearest_exact"))
            for n in (1, 2, 3)
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_it_is_logged_once_and_not_beside_its_parts(names, fn):
    """By the dispatcher and by the profiler alike."""

    def run():
        y = fn(x)
        if y is not None:
            y.sum().backward()

    x = torch.randn(2, 8, 6, 6, requires_grad=True)
    around = {"randn", "ones", "zeros", "zero_", "fill_", "detach_", "add_", "add", "sum", "ones_like"}
    works = [work.name.removeprefix("aten.") for work in works_of(run)]
    traced = [name.removeprefix("aten::") for name in in_the_trace(run)]
    assert [name for name in works if name not in around] == names
    assert [name for name in traced if name not in around] == names


def test_batch_norm_reads_and_writes_its_numbers_and_statistics():
    x, layer = torch.randn(4, 8, 5, 5, requires_grad=True), nn.BatchNorm2d(8)
    forward, back = (w for w in works_of(lambda: layer(x).sum().backward()) if w.kind == "norm")
    number, of_a_channel = 4 * x.numel(), 4 * 8
    assert forward.bytes == 2 * number + (4 + 2) * of_a_channel  # weight, bias, running ones; what backward needs
    given = 4  # the gradient of a sum is one number, expanded
    assert back.bytes == given + 2 * number + (1 + 2 + 2 + 2) * of_a_channel  # reads x, writes its gradient


def test_batch_norm_is_one_operation_without_gradients():
    layer = nn.BatchNorm2d(8).eval()

    def run():
        with torch.inference_mode():
            layer(torch.zeros(2, 8, 3, 3))

    assert [work.kind for work in works_of(run)] == ["copy", "norm"]


def test_kinds_of_kernels():
    kinds = {
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "collective",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": "matmul",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128>>": "attention",
        "Memcpy HtoD (Pageable -> Device)": "copy",
        "triton_poi_fused_add_0": "pointwise",
        "triton_per_fused_native_layer_norm_1": "norm",
        "void at::native::vectorized_elementwise_kernel<4>": "pointwise",
        "mystery": "other",
    }
    assert {name: kind_of_kernel(name) for name in kinds} == kinds


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("make", ARCHITECTURES, ids=lambda f: f.__name__)
def test_every_operation_of_a_step_has_a_kind_of_its_own(make, recipe):
    model, x, y = make()
    _, step = recipe(model)
    first_step(step, x, y)
    works = works_of(lambda: step(x, y))
    assert [work.name for work in works if work.kind == "other"] == []
    assert all(work.bytes > 0 for work in works)
    assert all((work.flops > 0) == bool(work.shape) for work in works)


def test_fake_tensors_have_the_same_work():
    layer, x = nn.Linear(6, 4), torch.randn(5, 6)
    real = works_of(lambda: F.gelu(layer(x)).sum().backward())
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer, x = nn.Linear(6, 4), torch.empty(5, 6)
        assert works_of(lambda: F.gelu(layer(x)).sum().backward()) == real
