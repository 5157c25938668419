# %% [markdown] name="title"
# # X7 · A model that fits on no rank
#
# **Graded exercise, 10 points.** You build a model that no rank could hold, shard it, initialize it exactly as a single process would, train it with accumulation and clipping across ranks, and resume it on a different number of ranks.
#
# | | |
# |---|---|
# | After this you can | start a sharded model from the meta device with any mesh and any sizes; accumulate, weight tokens and clip under FSDP; save on 4 ranks and resume on 2 |
# | Time | 80 to 110 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU (4 processes) |
# | Before this | [[fully_shard]]; from [[gradient_accumulation]], how tokens are weighted |
# | Syllabus | X7 (T21) |
#
# There are three answer cells, each followed by its check, which starts four ranks and takes about 15 seconds. The first two cells begin with code that you can use as it is. Run a check as often as you like. In a copy without reference answers the checks give no verdict; your instructor's grading does. When you are done, save the notebook under its current name: it is your submission.

# %% name="setup" setup=true
from helpers import check, device_name, hint, pick_device

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor

device = pick_device()
print(f"{device_name(device)} ({device.type}), torch {torch.__version__}; the ranks use the CPU")

# %% [markdown] name="build_task"
# ## Part 1 · Start (4 points)
#
# **Contract.** `build(make_model, mesh, dtype, seed)` is called on every rank and returns the model, sharded over `mesh` with `fully_shard`, initialized, and in training mode.
#
# - `make_model()` returns a model in training mode; it allocates its parameters and buffers on the current default device. `model.blocks` is an `nn.ModuleList`; the parameters and buffers outside the blocks are small.
# - `mesh` is a `DeviceMesh` of CPU ranks, all of them or some; the calling rank is one of them. Other ranks may build another model at the same time. With one dimension, the model is sharded over it; with two, it is sharded over the second and replicated over the first. All parameters become `DTensor`s on this mesh, each split along its first dimension.
# - Each block is a unit of its own, gathered when it runs and freed after its forward and its backward pass; everything outside the blocks is one more unit.
# - The parameters and buffers equal those of one process that calls `torch.manual_seed(seed)` and then `layer.reset_parameters()` for every layer that has this method, once each, in the order of `model.modules()`. This holds for any mesh, and for sizes that are not divisible by the number of ranks.
#   `reset_parameters()` fills a layer's own parameters and buffers, draws from the global generator, and works on full tensors only.
# - While the model is built, a rank never holds more bytes than its shards and two unsharded blocks, or its shards and everything outside the blocks if that is more.
# - Weights, and the gradients that the optimizer sees, are FP32. Matmuls run in `dtype`, gradients are averaged in FP32 over all ranks of the mesh, and the model returns FP32. Parameters that `make_model` freezes stay frozen. In evaluation mode, and without gradients, the model uses the same dtypes as in training, and frees its blocks, too.
#
# The cell provides `copy_part`, which copies the right part of an unsharded layer to the sharded model. You decide what is allocated, sharded and initialized, on which device, and in which order.


# %% name="build" answer=true
@torch.no_grad()
def copy_part(layer, own):
    """Copy an unsharded layer's own parameters and buffers to `own`, the same layer of a sharded model.

    Of each parameter it copies this rank's part, for any size and any mesh. Children of the layer are left out.
    """
    for key, full in layer.named_parameters(recurse=False):
        sharded = own.get_parameter(key)
        part = distribute_tensor(full, sharded.device_mesh, sharded.placements, src_data_rank=None)
        sharded.to_local().copy_(part.to_local())
    for key, full in layer.named_buffers(recurse=False):
        own.get_buffer(key).copy_(full)


def build(make_model, mesh, dtype, seed):
    ### BEGIN SOLUTION
    with torch.device("meta"):
        model, template = make_model(), make_model()
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    root = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=root)
    model.to_empty(device="cpu")
    torch.manual_seed(seed)
    for name, layer in template.named_modules():
        if hasattr(layer, "reset_parameters"):
            layer.to_empty(device="cpu", recurse=False)
            layer.reset_parameters()  # this layer alone, in full: the same numbers on every rank
            copy_part(layer, model.get_submodule(name))
            layer.to_empty(device="meta", recurse=False)
    return model
    ### END SOLUTION


# %% name="build_check" points=4
check("x7.build", build)

# %% name="build_hint"
hint("x7.build")

