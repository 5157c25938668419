"""What the labs show, put together with as little thought as it takes to run, earns no part of X1, X2, X5, X6 or X7."""

import importlib

import pytest

from ..mutants import run_answers, verdicts

X1, X2, X5 = (
    [part.name for part in importlib.import_module(f"helpers.exercises.{x}").PARTS] for x in ("x1", "x2", "x5")
)

# Lab 03b's scaler, a step with the line order of its section on clipping, and lab 03's loop.
OF_LAB_03B = """
import time
import torch
import torch.nn.functional as F
from helpers import MemoryMeter, SmallCNN, digits, pick_device
from helpers.exercises.reference.loss_scaling import LossScaler as DynamicLossScaler

device = pick_device()


def train_step(model, optimizers, scaler, images, labels, dtype, max_norm):
    scaler = scaler or torch.amp.GradScaler(images.device.type, enabled=False)
    for optimizer in optimizers:
        optimizer.zero_grad()
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32):
        logits = model(images)
    loss = F.cross_entropy(logits.float().flatten(0, -2), labels.flatten())
    scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def train(precision, seed=0, epochs=4):
    data = digits(device)
    torch.manual_seed(seed)
    model = SmallCNN(16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)

    def step(index):
        train_step(model, [optimizer], scaler, data.train_x[index], data.train_y[index], dtype, 1.0)

    start, steps = time.perf_counter(), 0
    for _ in range(epochs):
        for index in torch.randperm(len(data.train_x)).split(128):
            step(index)
            steps += 1
    seconds = (time.perf_counter() - start) / steps
    with MemoryMeter(model, optimizer) as meter:
        step(index)
    model.eval()
    with torch.no_grad():
        right = model(data.test_x).argmax(1) == data.test_y
    accuracy = right.float().mean().item()
    return {"model": model, "accuracy": accuracy, "peak_bytes": meter.peak_bytes, "step_seconds": seconds}
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", X1)
def test_what_lab_03b_shows_earns_no_part_of_x1(part):
    found = verdicts(part, run_answers(OF_LAB_03B))
    assert not all(verdict.passed for verdict in found)


LABS = """
import torch
import torch.nn.functional as F
from helpers.exercises.reference.gradient_accumulation import accumulate, accumulate_tokens
"""

# Lab 04's solutions between zero_grad and step; lab 04's loop, and X1's part 2 from unscale_ to update.
ONE_PROCESS = """
def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch, all_reduce):
    optimizer.zero_grad()
    loss = accumulate(model, x, y, micro_batch)
    optimizer.step()
    return loss


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    for optimizer in optimizers:
        optimizer.zero_grad()
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        loss = F.cross_entropy(model(xs), ys) * (len(xs) / len(x))
        scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if torch.isfinite(norm):
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    return norm


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    losses, group = [], []
    for x, y in loader(0):
        group.append((x, y))
        if len(group) == accumulate:
            optimizer.zero_grad()
            rows = sum(len(x) for x, _ in group)
            loss = 0.0
            for xs, ys in group:
                part = loss_fn(model(xs), ys) * (len(xs) / rows)
                part.backward()
                loss += part.item()
            optimizer.step()
            scheduler.step()
            losses.append(loss)
            group = []
    return losses, None
"""

# Lab 04's tokens, averaged over the ranks as DistributedDataParallel does it in lab 11; GradScaler's own decisions.
AVERAGED = """
def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch, all_reduce):
    optimizer.zero_grad()
    count, loss = (y != -100).sum(), 0.0
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        total, _ = loss_fn(model(xs), ys)
        part = total / count
        part.backward()
        loss += part.item()
    for parameter in model.parameters():
        if parameter.grad is not None:
            all_reduce(parameter.grad)
            parameter.grad /= 2
    optimizer.step()
    return loss


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    model.zero_grad()
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        scaler.scale(F.cross_entropy(model(xs), ys) * (len(xs) / len(x))).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    return norm


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    start, losses = state or 0, []
    optimizer.zero_grad()
    for number, (x, y) in enumerate(loader(start), start + 1):
        loss = loss_fn(model(x), y) / accumulate
        loss.backward()
        losses.append(loss.item())
        if number % accumulate == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if number - start == stop_after:
            return losses, number
    return losses, None
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", X2)
@pytest.mark.parametrize("answers", [ONE_PROCESS, AVERAGED], ids=["one process", "averaged over ranks"])
def test_what_the_labs_show_earns_no_part(part, answers):
    found = verdicts(part, run_answers(LABS + answers))
    assert not all(verdict.passed for verdict in found)


