# %% [markdown] name="title"
# # X2 · A batch of 256 from micro-batches of 64
#
# **Graded exercise, 10 points.** You write gradient accumulation as a real training run needs it: a batch spread over two ranks, some of whose targets do not count; one loss scaler for two optimizers, with a measure of the gradient's noise;
# and an epoch that is interrupted in the middle of a group of micro-batches.
#
# | | |
# |---|---|
# | After this you can | weight every target of a batch equally across micro-batches and ranks; put scaling, clipping and two optimizers into one accumulated step, and measure the noise of the gradient in it; resume a run without losing half a group |
# | Time | 80 to 115 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU |
# | Before this | [[gradient_accumulation]]; from [[loss_scaling]], `GradScaler` and when to clip |
# | Syllabus | X2 (T8, C8, P4) |
#
# There are three answer cells, each followed by its check. Code that is not the point of the exercise, such as copying gradients, is given: use it as it is, or change it. A check prints what it found and where to look; run it as often as you like. In a copy without reference answers the checks give no verdict; your instructor's grading does. When you are done, save the
# notebook under its current name: it is your submission.

# %% name="setup" setup=true
import io

from helpers import MemoryMeter, SmallCNN, check, device_name, digits, hint, human_bytes, pick_device

import torch
import torch.nn.functional as F
from torch import nn

device = pick_device()
print(f"{device_name(device)} ({device.type}), torch {torch.__version__}")

# %% [markdown] name="step_task"
# ## Part 1 · One step, two ranks (3 points)
#
# Two ranks (processes, each with its own GPU) train the same model, each on a batch of its own. Some targets, such as padding and prompts, do not count. The mean is over all the targets that count on **both** ranks together, and
# neither rank knows the total until the ranks have exchanged their counts.
#
# **Contract.** `accumulated_step(model, optimizer, loss_fn, x, y, micro_batch, all_reduce)` is called by both ranks at the same time. It takes **one** optimizer step and returns the loss.
#
# - `x` (N, ...) and `y` (N, ...) are this rank's batch, on the model's device; N may differ between the ranks. The model sees at most `micro_batch` rows at a time, in order.
#   When N is not a multiple of `micro_batch`, the last micro-batch is smaller.
# - `loss_fn(outputs, y)` returns a pair of scalar tensors: the **sum** of the losses over the targets that count, and the count. The total of the sums is divided by the total of the counts. A count need not be an integer. It may be 0 in a micro-batch or on one of the
#   ranks, but not on both.
# - `all_reduce(tensor)` adds up a tensor over both ranks, in place, and returns nothing. It waits for the other rank, which must call it with a tensor of the same shape and dtype.
# - Both ranks make the same update: that of one process with both batches, where each target that counts has the same weight, whatever the optimizer.
# - A step sends each gradient once, after the last micro-batch, and at most two numbers besides the gradients. You may pack them into as few or as many tensors as you like.
# - `model` may have frozen parameters, which have no gradients; they are neither sent nor changed. A parameter may get no gradient on one of the ranks (but not on both): `backward()` leaves its `.grad` at `None` there. It still gets the joint gradient.
# - Gradients from earlier steps must not leak into this one, and the gradient is not clipped.
# - Memory: activations and outputs of one micro-batch at a time. `x` and `y` are not changed. The model arrives in training mode and stays in it.
# - It returns the mean loss over all counted targets on both ranks: a number, or a detached scalar tensor.


# %% name="step" answer=true
def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch, all_reduce):
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    sums = 0  # the loss, the count
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        total, count = loss_fn(model(xs), ys)
        total.backward()
        sums = sums + torch.stack([total.detach(), count.to(total)])
    all_reduce(sums)
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:  # the other rank may have one, and waits for ours
                parameter.grad = torch.zeros_like(parameter)
            all_reduce(parameter.grad)
            parameter.grad /= sums[1]
    optimizer.step()
    return sums[0] / sums[1]
    ### END SOLUTION


# %% name="step_check" points=3
check("x2.step", accumulated_step)

# %% name="step_hint"
hint("x2.step")

