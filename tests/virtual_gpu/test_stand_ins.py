"""Values in a dry run: known ones are exact, unknown ones have stand-ins, and each of those is listed."""

import types

from helpers.virtual_gpu import detectors, virtual_gpu
from helpers.virtual_gpu.patches import Patches
from helpers.virtual_gpu.value_shapes import reads_values, stand_in

import pytest
import torch
import torch.nn.functional as F
from torch import nn


@pytest.fixture
def run():
    with virtual_gpu("a100-80gb") as run:
        yield run


@pytest.fixture
def unknown(run):
    """Return 6,400 hidden states of width 64 that nothing is known of."""
    return torch.randn(6400, 64, device="cuda") @ torch.randn(64, 64, device="cuda")


def test_what_is_known_is_computed(run):
    tokens = torch.randint(100, (8, 512), generator=torch.Generator().manual_seed(1))
    there = tokens.cuda()
    assert (there > 50).sum().item() == (tokens > 50).sum().item()
    assert (there == 7).nonzero().tolist() == (tokens == 7).nonzero().tolist()
    assert there.max().cpu().item() == tokens.max().item()
    assert not run.waits.assumed
    assert run.waits.synchronizations


def test_nothing_is_infinite(run, unknown):
    assert not torch.isnan(unknown).any()
    assert not torch.isinf(unknown).any().item()
    assert torch.isfinite(unknown).all()
    assert unknown.mean().item() == 1.0
    assert {words for _, words, _ in run.waits.assumed} == {"value of one element"}


def test_a_mask_of_unknown_values_is_true_everywhere(unknown):
    mask = unknown[:, 0] > 0
    assert unknown[mask].shape == unknown.shape
    assert mask.nonzero().shape == (6400, 1)
    assert unknown.masked_select(unknown > 0).shape == (6400 * 64,)


def test_a_known_mask_selects_as_many_rows_as_it_has(run, unknown):
    mask = torch.arange(6400, device="cuda") % 8 == 3
    assert unknown[mask].shape == (800, 64)
    assert unknown[:, 0].masked_select(mask).shape == (800,)
    assert unknown[mask, :8].shape == (800, 8)
    assert not run.waits.assumed


def test_ones_in_the_shape_of_unknown_values_are_known(run, unknown):
    assert torch.ones_like(unknown, dtype=torch.long).sum(-1).tolist() == [64] * 6400
    assert unknown.new_zeros(5, dtype=torch.long).tolist() == [0] * 5
    assert torch.full_like(unknown[0], 7.0).sum().item() == 7 * 64
    assert not run.waits.assumed


def test_tokens_spread_evenly_over_experts(unknown):
    chosen = (unknown @ torch.randn(64, 8, device="cuda")).topk(2, dim=-1).indices
    assert F.one_hot(chosen, 8).shape == (6400, 2, 8)
    mask = F.one_hot(chosen, 8).permute(2, 1, 0)
    assert [len(torch.where(mask[expert])[0]) for expert in range(8)] == [1600] * 8
    assert (chosen == 3).nonzero().shape == (1600, 2)
    assert torch.bincount(chosen.flatten(), minlength=8).tolist() == [1600] * 8


def test_a_copy_to_the_host_has_finite_values(unknown):
    assert unknown[0].cpu().isfinite().all()
    assert unknown[0].tolist() == [1.0] * 64
    assert len(unknown.argmax(-1).cpu().unique()) == 1


def test_a_number_that_is_known_stays_so_beside_one_that_is_not(unknown):
    told = torch.stack([unknown.mean(), torch.tensor(0.25, device="cuda")])
    assert told.tolist() == [1.0, 0.25]
    assert told.clone()[1].item() == 0.25
    assert told.mul_(2).tolist() == [1.0, 1.0]  # nothing is known of a product


def test_losses_fall_and_a_scaler_steps(run):
    model = nn.Linear(2048, 2048).cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler()
    losses = []
    for _ in range(3):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(16, 2048).cuda()).square().mean()
        losses.append(loss.item())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 3
    assert scaler.get_scale() == 65536
    assert len(run.ledger.marks) == 3


