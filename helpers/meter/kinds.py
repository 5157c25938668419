"""Kinds of operations: what an operation spends its time on, told from its name.

Products, convolutions and attention are bound by arithmetic when they are large. The other kinds do a few operations on
each number and are bound by memory. The profiler and the dispatcher use the same names ("aten::mm"), so one rule serves
the clock and the count.
"""

import functools
from typing import Literal, get_args

import torch

Kind = Literal["matmul", "convolution", "attention", "norm", "pointwise", "copy", "collective", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Operations by name, as far as no rule tells their kind. A reduction goes through its numbers once, as a pointwise
# operation does; so do losses and random numbers. A recurrent layer is products for each token.
_NAMES: dict[Kind, str] = {
    "matmul": "mm addmm bmm baddbmm mv addmv linear linear_backward "
    "_int_mm _scaled_mm _scaled_mm_v2 _grouped_mm _scaled_grouped_mm _addmm_activation "
    "mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward",
    "copy": "copy_ copy _to_copy clone cat stack fill_ fill zero_ zeros zeros_like ones ones_like full full_like "
    "arange eye embedding index select_backward slice_backward index_select gather index_copy_ "
    "index_copy masked_select repeat repeat_interleave roll flip tril triu constant_pad_nd new_zeros new_ones new_full "
    "_local_scalar_dense slice_scatter select_scatter as_strided_scatter _copy_from _pin_memory _foreach_copy_ "
    "_foreach_zero_ split_with_sizes_copy view_copy permute_copy expand_copy channel_shuffle native_channel_shuffle",
    "pointwise": "sum mean amax amin max min argmax argmin any all prod norm var std var_mean std_mean logsumexp "
    "linalg_vector_norm count_nonzero cumsum cumprod native_dropout _fused_dropout bernoulli_ bernoulli normal_ "
    "uniform_ random_ rand randn randint rand_like randn_like exponential_ nll_loss_forward nll_loss_backward "
    "nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward glu glu_backward _amp_update_scale_ "
    "embedding_dense_backward dot vdot max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d "
    "avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward mish_backward",
}
_KIND_BY_NAME = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_NORMS = ("layer_norm", "batch_norm", "group_norm", "rms_norm", "softmax")
_RESIZES = ("upsample_", "_upsample_")  # each number of the result is one of the input, or a mean of a few
_MANY_TENSORS = ("_foreach_", "_fused_", "_amp_foreach_")  # what optimizers call
_NO_WORK = (
    "empty empty_like empty_strided new_empty new_empty_strided detach set_ resize_ _unsafe_view is_pinned "
    "is_same_size record_stream scalar_tensor"
)
_WITHOUT_WORK = frozenset(_NO_WORK.split())


@functools.cache
def kind_of(name: str) -> Kind | None:
    """Return the kind of the operation `name` ("aten::mm"); None if it does nothing itself.

    Nothing is what views do, what only allocates, and composites, which consist of other operations (`aten::matmul`
    calls `aten::mm`). A linear layer has the kind of what it consists of: on Apple's GPU it is one operation.
    """
    namespace, _, plain = name.rpartition("::")
    if not namespace.isidentifier():  # a label, or a node of autograd ("torch::autograd::AccumulateGrad")
        return None
    overload = _overload(name)
    if namespace in ("c10d", "_c10d_functional", "symm_mem"):
        return "collective"
    known = _KIND_BY_NAME.get(plain)
    if known == "matmul":
        return known
    if plain in _WITHOUT_WORK or namespace in ("prim", "profiler") or is_composite(name):
        return None
    if overload is not None and overload.is_view:
        return None
    if "attention" in plain:
        return "attention"
    if "conv" in plain:
        return "convolution"
    if any(norm in plain for norm in _NORMS):
        return "norm"
    if plain.startswith((*_MANY_TENSORS, *_RESIZES)) or (overload is not None and torch.Tag.pointwise in overload.tags):
        return known or "pointwise"
    return "copy" if namespace == "fsdp" else known or "other"


_KERNELS: dict[Kind, tuple[str, ...]] = {
    "collective": ("nccl",),
    "attention": ("flash", "fmha", "attention"),
    "convolution": ("conv", "wgrad", "dgrad"),
    "matmul": ("gemm", "gemv", "cutlass", "xmma", "nvjet"),
    "copy": ("memcpy", "memset", "copy"),
    "norm": ("norm", "softmax", "triton_per", "triton_red"),
    "pointwise": ("elementwise", "reduce", "triton_poi"),
}


def kind_of_kernel(name: str) -> Kind:
    """Return the kind of a GPU's kernel that no operation of PyTorch is known to have launched, from its name."""
    lower = name.lower()
    return next((kind for kind, words in _KERNELS.items() if any(word in lower for word in words)), "other")


_OWN_KERNEL = ("CPU", "CUDA")


@functools.cache
def is_composite(name: str) -> bool:
    """Say whether the dispatcher takes the operation `name` apart before it chooses a kernel."""
    overload = _overload(name)
    return overload is not None and is_taken_apart(overload)


@functools.cache
def is_taken_apart(overload: torch._ops.OpOverload) -> bool:
    """Say whether an overload is made of others, and has no kernel of its own.

    A few have both, such as `aten::native_batch_norm` and `aten::silu_backward`: PyTorch can take them apart, for
    tracing or for another backend, but runs them as one kernel.
    """
    name = overload.name()
    own = any(torch._C._dispatch_has_kernel_for_dispatch_key(name, backend) for backend in _OWN_KERNEL)
    return overload._can_decompose() and not own


def _overload(name: str) -> torch._ops.OpOverload | None:
    """Return the first overload of the operation `name`; None if PyTorch has none of that name."""
    namespace, _, plain = name.rpartition("::")
    if not (namespace.isidentifier() and plain.isidentifier()):  # a label such as "Optimizer.step#AdamW.step"
        return None
    packet = getattr(getattr(torch.ops, namespace), plain, None)
    return getattr(packet, packet.overloads()[0]) if packet is not None else None