# %% [markdown] name="scaled_task"
# ## Part 2 · One scaler, two optimizers (2 points)
#
# Add a loss scaler and gradient clipping, for a model whose parameters belong to two optimizers. Order matters: what is weighted per
# micro-batch, what is done once per step, and what involves both optimizers?
#
# The step also measures **noise**. The gradients of single micro-batches are longer than that of the whole batch, because noise averages out. The squared norms at the two batch
# sizes yield an estimate of the critical batch size (McCandlish et al. 2018, appendix A.1), which section 4 of [[gradient_accumulation]] found by training many times. It takes no extra forward or backward pass.
#
# **Contract.** `scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm)` takes one step with both optimizers, on one process.
#
# - `optimizers` is a list of two; each owns a part of the model's parameters, in one or several groups, and together they own all of them.
# - `x` (N, ...) and `y` (N,) are split as in part 1. The loss is the cross-entropy of the model's outputs, the mean over all N rows.
# - `scaler` is a `torch.amp.GradScaler`, and the step uses only its `scale`, `get_scale`, `unscale_`, `step` and `update`. There is one backward pass for each micro-batch, and it starts from a scaled loss. Autocast is left out: it does not change the order.
# - The **true** gradient of the whole batch is clipped to the norm `max_norm` over the parameters of both optimizers together.
# - Without an overflow, each optimizer's gradients are unscaled once, each optimizer steps once through the scaler, and then the scaler is updated once.
# - If a micro-batch makes the gradient of either optimizer overflow, **neither** steps and neither optimizer's state changes. The scaler is updated in this step, too.
# - Gradients from earlier steps must not leak in. Memory, `x`, `y` and the mode of the model are as in part 1.
# - It returns a pair of numbers, or of detached scalar tensors: the norm of the true gradient before clipping, and the mean squared norm of the micro-batches' gradients. After an
#   overflow both are inf or NaN.
# - A micro-batch's gradient is the true gradient of the mean loss over its own rows alone, over the parameters of both optimizers, before clipping. In the mean of the squared norms, each micro-batch
#   is weighted by its number of rows.
#
# The given code subtracts: it returns what has been added to each `.grad` since the call before.


# %% name="scaled" answer=true
def added(model, before):
    """Return what has been added to each .grad since it was `before`, and copies of .grad for the next call."""
    now = [p.grad.clone() for p in model.parameters()]
    return [g - b for g, b in zip(now, before, strict=True)], now


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    ### BEGIN SOLUTION
    before, squares, scale = [torch.zeros_like(p) for p in model.parameters()], 0.0, scaler.get_scale()
    for optimizer in optimizers:
        optimizer.zero_grad()
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        loss = F.cross_entropy(model(xs), ys) * (len(xs) / len(x))
        scaler.scale(loss).backward()
        gradients, before = added(model, before)
        own = sum((g / scale).square().sum() for g in gradients)
        squares = squares + own * (len(x) / len(xs))
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if norm.isfinite():  # GradScaler would skip only the optimizer whose own gradient overflowed
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    return norm, squares
    ### END SOLUTION


# %% name="scaled_check" points=2
check("x2.scaled", scaled_step)

# %% name="scaled_hint"
hint("x2.scaled")

# %% [markdown] name="epoch_task"
# ## Part 3 · An epoch that can stop anywhere (5 points)
#
# Preemption does not wait for the end of a group. If the checkpoint holds only the weights and the optimizer state, the work on the unfinished group is lost. If the loader then continues past
# the group's first micro-batches, the group's update is made without them. Your loop can stop after any micro-batch, and another process finishes the group.
#
# **Contract.** `train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None)` goes through an epoch, or through the rest of one, and returns a pair `(losses, state)`.
#
# - `loader(start)` yields the micro-batches `(x, y)` of the epoch from number `start` on, the first being number 0. The loader has no length. Call it once per call of `train_epoch`. An epoch has at least one micro-batch, and their sizes may differ.
# - `accumulate` micro-batches, counted from the start of the epoch, form a group and make one update. What is left when the loader ends forms a smaller group with an update of its own.
# - Within a group each **row** has the same weight, and `loss_fn(outputs, y)` returns the mean over the rows it is given. The gradient is not clipped. The model receives each micro-batch unsplit, in one call, and once per epoch. It arrives in training mode and stays in it.
# - A parameter that gets no gradient in a group is not changed by that group's update. `.grad` may hold anything when `train_epoch` is called, and none of it may leak in.
# - `scheduler.step()` is called once, right after each update, including that of the smaller group: schedules count updates.
# - After `stop_after` micro-batches of **this** call it stops, whether or not a group is complete; it makes no update for an incomplete group and returns a state, even if the loader has nothing left. If the loader ends sooner, or `stop_after` is None, it goes to the end of the epoch and returns None as the state.
# - Another process continues: it calls `train_epoch` with this state and with `model`, `optimizer` and `scheduler` as they were when the state was returned, except
#   for `.grad`. All updates and losses must equal those of an epoch run in a single call. A call may find the loader already at its end, and a group may be interrupted several
#   times.
# - The state survives `torch.save` and `torch.load(..., weights_only=True)`. It holds no micro-batch, at most one gradient of each parameter, and a few numbers. Later training does not change a state that was returned, and a call does not change the one it is given.
# - Memory: never hold more than two groups' worth of micro-batches, nor the activations of more than one micro-batch. A whole epoch does not fit in memory.
# - `losses` is a list with one entry for each update of this call: the mean loss over the rows of its group, as a float or a detached scalar tensor.
#
# The given code copies gradients out of a model and back into one. You decide what else belongs in the state, and when each of the two is called.