# %% [markdown] name="train_step_task"
# ## Part 2 · One update (4 points)
#
# **Contract.** `train_step(model, optimizer, micro_batches, max_norm)` is called on every rank, with a model that `build` returned and whose mesh contains all ranks, and with an optimizer that holds all of the model's parameters. Some of these may be frozen or unused; they do not change. The function takes one optimizer step and returns `(loss, norm)`.
#
# - `micro_batches` is a list of pairs `(tokens, targets)`, both of shape (n, T) and dtype int64; n may differ from pair to pair and from rank to rank. The list has the same length on every rank. `model(tokens)` returns logits (n, T, vocabulary); targets of -100 do not count. A micro-batch may have no target that counts, and a rank may have none in all of its micro-batches, but at least one rank has some.
# - The update equals that of a single process with the micro-batches of all ranks: each target that counts has the same weight, the gradient is clipped to the norm `max_norm` over the **whole** model (an infinite one clips nothing), and the optimizer steps once.
# - Each unit's gradient is reduced once per call, after the last micro-batch. Activations of only one micro-batch are held at a time (the previous logits may stay until the next ones replace them), and at most one full gradient of the model.
# - The micro-batches and the list stay as they are, and the random generator is neither reseeded nor set back. Gradients left in `p.grad` from before the call are ignored in every parameter group. After the call, gradient synchronization is on, and units are freed after each pass, as before; gradients may remain. Every layer is in training mode before the call, and remains so.
# - `loss` is the mean loss over the targets that count on all ranks, before the step, and `norm` is the norm of the whole gradient before clipping. Both are floats, the same on every rank.
#
# The cell provides functions that count a rank's targets and add up a number over all ranks.


# %% name="train_step" answer=true
def count_targets(micro_batches):
    """Return how many targets count in this rank's micro-batches, an int."""
    return sum((y != -100).sum().item() for _, y in micro_batches)


def sum_over_ranks(number):
    """Return the sum of a number over all ranks, a float. Every rank has to call it."""
    total = torch.tensor([number], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def train_step(model, optimizer, micro_batches, max_norm):
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    counted, total = sum_over_ranks(count_targets(micro_batches)), 0.0
    for i, (x, y) in enumerate(micro_batches, 1):
        model.set_requires_gradient_sync(i == len(micro_batches))
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / counted
        (loss * dist.get_world_size()).backward()  # fully_shard takes the mean over the ranks
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).full_tensor()
    optimizer.step()
    return sum_over_ranks(total), norm.item()
    ### END SOLUTION


# %% name="train_step_check" points=4
check("x7.step", train_step)

# %% name="train_step_hint"
hint("x7.step")

# %% [markdown] name="resume_task"
# ## Part 3 · A different number of ranks (2 points)
#
# **Contract.** `save(model, optimizer, step, folder)` and `load(model, optimizer, folder)` are called on every rank. `optimizer` is a `torch.optim.AdamW` with the model's parameters, in one or several groups.
#
# - `save` is called after at least one step in which every parameter had a gradient. It writes with `torch.distributed.checkpoint`, and with nothing else, everything that training needs to continue: weights and persistent buffers, the optimizer's moments and each group's options `lr`, `betas`, `eps` and `weight_decay` (schedules may have changed any of them, differently in each group), and `step`, an int. When it returns, the checkpoint is complete.
# - Each rank writes its own shards. No rank gathers a whole parameter to save or to load.
# - `load` fills a freshly built model and a fresh optimizer that has not stepped, on any mesh and any number of ranks, fewer or more than saved it, and returns `step`. Training continues with the same losses.
# - `folder` is a string, shared by the ranks; it may not exist yet, and holds all that is written. `save` changes nothing, `load` does not change the checkpoint, and neither reseeds the random generator. `load` leaves no gradients.


# %% name="resume" answer=true
def save(model, optimizer, step, folder):
    ### BEGIN SOLUTION
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=folder)
    ### END SOLUTION


def load(model, optimizer, folder):
    ### BEGIN SOLUTION
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return state["step"]
    ### END SOLUTION


# %% name="resume_check" points=2
check("x7.resume", save, load)

# %% name="resume_hint"
hint("x7.resume")

# %% [markdown] name="submit"
# ## Submit
#
# Save this notebook under its current name. Your instructor collects it as `YOUR_NAME/12b_x7_fits_on_no_rank.ipynb` and grades it with
#
# ```
# python -m helpers grade SUBMISSIONS --out GRADES
# ```
#
# The grader takes only your answer cells, runs them with different random numbers, and applies the same ten checks.
