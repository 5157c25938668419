# %% [markdown] name="title"
# # X2 · A batch of 256 from micro-batches of 64
#
# **Graded exercise, 10 points.** You write the accumulated step and everything around it that people get wrong: ragged micro-batches, tokens that do
# not count, scaling and clipping, the end of an epoch, the scheduler, and BatchNorm.
#
# | | |
# |---|---|
# | After this you can | accumulate gradients so that the update is the whole batch's to the last digit; prove it; say what does not survive a split |
# | Time | 60 to 90 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU |
# | Before this | [[gradient_accumulation]]; from [[mixed_precision]], `GradScaler` and the order of clipping |
# | Syllabus | X2 (T8, C8, P4) |
#
# There are five answer cells, each followed by its check. A check prints what it found and what to look at; run it as often as you like. Save the
# notebook when you are done: it is your hand-in, and it must keep its name.

# %% name="setup" setup=true
from helpers import MemoryMeter, SmallCNN, check, device_name, digits, hint, human_bytes, pick_device

import torch
import torch.nn.functional as F
from torch import nn

device = pick_device()
print(f"{device_name(device)} ({device.type}), torch {torch.__version__}")

# %% [markdown] name="step_task"
# ## Part 1 · The accumulated step (4 points)
#
# **Contract.** `accumulated_step` takes **one** optimizer step on the batch and returns its loss.
#
# - `x` (N, ...) and `y` (N, ...) are the whole batch, on the model's device. The model must see at most `micro_batch` rows at a time, in their order;
#   when N is not a multiple of `micro_batch`, the last micro-batch is smaller.
# - `loss_fn(outputs, y)` returns the **mean** over the rows it is given (such as `F.cross_entropy`).
# - The update equals that of the whole batch at once, whatever the optimizer: each of the N rows has weight 1/N in the gradient.
# - Gradients from earlier steps must not leak into this one.
# - Memory: activations and outputs of one micro-batch at a time.
# - The model arrives in training mode and stays in it. `x` and `y` are not changed, and the gradient is not clipped.
# - Returns the mean loss over all N rows: a number, or a detached tensor without dimensions.


# %% name="step" answer=true
def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    total = torch.zeros((), device=x.device)
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        loss = loss_fn(model(xs), ys) * (len(xs) / len(x))
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total
    ### END SOLUTION


# %% name="step_check" points=4
check("x2.step", accumulated_step)

# %% name="step_hint"
hint("x2.step")

# %% [markdown] name="tokens_task"
# ## Part 2 · Tokens (1 point)
#
# In text, rows have different lengths. The rest of a row is padding; its target is -100 and does not count. "Mean" then means the mean over **targets
# that count**, in the whole batch. A micro-batch of short rows holds fewer of them and must weigh less.
#
# **Contract.** `token_step` is like `accumulated_step`, for a language model and the cross-entropy of its logits.
#
# - `ids` (N, T) and `targets` (N, T) of int64; `model(ids)` returns logits (N, T, vocabulary).
# - Each target other than -100 has the same weight, wherever it is in its row. Some micro-batches may have none, and the model need not see those; the
#   batch has at least one.
# - Gradients from earlier steps must not leak in. Returns the mean loss over all targets that count, detached.


# %% name="tokens" answer=true
def token_step(model, optimizer, ids, targets, micro_batch):
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    counted = (targets != -100).sum()
    total = torch.zeros((), device=ids.device)
    for xs, ys in zip(ids.split(micro_batch), targets.split(micro_batch), strict=True):
        logits = model(xs)  # (n, T, vocabulary)
        loss = F.cross_entropy(logits.flatten(0, 1), ys.flatten(), reduction="sum") / counted
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total
    ### END SOLUTION


# %% name="tokens_check" points=1
check("x2.tokens", token_step)

# %% name="tokens_hint"
hint("x2.tokens")

# %% [markdown] name="scaled_task"
# ## Part 3 · Scaler and clipping (1 point)
#
# Add a loss scaler and gradient clipping. Both need to see the gradient of the *whole* batch: clip four quarters one by one, and you have clipped
# something else.
#
# **Contract.** `scaled_step` is like `accumulated_step` with the cross-entropy of the model's outputs, and
#
# - `scaler` has `scale`, `unscale_`, `step` and `update`, like `torch.amp.GradScaler`;
# - the **true** gradient of the whole batch is clipped to norm `max_norm` over all parameters;
# - nothing is returned; gradients from earlier steps must not leak in;
# - after an overflow the scaler skips the step and lowers its scale; the optimizer may have several groups of parameters;
# - per step, the scaler is asked once each to unscale, step and update. (Autocast is left out here: it does not change the order.)


# %% name="scaled" answer=true
def scaled_step(model, optimizer, scaler, x, y, micro_batch, max_norm):
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        loss = F.cross_entropy(model(xs), ys) * (len(xs) / len(x))
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    ### END SOLUTION


# %% name="scaled_check" points=1
check("x2.scaled", scaled_step)

# %% name="scaled_hint"
hint("x2.scaled")