# %% name="epoch" answer=true
def gradients_of(model):
    """Return copies of the gradients by parameter name, without those that are None."""
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def put_gradients(model, gradients):
    """Give each parameter a copy of its gradient in `gradients`; None where it has none there."""
    for name, parameter in model.named_parameters():
        gradient = gradients.get(name)
        parameter.grad = None if gradient is None else gradient.clone()


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    ### BEGIN SOLUTION
    state = state or {"position": 0, "rows": 0, "total": 0.0, "gradients": {}}
    position, rows, total = state["position"], state["rows"], state["total"]
    put_gradients(model, state["gradients"])
    losses = []

    def update():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= rows  # the group's size is known only now
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(total / rows)

    for taken, (x, y) in enumerate(loader(position), 1):
        loss = loss_fn(model(x), y) * len(x)  # the sum over rows
        loss.backward()
        rows, total = rows + len(x), total + loss.detach()
        position += 1
        if position % accumulate == 0:
            update()
            rows, total = 0, 0.0
        if taken == stop_after:
            gradients = gradients_of(model)
            return losses, {"position": position, "rows": rows, "total": total, "gradients": gradients}
    if rows:
        update()
    return losses, None
    ### END SOLUTION


# %% name="epoch_check" points=5
check("x2.epoch", train_epoch)

# %% name="epoch_hint"
hint("x2.epoch")

# %% [markdown] name="table_text"
# ## Your table
#
# The next cell runs your `train_epoch` three times over 1,280 digits: with batches of 256 rows; with micro-batches of 64 in groups of 4; and with these micro-batches and a stop after every 7
# of them, where the state is saved, loaded and passed to the next call. How far apart do the weights end up, and what do the micro-batches save?

# %% name="table"
data = digits(device, size=16)
images, labels = data.train_x[:1280].clone(), data.train_y[:1280].clone()


def epoch_of(rows, stop_after=None):
    """Train a small CNN for an epoch; return its peak in bytes, how many times it stopped, and its weights."""
    torch.manual_seed(0)
    model = SmallCNN(16)
    for name, module in list(model.features.named_children()):
        if isinstance(module, nn.BatchNorm2d):  # its statistics are those of a micro-batch
            setattr(model.features, name, nn.GroupNorm(4, module.num_features))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    pairs = list(zip(images.split(rows), labels.split(rows), strict=True))
    parts = model, optimizer, scheduler, F.cross_entropy, lambda start: iter(pairs[start:]), 256 // rows
    stops, state = -1, None
    with MemoryMeter(model, optimizer) as meter:
        while stops < 0 or state is not None:
            _, state = train_epoch(*parts, state, stop_after)
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            state = torch.load(file, weights_only=True)
            stops += 1
    return meter.peak_bytes, stops, torch.cat([p.detach().flatten() for p in model.parameters()])


try:
    whole, *others = [epoch_of(256), epoch_of(64), epoch_of(64, stop_after=7)]
    print(f"{'micro-batch':>11}{'stops':>7}{'peak':>12}{'distance of the weights':>26}")
    for rows, (peak, stops, weights) in zip((256, 64, 64), (whole, *others), strict=True):
        distance = ((weights - whole[2]).norm() / whole[2].norm()).item()
        print(f"{rows:>11}{stops:>7}{human_bytes(peak):>12}{distance:>26.2g}")
except NotImplementedError:
    print("The table appears when part 3 is done.")

# %% [markdown] name="submit"
# ## Submit
#
# Save this notebook under its current name. Your instructor collects it as `YOUR_NAME/04_x2_batch_256.ipynb` and grades it with
#
# ```
# python -m helpers grade SUBMISSIONS --out GRADES
# ```
#
# The grader takes only your three answer cells, runs them with different random numbers, and applies the same ten checks. Changes
# elsewhere in the notebook make no difference.
