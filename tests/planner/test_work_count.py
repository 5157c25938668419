"""The work of a simulated step: nothing lost, nothing twice, and what a compiler fuses is not written."""

from dataclasses import replace

from helpers.planner import Recipe
from helpers.planner.simulate import simulate
from helpers.planner.simulate.flop_count import FlopCount
from helpers.planner.simulate.work_count import FUSED

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.planner.support import SMALL

SQUARE = (32, 32)
NBYTES = 4 * 32 * 32  # of a square in FP32


def total(works, what="flops", **only):
    chosen = [w for w in works if all(getattr(w, name) == value for name, value in only.items())]
    return sum(w.times * getattr(w.work, what) for w in chosen)


def without_products(works, phase):
    """The bytes that all but products and attention move: those read weights, compiled or not."""
    return total([w for w in works if not w.work.flops], "bytes", phase=phase)


def count(works, **only):
    return sum(w.times for w in works if all(getattr(w, name) == value for name, value in only.items()))


def test_the_flops_are_those_of_the_plan():
    image = simulate(Recipe("vit-b-16", micro_batch_size=2))
    assert total(image.works) == image.flops
    text = simulate(SMALL)  # causal: the plan counts the full square, the work is the half that is computed
    assert 0.8 * text.flops < total(text.works) < text.flops


def test_micro_batches_repeat_all_but_the_update():
    one, many = simulate(SMALL), simulate(replace(SMALL, gradient_accumulation_steps=8))
    for phase in ("forward", "backward"):
        assert total(many.works, phase=phase) == 8 * total(one.works, phase=phase) > 0
    update = {"phase": "optimizer step"}
    assert total(many.works, "bytes", **update) == pytest.approx(total(one.works, "bytes", **update), rel=0.01)


def test_two_simulated_steps_are_counted_as_one():
    kept = replace(SMALL, set_to_none=False)  # for which both steps are simulated
    assert total(simulate(kept).works) == total(simulate(SMALL).works)


def test_recomputed_work_is_told_apart():
    plain, again = simulate(Recipe("gpt2", seq=256)), simulate(Recipe("gpt2", seq=256, checkpointing="every"))
    assert total(plain.works, recomputed=True) == 0
    assert total(again.works, recomputed=False) == total(plain.works)
    assert total(again.works, recomputed=True) / total(again.works) == pytest.approx(
        again.recomputed_flops / again.flops, rel=0.05
    )


def test_the_update_of_adam_reads_and_writes_what_it_must():
    for how, most in (("fused", 1.2), ("foreach", 4.0)):
        recipe = Recipe("gpt2", precision="fp32", seq=16, optimizer_impl=how)
        answer = simulate(recipe)
        least = 7 * 4 * answer.trained  # reads weight, gradient and two moments, writes weight and moments
        moved = total(answer.works, "bytes", phase="optimizer step")
        assert least <= moved < most * least, how


@pytest.mark.slow
def test_compiled_work_has_the_same_flops_and_moves_fewer_bytes():
    for recipe in (Recipe("gpt2", seq=256), Recipe("llama-3.2-1b", seq=64, checkpointing="every")):
        eager, compiled = simulate(recipe), simulate(replace(recipe, compile=True))
        assert total(compiled.works) == total(eager.works)
        assert sum(b.nbytes for b in compiled.blocks) < sum(b.nbytes for b in eager.blocks)
        for phase in ("forward", "backward"):
            assert without_products(compiled.works, phase) < 0.7 * without_products(eager.works, phase)
            assert count(compiled.works, phase=phase) < 0.6 * count(eager.works, phase=phase)
        update = {"phase": "optimizer step"}  # no part of the model
        assert total(compiled.works, "bytes", **update) == total(eager.works, "bytes", **update)


# -- chains


def chains(function, *shapes):
    """The bytes of the chains that a compiler makes of `function`, in order."""
    with FakeTensorMode(), FlopCount(offloads=False, compiled=True) as counting:
        operands = [torch.empty(*shape, requires_grad=True) for shape in shapes]
        kept = function(*operands)
        works = counting.work.steps(lambda phase: 1)
    del kept
    return [w.work.bytes for w in works if w.work.name == FUSED for _ in range(int(w.times))]