# Lab 18's class, and two lines that call it.
ONE_FILE = """
from helpers.exercises.reference.runs_that_survive import Checkpoints


def save(folder, step, state, keep):
    Checkpoints(folder, keep).save(step, state)


def load(folder):
    return Checkpoints(folder).latest()
"""


@pytest.mark.slow
def test_the_checkpoints_of_lab_18_pass_no_check_of_x6():
    found = verdicts("x6.files", run_answers(ONE_FILE))
    assert [verdict.check for verdict in found if verdict.passed] == []
    assert all("is a file" in verdict.diagnosis for verdict in found)


# Lab 12b's cell that initializes a sharded model, and the steps around it; the numbers of ranks are the mesh's.
ON_META = """
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from helpers.exercises.reference.fully_shard import make_sharded


def keep_part(p, full):
    mesh = p.device_mesh
    p.to_local().data.copy_(full.chunk(mesh.size(mesh.ndim - 1))[mesh.get_local_rank(mesh.ndim - 1)])


def build(make_model, mesh, dtype, seed):
    with torch.device("meta"):
        model, template = make_model(), make_model()
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    model = make_sharded(model, mesh, mp_policy=policy).to_empty(device="cpu")
    torch.manual_seed(seed)
    for name, layer in template.named_modules():
        if hasattr(layer, "reset_parameters"):
            layer.to_empty(device="cpu").reset_parameters()
            for of_layer, p in model.get_submodule(name).named_parameters():
                keep_part(p, layer.get_parameter(of_layer))
            layer.to("meta")
    return model
"""


@pytest.mark.slow
def test_the_start_of_lab_12b_passes_no_check_of_x7():
    assert [verdict.check for verdict in verdicts("x7.build", run_answers(ON_META)) if verdict.passed] == []


# Lab 18b's class, and its loop.
EVERY_STEP = """
from helpers.exercises.reference.failures import Preemption


def preemptible(job):
    notice, step = Preemption(), job.resume()
    while step < job.steps:
        running = job.launch(notice.flag().item())
        step += 1
        stop = notice.agreed(running.total())
        if stop or step % job.every == 0 or step == job.steps:
            job.save(step)
        if stop and step < job.steps:
            raise SystemExit(job.requeue)
    return step
"""


@pytest.mark.slow
def test_the_preemption_of_lab_18b_passes_no_check_of_x6():
    found = verdicts("x6.preempt", run_answers(EVERY_STEP))
    assert [verdict.check for verdict in found if verdict.passed] == []
    assert "the device had nothing to do" in found[0].diagnosis


# The cells of labs 15 and 15b with the group in the place of the world. The tiles know one document and add up in the
# inputs' dtype.
RING = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from helpers.exercises.context_parallel.attend import attend, attend_backward
from helpers.exercises.reference.balance_and_documents import cut, zigzag
from helpers.exercises.reference.context_parallel import merge, shift as shift_in_the_world


def deal(lengths, ranks, chunk):
    return zigzag(ranks)


def shard(tokens, lengths, order, rank):
    return cut(tokens, order, rank)


def pass_on(x, group):
    (coming,), finish = shift_in_the_world(x)

    def wait():
        finish()
        return coming

    return wait