def test_an_optimizer_from_before_is_not_the_programs():
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    with virtual_gpu("a100-80gb") as run:
        x = torch.zeros(3, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([x])
        x.sum().backward()
        optimizer.step()
        assert len(run.ledger.marks) == 1
    assert other.param_groups


def test_wrong_shapes_are_refused(unknown):
    with pytest.raises(RuntimeError):
        unknown @ unknown
    with pytest.raises(RuntimeError, match="same device"):
        unknown @ torch.ones(64, 64)
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        unknown.numpy()


def test_loops_that_wait_for_a_value_end(run, unknown):
    times = 0
    while (unknown > 0).any():
        times += 1
    assert times == 100
    assert torch.isfinite(unknown).all()  # what is known is not given up, however often it is asked for
    assert all(torch.isfinite(unknown).all() for _ in range(300))


@pytest.mark.parametrize(("bound", "drawn_again"), [(2.0, False), (0.04, True)])
def test_truncated_normal_values_are_drawn_again_where_that_is_to_be_expected(run, bound, drawn_again):
    weight = torch.empty(2**22, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    nn.init.trunc_normal_(weight, std=0.02, a=-bound, b=bound)
    results_of_where = (torch.cuda.max_memory_allocated() - weight.nbytes) // weight.nbytes
    assert (results_of_where >= 2) is drawn_again
    on_host = nn.init.trunc_normal_(torch.empty(2**22), std=0.02, a=-bound, b=bound)
    assert on_host.shape == weight.shape


def test_inference_mode_asks_for_the_same_values(run, unknown):
    with torch.inference_mode():
        target = torch.zeros(6400, dtype=torch.int64).to("cuda")
        _, chosen = unknown.topk(5, 1, True, True)
        correct = chosen.t().eq(target[None])
        right = correct[:5].flatten().sum(dtype=torch.float32)
        assert right.item() == 5 * 6400 / 64
        assert F.linear(unknown, torch.ones(3, 64).to("cuda")).shape == (6400, 3)
        assert F.dropout(unknown, 0.5).reshape(64, -1).contiguous().device.type == "cuda"
    assert right.item() == 5 * 6400 / 64  # a tensor of inference mode stays one outside
    assert right.reshape(1).expand(2).sum().item() == 2 * 5 * 6400 / 64
    assert {words for _, words, _ in run.waits.assumed} == {"value of one element"}


def test_rows_spread_evenly_over_the_levels_of_a_clamped_number(unknown):
    levels = (unknown[:, 0].log2().floor().clamp(2, 5).to(torch.int64) - 2).to(torch.int64)
    assert [len(torch.where(levels == level)[0]) for level in range(4)] == [1600] * 4


def test_all_boxes_survive_their_suppression(unknown):
    kept, words = stand_in("nms", (unknown[:, :4], unknown[:, 0], 0.5), {})
    assert kept.tolist() == list(range(6400))
    assert words == "all 6,400 boxes stay"
    assert reads_values("nms", (), {})


@torch.library.custom_op("made_up::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    """Return the rows of x whose first value is positive, an operation that another library could bring."""
    return x[x[:, 0] > 0].clone()


@positive.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.shape[1])


def test_an_operation_whose_shape_depends_on_values_is_computed(run, unknown):
    assert positive(unknown).shape[1] == 64
    assert any("ran on memory without data" in value for _, _, value in run.waits.assumed)


def test_distributions_accept_unknown_parameters_however_often(run, unknown):
    for _ in range(102):  # an unknown mask would be false now and then, so that loops end
        torch.distributions.Normal(unknown[:8, 0], unknown[:8, 1])


def test_a_detector_draws_boxes_in_the_shares_that_it_wants(run):
    utils, heads = types.SimpleNamespace(), types.SimpleNamespace()

    class BalancedPositiveNegativeSampler:
        batch_size_per_image, positive_fraction = 512, 0.25

        def __call__(self, matched):
            return [torch.ones_like(boxes, dtype=torch.uint8) for boxes in matched], []

    class RoIHeads:
        fg_bg_sampler = BalancedPositiveNegativeSampler()

        def select_training_samples(self, labels):
            return None, None, labels, None

    utils.BalancedPositiveNegativeSampler, heads.RoIHeads = BalancedPositiveNegativeSampler, RoIHeads
    patches = Patches()
    detectors._sample(patches, utils)
    detectors._label(patches, heads)
    boxes = (torch.randn(2000, 4, device="cuda") @ torch.randn(4, 8192, device="cuda")).argmax(1)
    objects, others = BalancedPositiveNegativeSampler()([boxes])
    assert [len(torch.where(mask[0])[0]) for mask in (objects, others)] == [128, 384]
    assert len(torch.where(objects[0] | others[0])[0]) == 512
    _, _, (labels,), _ = RoIHeads().select_training_samples([boxes[:512]])
    assert len(torch.where(labels > 0)[0]) == 128
    known = torch.tensor([1, 0, 2], device="cuda")
    assert RoIHeads().select_training_samples([known])[2][0] is known