# %% [markdown] name="epoch_task"
# ## Part 4 · An epoch (3 points)
#
# In a real loop micro-batches come from a loader, one after another, and an epoch need not end on a full group.
#
# **Contract.** `train_epoch` goes through `loader` once.
#
# - `loader` yields micro-batches `(x, y)`, at least one; it has no length and can be read only once. Their sizes may differ.
# - Memory: never hold more micro-batches than two groups have, nor activations of more than one micro-batch. An epoch does not fit.
# - Each group of `accumulate` micro-batches makes one update. What is left at the end makes a smaller group with an update of its own.
# - Gradients from earlier steps must not leak in. Within a group each **row** has the same weight. The model sees each micro-batch as it came: whole,
#   in one call.
# - `scheduler.step()` is called once, right after each update, also after that of the smaller group: schedules count updates.
# - The model arrives in training mode and stays in it. The gradient is not clipped.
# - `loss_fn` is as in part 1. Returns a list with one entry for each update: the mean loss of its group, as floats or detached tensors without
#   dimensions.


# %% name="epoch" answer=true
def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    ### BEGIN SOLUTION
    losses, rows, total = [], 0, 0.0

    def update():
        for parameter in model.parameters():
            parameter.grad /= rows  # the group's size is known only now
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(total / rows)

    optimizer.zero_grad()
    micro_batches = 0
    for x, y in loader:
        loss = loss_fn(model(x), y) * len(x)  # the sum over rows
        loss.backward()
        rows, total = rows + len(x), total + loss.item()
        micro_batches += 1
        if micro_batches == accumulate:
            update()
            rows, total, micro_batches = 0, 0.0, 0
    if micro_batches:
        update()
    return losses
    ### END SOLUTION


# %% name="epoch_check" points=3
check("x2.epoch", train_epoch)

# %% name="epoch_hint"
hint("x2.epoch")

# %% [markdown] name="groupnorm_task"
# ## Part 5 · BatchNorm (1 point)
#
# BatchNorm normalises with the mean and variance of the rows it is given. Those of 64 rows are not those of 256, so no weighting of gradients can
# make accumulation equal to the whole batch. GroupNorm normalises each row by itself.
#
# **Contract.** `with_group_norm(model, groups)` replaces every `nn.BatchNorm2d` in `model`, however deep, in place, and returns the same model.
#
# - Each has a scale and a shift and becomes `nn.GroupNorm(groups, channels)` with the same scale (`weight`), shift (`bias`), `eps`, dtype and device, in
#   the same mode (training or evaluation).
# - Nothing else changes: no name, no other layer (not even an `nn.BatchNorm1d`), and no other parameter's `requires_grad`. The model itself is never a
#   BatchNorm2d, contains no subclass of it, and contains no layer twice.


# %% name="groupnorm" answer=true
def with_group_norm(model, groups):
    ### BEGIN SOLUTION
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                norm = nn.GroupNorm(groups, child.num_features, eps=child.eps)
                norm.to(child.weight.device, child.weight.dtype).train(child.training)
                norm.load_state_dict({"weight": child.weight, "bias": child.bias})
                setattr(module, name, norm)
    return model
    ### END SOLUTION


# %% name="groupnorm_check" points=1
check("x2.groupnorm", with_group_norm)

# %% name="groupnorm_hint"
hint("x2.groupnorm")

# %% [markdown] name="table_text"
# ## Your table
#
# Four runs of one step on 256 digits: the whole batch and micro-batches of 64, with BatchNorm and with GroupNorm. How far is the accumulated update
# from the whole batch's, and how much memory did it save?

# %% name="table"
try:
    data = digits(device, size=16)
    images, labels = data.train_x[:256].clone(), data.train_y[:256].clone()
    print(f"{'':12}{'micro-batch':>12}{'peak':>12}{'distance of the update':>25}")
    for name in ("BatchNorm", "GroupNorm"):
        updates = {}
        for micro_batch in (256, 64):
            torch.manual_seed(0)
            model = SmallCNN(16).to(device)
            if name == "GroupNorm":
                model = with_group_norm(model, 4)
            before = torch.cat([p.detach().flatten() for p in model.parameters()])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with MemoryMeter(model, optimizer) as meter:
                accumulated_step(model, optimizer, F.cross_entropy, images, labels, micro_batch)
            updates[micro_batch] = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
            distance = (updates[micro_batch] - updates[256]).norm() / updates[256].norm()
            print(f"{name:12}{micro_batch:>12}{human_bytes(meter.peak_bytes):>12}{distance.item():>25.2g}")
except NotImplementedError:
    print("The table appears when parts 1 and 5 are done.")

# %% [markdown] name="hand_in"
# ## Hand in
#
# Save this notebook under its present name. Your instructor collects it as `YOUR_NAME/04_x2_batch_256.ipynb` and grades it with
#
# ```
# python -m helpers grade SUBMISSIONS --out GRADES
# ```
#
# Grading takes only your five answer cells, runs them with other random numbers, and runs the same ten checks. Changes
# elsewhere in the notebook neither help nor hurt.