def shift(group, *tensors):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    leaving = [tensor.contiguous() for tensor in tensors]
    arriving = [torch.empty_like(tensor) for tensor in leaving]
    messages = [dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % n) for tensor in leaving]
    messages += [dist.P2POp(dist.irecv, tensor, group=group, group_peer=(rank - 1) % n) for tensor in arriving]
    requests = dist.batch_isend_irecv(messages) if n > 1 else []

    def finish():
        for request in requests:
            request.wait()
        leaving.clear()

    return (arriving if n > 1 else list(tensors)), finish


def ring_forward(q, k, v, order, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    rows = q.chunk(len(order[rank]), dim=2)
    found = [(torch.zeros_like(row), torch.full_like(row[..., 0], float("-inf"))) for row in rows]
    visiting = k, v
    for step in range(n):
        if step < n - 1:
            arriving, finish = shift(group, *visiting)
        held = order[(rank - step) % n]
        for column, *block in zip(held, *(t.chunk(len(held), dim=2) for t in visiting), strict=True):
            for i, row in enumerate(order[rank]):
                if column <= row:
                    found[i] = merge(found[i], attend(rows[i], *block, causal=column == row))
        if step < n - 1:
            finish()
            visiting = arriving
    return torch.cat([out for out, _ in found], dim=2), torch.cat([lse for _, lse in found], dim=2)


def ring_backward(gradient, inputs, results, order, group):
    (q, k, v), rank, n = inputs, dist.get_rank(group), dist.get_world_size(group)
    dq, visiting, coming, land = torch.zeros_like(q), [k, v], None, None
    mine = list(zip(*(t.chunk(len(order[rank]), dim=2) for t in (gradient, q, *results, dq)), strict=True))
    for step in range(n):
        if step < n - 1:
            arriving, finish = shift(group, *visiting)
        held, sums = order[(rank - step) % n], [torch.zeros_like(k), torch.zeros_like(v)]
        columns = list(zip(*(t.chunk(len(held), dim=2) for t in (*visiting, *sums)), strict=True))
        for row, (g, q_chunk, out, lse, dq_chunk) in zip(order[rank], mine, strict=True):
            for column, (k_chunk, v_chunk, *theirs) in zip(held, columns, strict=True):
                if column <= row:
                    parts = attend_backward(g, (q_chunk, k_chunk, v_chunk), (out, lse), causal=column == row)
                    for total, part in zip((dq_chunk, *theirs), parts, strict=True):
                        total += part
        if land:
            land()
            for total, earlier in zip(sums, coming, strict=True):
                total += earlier
        coming, land = shift(group, *sums)
        if step < n - 1:
            finish()
            visiting = arriving
    land()
    return dq, *coming


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, order, group):
        out, lse = ring_forward(q, k, v, order, group)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.order, ctx.group = order, group
        return out

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, out, lse = ctx.saved_tensors
        return *ring_backward(gradient.contiguous(), (q, k, v), (out, lse), ctx.order, ctx.group), None, None


def ring_attention(q, k, v, order, lengths, group):
    WAY


def train_step(model, inputs, targets, positions, group):
    count = (targets != -100).sum()
    dist.all_reduce(count)
    loss = F.cross_entropy(model(inputs, positions).flatten(0, 1), targets.flatten(), reduction="sum")
    (loss / count).backward()
    joint = loss.detach() / count
    dist.all_reduce(joint)
    for p in model.parameters():
        dist.all_reduce(p.grad)
    return joint
"""
WAYS = {
    "in BF16": "return Ring.apply(q, k, v, order, group)",
    "in FP32": "return Ring.apply(q.float(), k.float(), v.float(), order, group).bfloat16()",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_ring_of_lab_15_earns_next_to_nothing_of_x5(way):
    names = run_answers(RING.replace("WAY", WAYS[way]))
    found = [verdict for part in X5 for verdict in verdicts(part, names)]
    assert [verdict.check for verdict in found if verdict.passed] in ([], ["memory_does_not_grow_with_ranks"])