def test_a_chain_reads_its_operands_and_writes_its_result_once():
    with torch.no_grad():
        assert chains(lambda x, w: x.exp().sin().mul(2) @ w, SQUARE, SQUARE) == [2 * NBYTES]
        assert chains(lambda x, y: ((x + y).exp() * x) @ y, SQUARE, SQUARE) == [3 * NBYTES]


def test_what_a_product_reads_is_written():
    def twice(x, weight):
        hidden = x.exp()
        return ((hidden + 1) @ weight + hidden) @ weight  # `hidden` is wanted beyond the chain

    with torch.no_grad():
        first, second = chains(twice, SQUARE, SQUARE)
    assert first == 3 * NBYTES  # reads x, writes exp(x) and exp(x) + 1
    assert second == 3 * NBYTES  # reads the product and exp(x), writes their sum


def test_what_only_the_backward_pass_wants_is_computed_again():
    def loss(x, weight):
        y = (x.exp().sin() @ weight).sum()  # eager mode keeps exp(x) for the gradient of sin
        y.backward()

    forward, *backward = chains(loss, SQUARE, SQUARE)
    assert forward == 2 * NBYTES  # reads x, writes sin(exp(x)) for the product
    assert max(backward) <= 4 * NBYTES


def test_a_change_in_place_is_written():
    with torch.no_grad():
        assert chains(lambda x: x.add_(1).mul_(2), SQUARE) == [3 * NBYTES]  # once too often: a chain could wait


def test_the_gradient_of_silu_is_part_of_its_chain():
    """PyTorch could take `silu_backward` apart, but runs it as one kernel; in a chain it is one pointwise operation."""

    def gated(x, y, v, w, out):  # SwiGLU between products
        a, b = x @ v, y @ w
        ((torch.nn.functional.silu(a) * b) @ out).backward(torch.empty(*SQUARE))

    forward, backward = chains(gated, *[SQUARE] * 5)
    assert forward == 3 * NBYTES  # reads both products, writes their gated product
    assert backward == 5 * NBYTES  # reads both and the gradient, writes two gradients; silu is computed again


def test_batch_norm_is_part_of_a_chain():
    def normed(x, w):
        rows = torch.nn.functional.batch_norm(x @ w, None, None, training=True)
        return rows.relu() @ w

    with torch.no_grad():
        (size,) = chains(normed, SQUARE, SQUARE)
    assert size == 2 * NBYTES  # reads the product, writes what the next one reads


# -- what stays for the backward pass


def kept(function, dtype=torch.float32):
    """The bytes that stay in memory longer than in eager mode, or are written only, because a chain is run again."""
    with FakeTensorMode(), FlopCount(offloads=False, compiled=True) as counting:
        x, *weights = (torch.empty(*SQUARE, dtype=dtype, requires_grad=True) for _ in range(3))
        function(x, *weights).sum().backward()
        blocks = list(counting.blocks)
    before = {id(block): (block.end, block in counting.work.never_written) for block in blocks}
    counting.work.keep_for_backward()
    after = {id(block): (block.end, block in counting.work.never_written) for block in blocks}
    return sum(block.nbytes for block in blocks if before[id(block)] != after[id(block)])


def test_a_sum_of_two_products_is_kept_and_not_the_products():
    assert kept(lambda x, v, w: torch.nn.functional.gelu(x @ v + x @ w) @ v) == NBYTES


def test_a_row_is_kept_and_not_its_copy_in_fp32():
    def norm(x, v, w):
        rows = x @ v
        wide = rows.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) @ w

    narrow = NBYTES // 2
    assert narrow <= kept(norm, torch.bfloat16) < 1.3 * narrow  # the row, and a number for each row at most


def test_what_is_in_memory_anyway_costs_nothing():
    assert kept(lambda x, v, w: x.exp().sin() @ v) == 0  # made again from x, a parameter
    assert kept(lambda x, v, w: (x @ v).exp().sin() @ w) <= NBYTES
