# %% [markdown] name="title"
# # Selective checkpointing
#
# **A checkpointed block does not have to forget everything. You can choose operation by operation what to keep, what to recompute and what to move elsewhere,
# or let the compiler choose.**
#
# | | |
# |---|---|
# | After this you can | list what a block saves, part by part; write a policy that keeps the results that cost the most FLOPs per byte and would otherwise be recomputed, and tell a good policy from a dominated one; move or round saved tensors with hooks; give the compiler a memory budget; find the largest batch that fits, and what limits it |
# | Time | 100 to 110 minutes; a good place to stop is after section 2 |
# | Difficulty | ●●● |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | [[activation_checkpointing]] |
# | Syllabus | T9, T32, P5 |

# %% name="setup" setup=true
import contextlib
import functools
import itertools

from helpers import (
    COLORS,
    Claims,
    Elsewhere,
    MemoryMeter,
    Prediction,
    SmallGPT,
    check,
    count_flops,
    device_name,
    english,
    explore,
    hint,
    human_bytes,
    in_turns,
    pick_device,
    saved_tensor_bytes,
    show,
    show_table,
    sign_of_life,
)
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch._functorch import config as partitioner
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

device = pick_device()
claims = Claims()
aten = torch.ops.aten
MiB = 2**20
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="model_text"
# In [[activation_checkpointing]], a checkpointed block kept its input and nothing else. The whole block then ran again in the backward pass, except for what *early stop* skips: the last matmul of the MLP,
# whose result the backward pass does not need. The model and the tools are those of that lab:
#
# - a GPT with 24 narrow blocks, so that activations take nearly all of its memory;
# - a **policy** is a function that decides how to run block number i;
# - `measured(policy)` returns the meter and the FLOPs of one forward and backward pass.
#
# The next cells set them up, and measure the policies that choose among whole blocks, for comparison.

# %% name="model"
LAYERS = 24
WIDTH, BATCH = (512, 4) if device.type == "cuda" else (64, 4)  # a GPU is busy only with wider layers
LENGTH = 2 * WIDTH  # tokens per sequence
text = english(device)


def make_batch(sequences, length):
    """Return token ids and targets, each (sequences, length)."""
    return (stream[: sequences * length].view(sequences, length).clone() for stream in (text.train_x, text.train_y))


def make_gpt(layers=LAYERS, width=WIDTH, length=LENGTH):
    torch.manual_seed(0)
    return SmallGPT(layers=layers, width=width, context=length).to(device)


ids, targets = make_batch(BATCH, LENGTH)


# %% name="policies"
def loss_of(model, policy, ids=ids, targets=targets):
    x = model.tokens(ids) + model.positions(torch.arange(ids.shape[1], device=device))
    for i, block in enumerate(model.blocks):
        x = policy(block, x, i)
    return F.cross_entropy(model.head(model.norm(x)).flatten(0, 1), targets.flatten())


def plain(block, x, i):
    return block(x)


def every(k):
    """Checkpoint blocks 0, k, 2k, ..."""
    return lambda block, x, i: checkpoint(block, x, use_reentrant=False) if i % k == 0 else block(x)


def metered(policy):
    """Run forward and backward once under the meter."""
    model = make_gpt()
    with MemoryMeter(model) as meter:
        loss_of(model, policy).backward()
    return meter


def measured(policy):
    """Return the meter of one run, and its floating-point operations."""
    model = make_gpt()
    flops = count_flops(lambda: loss_of(model, policy).backward())  # this run also warms up
    return metered(policy), flops


# %% name="baselines"
with sign_of_life("the policies of the previous lab"):
    runs = {"plain": measured(plain), "every block": measured(every(1))}
    runs |= {f"every {k}": measured(every(k)) for k in (2, 3)}
(before, flops), (after, more_flops) = runs["plain"], runs["every block"]
for name, (meter, these_flops) in runs.items():
    print(f"{name:11} peak {human_bytes(meter.peak_bytes):>10}, arithmetic +{100 * (these_flops / flops - 1):.1f}%")

# %% [markdown] name="parts_text"
# ## 1 · What a block saves
#
# The GPT's block has LayerNorm, fused attention and an MLP with GELU. It saves 16 times its input ([[where_memory_goes]]). A Llama block has RMSNorm, rotary position embeddings and SwiGLU: three matrices,
# with an inner size of 2.75 × width here, instead of two with 4 × width. Both have about the same number of parameters.
#
# **Predict.** How many times the size of its input does the Llama block save?

# %% name="ledger_guess"
my_guess = None  # saved bytes / bytes of the input
### BEGIN GUESS
my_guess = 16  # as the GPT's
### END GUESS
ledger_guess = Prediction("A Llama block saves, relative to its input", my_guess, "times")

# %% name="ledger"
with sign_of_life("importing transformers"):
    from transformers import LlamaConfig, LlamaForCausalLM


def make_llama(kv_heads=4, layers=8):
    sizes = {"hidden_size": WIDTH, "intermediate_size": 11 * WIDTH // 4, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": kv_heads, "num_hidden_layers": layers, "max_position_embeddings": LENGTH}
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, use_cache=False, **sizes)).to(device).train()


def ledger(block, parts, forward):
    """Return what each part of `block` adds to the saved tensors, in multiples of the size of the block's input."""
    saved, inside, handles = {}, ["rest"], []

    def leave(*_):
        inside.pop()

    for name in parts:
        part = block.get_submodule(name)
        handles.append(part.register_forward_pre_hook(lambda *_, name=name: inside.append(name)))
        handles.append(part.register_forward_hook(leave))
    own = {p.untyped_storage().data_ptr() for p in block.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved.setdefault(storage.data_ptr(), (inside[-1], storage))  # counted where it is saved first
        return tensor.detach()  # an operation that saves its own output would otherwise keep itself alive

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    for handle in handles:
        handle.remove()
    by_part = {name: sum(s.nbytes() for part, s in saved.values() if part == name) for name in (*parts, "rest")}
    return {name: nbytes / result.nbytes for name, nbytes in by_part.items()}


# %% name="ledgers"
block, x = make_gpt(layers=1).blocks[0], torch.randn(BATCH, LENGTH, WIDTH, device=device, requires_grad=True)
ledgers = {"GPT": ledger(block, ("norm_1", "qkv", "out", "norm_2", "mlp"), lambda: block(x))}
for heads in (4, 1):
    llama = make_llama(heads, layers=1)
    layer, angles = llama.model.layers[0], llama.model.rotary_emb(x, torch.arange(LENGTH, device=device)[None])
    parts = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    forward = functools.partial(layer, x, position_embeddings=angles)
    ledgers[f"Llama, {heads} KV head{'s' * (heads > 1)}"] = ledger(layer, parts, forward)
ledger_guess.reveal(sum(ledgers["Llama, 4 KV heads"].values()))
for name, parts in ledgers.items():
    print(f"{name:18} {sum(parts.values()):5.2f}: {', '.join(f'{part} {size:.2f}' for part, size in parts.items())}")

# %% [markdown] name="ledger_explained"
# In multiples of the size of its input, each block saves
#
# | | GPT | Llama |
# |---|---|---|
# | first norm | 1: its input | 2: its input, and the normalized input before it is multiplied by the weight |
# | attention | 5: the norm's result, q, k, v, and the output | 5: the same; rotary embeddings add only small tables |
# | second norm | 1 | 2 |
# | MLP | 9: the norm's result; before and after GELU, 4 each | 12: the norm's result; gate, SiLU of the gate, up and their product, 2.75 each |
# | total | 16 | 21 |
#
# (The printed lines count a tensor where it is first saved, so the "rest" of the GPT holds q, k, v and the output of attention.) With one KV head instead of four, k and v
# shrink to a quarter. Fused kernels for RMSNorm or SwiGLU would save less.
#
# Korthikanti et al. (2022) published a figure of **34 bytes** per token per unit of width for a GPT block in 16-bit precision. It is the same ledger: 16 tensors
# of 2 bytes, and two dropout masks of 1 byte. For attention that is not fused, the paper adds 5 × heads × T / width bytes for the scores.
#
# ### Attention or MLP
#
# Without a fused kernel, a block also saves the T × T scores of every head. With fused attention these scores never exist in memory. So the value of
# "checkpoint attention only" depends on the kernel (and, since scores grow with T², on the sequence length).


# %% name="attention_only"
def attention_part(block, x):
    B, T, C = x.shape
    q, k, v = block.qkv(block.norm_1(x)).split(C, dim=-1)
    q, k, v = (t.view(B, T, block.heads, C // block.heads).transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + block.out(y.transpose(1, 2).reshape(B, T, C))


def mlp_part(block, x):
    return x + block.mlp(block.norm_2(x))


def attention_only(block, x, i):
    return mlp_part(block, checkpoint(attention_part, block, x, use_reentrant=False))


def mlp_only(block, x, i):
    return checkpoint(mlp_part, block, attention_part(block, x), use_reentrant=False)


halves = {"attention only": attention_only, "MLP only": mlp_only}
with sign_of_life("halves of blocks, with two kernels"):
    runs |= {name: measured(policy) for name, policy in halves.items()}
    with sdpa_kernel(SDPBackend.MATH):
        with_scores = {name: metered(policy) for name, policy in ({"plain": plain} | halves).items()}
fused = {name: runs[name][0] for name in with_scores}
for kernel, meters in {"fused": fused, "unfused": with_scores}.items():
    for name in halves:
        share = meters[name].peak_bytes / meters["plain"].peak_bytes
        print(f"{kernel} attention, {name:15} checkpointed: {share:.0%} of the peak without checkpointing")

# %% [markdown] name="policy_task"
# With fused attention, checkpointing the MLP saves more. Without it, checkpointing attention does.
#
# ## 2 · Operation by operation
#
# ### Your turn: keep the costly results
#
# A *selective* policy is asked about every operation in the block: keep the result, or recompute it?
#
# - The usual rule: matmuls are expensive, everything else is cheap.
# - But matmuls differ. An element that sums 256 terms costs four times as much as one that sums 64, and takes the same memory.
#
# So compute for each operation how many FLOPs **one element of its result** costs, and keep the expensive results.
#
# **Contract.** `keep_costly(least)` returns a `context_fn` for `checkpoint(..., use_reentrant=False, context_fn=...)`: a function without arguments that
# returns `create_selective_checkpoint_contexts(policy)`.
#
# - PyTorch calls `policy(context, op, *args, **kwargs)` for each operation. The policy returns `CheckpointPolicy.MUST_SAVE` to keep the result and
#   `CheckpointPolicy.PREFER_RECOMPUTE` to drop it.
# - A matmul of (m, k) and (k, n) costs 2·k FLOPs per element of its result. `FACTOR` lists these operations, each with the position of its first factor in `args`.
# - Fused attention costs 4·T FLOPs per element, for T keys. `is_attention` recognizes it. Its first arguments are q, k and v, each (..., length, d).
# - Every other operation costs 0.
# - Results that cost `least` FLOPs per element or more are kept, all others dropped. `least` is above 0 and need not be an integer.
# - One `context_fn` serves many blocks: each call returns new contexts.

# %% name="policy" answer=true reveal=true
FACTOR = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.linear.default: 0}


def is_attention(op):
    return op.name().startswith("aten::_scaled_dot_product")


def keep_costly(least):
    ### BEGIN SOLUTION
    def flops_per_element(op, args):
        if op in FACTOR:
            return 2 * args[FACTOR[op]].shape[-1]
        return 4 * args[1].shape[-2] if is_attention(op) else 0

    def policy(context, op, *args, **kwargs):
        worth_it = flops_per_element(op, args) >= least
        return CheckpointPolicy.MUST_SAVE if worth_it else CheckpointPolicy.PREFER_RECOMPUTE

    return functools.partial(create_selective_checkpoint_contexts, policy)
    ### END SOLUTION


# %% name="policy_check"
keep_costly = check("selective_checkpointing.policy", keep_costly)

# %% name="policy_hint"
hint("selective_checkpointing.policy")

# %% [markdown] name="selective_text"
# In FLOPs per element, with sequences twice as long as the model is wide, our block has
#
# - 2 × width in the matmuls for q, k and v, for the output of attention and for the first layer of the MLP;
# - 8 × width in the second layer of the MLP, which sums 4 × width terms;
# - 8 × width in attention.
#
# We compare three policies: `keep_costly(2 * width)`, called *keep from 2 × width* in the tables; `keep_costly(4 * width)`; and the usual rule, "keep matmuls":
# keep the result if the operation is in `FACTOR`.
#
# **Predict.** How much arithmetic does "keep matmuls" add, as a percentage of the plain run's?

# %% name="selective_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 0  # all matmuls are kept, and the rest costs no FLOPs that count
### END GUESS
matmuls_guess = Prediction("Keep matmuls: more arithmetic", my_guess, "%", difference=True)


# %% name="selective"
def selective(context_fn):
    return lambda block, x, i: checkpoint(block, x, use_reentrant=False, context_fn=context_fn)


def keep_matmuls(context, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in FACTOR else CheckpointPolicy.PREFER_RECOMPUTE


usual_rule = functools.partial(create_selective_checkpoint_contexts, keep_matmuls)


def policies_for(width):
    """Return all policies by name; those of `keep_costly` suit a model of this width."""
    return {
        "plain": plain,
        "every block": every(1),
        "every 2": every(2),
        "every 3": every(3),
        **halves,
        "keep matmuls": selective(usual_rule),
        "keep from 2 x width": selective(keep_costly(2 * width)),
        "keep from 4 x width": selective(keep_costly(4 * width)),
    }


policies = policies_for(WIDTH)
with sign_of_life("three selective policies"):
    runs |= {name: measured(policy) for name, policy in policies.items() if name not in runs}
matmuls_guess.reveal(100 * (runs["keep matmuls"][1] / flops - 1))
for name in list(policies)[-3:]:
    meter, these_flops = runs[name]
    print(f"{name:20} peak {human_bytes(meter.peak_bytes):>10}, arithmetic +{100 * (these_flops / flops - 1):.1f}%")

# %% [markdown] name="attention_text"
# Fused attention is not in `FACTOR`: its kernel has a name of its own, and the usual rule recomputes it.
#
# In each block, *keep from 4 × width* keeps two results: that of attention, and that of the MLP's second layer. Both cost 8 × width FLOPs per element. Now keep only the result of attention.
#
# **Predict.** How much arithmetic does this add to that of *keep from 4 × width*, as a percentage of the plain run's arithmetic? (The second layer of the MLP does 4 of the 16 units of a block's forward pass,
# and a forward and backward pass is about three forward passes.)

# %% name="attention_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * 4 / 16 / 3  # the second layer of the MLP runs again in every block
### END GUESS
attention_guess = Prediction(
    "Keep attention alone: more arithmetic than from 4 x width", my_guess, "%", difference=True
)


# %% name="attention"
def keeps(is_kept):
    """Return a policy that keeps the results for which `is_kept(op)`, but not that of the MLP's second layer."""

    def policy(context, op, *args, **kwargs):
        second = op in FACTOR and args[FACTOR[op]].shape[-1] == 4 * WIDTH  # the only matmul over so many terms
        kept = is_kept(op) and not second
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return selective(functools.partial(create_selective_checkpoint_contexts, policy))


lean = {
    "keep matmuls": keeps(lambda op: op in FACTOR),
    "keep from 2 x width": keeps(lambda op: op in FACTOR or is_attention(op)),
    "keep from 4 x width": keeps(is_attention),  # attention alone is left
}
with sign_of_life("three policies without the last result"):
    lean_runs = {name: measured(policy) for name, policy in lean.items()}
attention_guess.reveal(100 * (lean_runs["keep from 4 x width"][1] - runs["keep from 4 x width"][1]) / flops)
table = [("", "peak", "without the last result", "more arithmetic", "without the last result")]
for name, each in lean_runs.items():
    sizes = (f"{meter.peak_bytes / MiB:.1f} MiB" for meter, _ in (runs[name], each))
    more = (f"{100 * (these_flops / flops - 1):.1f}%" for _, these_flops in (runs[name], each))
    table.append((name, *sizes, *more))
show_table(table)
new = {"keep attention": "keep from 4 x width", "2 x width, not the last": "keep from 2 x width"}
policies |= {name: lean[old] for name, old in new.items()}
runs |= {name: lean_runs[old] for name, old in new.items()}
one_result = ids.numel() * WIDTH * 4
print(f"{LAYERS} results of {human_bytes(one_result)} each: {human_bytes(LAYERS * one_result)}")
for name in ("keep from 4 x width", "keep attention"):
    part = (before.peak_bytes - runs[name][0].peak_bytes) / (before.peak_bytes - after.peak_bytes)
    cost = (runs[name][1] - flops) / (more_flops - flops)
    print(f"{name:19} {part:.0%} of the saving of 'every block', for {cost:.0%} of its extra arithmetic")

# %% [markdown] name="pareto_text"
# Dropping the result of the MLP's second layer adds no arithmetic, because early stop ends the second run before that layer. The backward pass does not need its result, so keeping it only takes memory: one tensor per block, in all three policies.
# The cost per element does not show this. PyTorch asks the policy about one operation at a time, during the forward pass, when neither PyTorch nor `keep_costly` knows whether the backward pass will need the result.
#
# ### All in one picture
#
# Each policy is a point: peak against arithmetic on the left, peak against time on the right. Lower left is better. A policy is **dominated** if
# another one needs no more memory and no more arithmetic.
#
# **Predict.** "Keep from 2 × width" recomputes no matmul and no attention. How much more time than plain does it take on this device?

# %% name="pareto_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 10  # norms, GELU and sums
### END GUESS
policy_guess = Prediction("Keep from 2 x width: more time", my_guess, "%", difference=True)

# %% name="pareto"
deep = make_gpt(layers=LAYERS // 2)  # half of the blocks take half of the time


def run(policy):
    deep.zero_grad()
    loss_of(deep, policy).backward()


ways = {name: (runs[name][0].peak_bytes / MiB, 100 * (runs[name][1] / flops - 1)) for name in policies}
dominated_by = {
    name: [other for other, (x, y) in ways.items() if (x, y) != here and x <= here[0] and y <= here[1]]
    for name, here in ways.items()
}
with sign_of_life("eleven policies on 12 blocks, taking turns"):
    taken = in_turns({name: lambda policy=policy: run(policy) for name, policy in policies.items()})
quartiles = {name: taken.more_time(name) for name in policies}
policy_guess.reveal(quartiles["keep from 2 x width"][1])
table = [("", "peak", "more arithmetic", "time", "middle 50%", "dominated by")]
for name, (peak, more) in ways.items():
    low, middle, high = quartiles[name]
    spread = "-" if name == "plain" else f"{low:.0f} to {high:.0f}%"
    by = dominated_by[name]
    table.append((name, f"{peak:.1f} MiB", f"{more:.1f}%", f"{middle:+.0f}%", spread, by[0] if by else "-"))
show_table(table)

# %% name="pareto_figure"
figure = Figure(figsize=(9, 3.8), layout="constrained")
left, right = figure.subplots(1, 2)
front = sorted(ways[name] for name, by in dominated_by.items() if not by)
left.plot(*zip(*front, strict=True), color=COLORS[7], lw=1)
looks = zip(itertools.cycle(COLORS), itertools.cycle("osD^v<>PXh*"), strict=False)
for (name, (peak, more)), (color, marker) in zip(ways.items(), looks, strict=False):
    low, middle, high = quartiles[name]
    left.plot(peak, more, marker, color=color, ls="", label=name)
    right.errorbar(peak, middle, [[middle - low], [high - middle]], fmt=marker, color=color, capsize=3)
figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
limits = (0, 1.1 * before.peak_bytes / MiB)
left.set(title="in arithmetic", xlabel="peak, MiB", ylabel="more FLOPs than plain, %", xlim=limits)
right.set(title=f"in time, width {WIDTH}", xlabel="peak, MiB", ylabel="more time than plain, %", xlim=limits)
show(
    figure,
    "Left, arithmetic against peak: a line joins the policies that are not dominated, such as keep attention; the others lie above it or to its right. "
    "Right, time against peak, with error bars for the middle half of the rounds.",
)

# %% [markdown] name="selective_explained"
# The left picture, on arithmetic:
#
# - *Keep from 2 × width* repeats no matmul and no attention, and is dominated by the same policy without the last result. Norms, GELU and sums account for much of the memory that blocks use.
# - *Keep matmuls* runs attention again and is dominated by *MLP only*, which recomputes the widest tensors of the block. They cost few FLOPs per byte.
# - *Keep attention* drops the wide tensors and the last result: nearly the saving of *every block*, for two thirds of its extra FLOPs. It dominates *keep from 4 × width*.
# - *Every block* has the lowest peak of all.
#
# So ask two questions. Would this result be computed again at all? If not, drop it. **Of the results that would be computed again, keep those that cost the most FLOPs per byte.** (*Plain* is dominated because only matmuls
# and attention count as arithmetic here. Only the policies in the table are compared: another one may beat them all.)
#
# (If a time is negative, or if its middle half spans tens of percentage points, other programs disturbed the rounds: run the cell again when the machine is quieter.)
#
# Measured by time (right picture), the ranking is different: PyTorch calls the policy in Python for every operation. With narrow layers these calls can take longer than the arithmetic that they
# save: compare the selective policies with *every block*. If they are slower on your device, checkpoint every block or *MLP only* there, or let the compiler choose (section 4). Does this hold for layers that are eight times as wide (four times on a GPU)?
#
# **Predict.** How much more time than plain does *keep from 2 × width* take there?

# %% name="wider_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = quartiles["keep from 2 x width"][1] / 2  # wider layers have more arithmetic, but Python has the same work
### END GUESS
wider_guess = Prediction("Keep from 2 x width, wide layers: more time", my_guess, "%", difference=True)

# %% name="wider"
wider, longer, sequences = (2048, 1024, 4) if device.type == "cuda" else (512, 256, 1)
wide_model, batch = make_gpt(layers=2, width=wider, length=longer), list(make_batch(sequences, longer))
chosen = ("plain", "every block", "MLP only", "keep matmuls", "keep from 2 x width")
of_wider = {name: policy for name, policy in policies_for(wider).items() if name in chosen}


def wider_step(policy):
    wide_model.zero_grad()
    loss_of(wide_model, policy, *batch).backward()


with sign_of_life(f"five policies at width {wider}"):
    work = {name: count_flops(lambda policy=policy: wider_step(policy)) for name, policy in of_wider.items()}
    taken = in_turns({name: lambda policy=policy: wider_step(policy) for name, policy in of_wider.items()})
wider_guess.reveal(taken.more_time("keep from 2 x width")[1])
table = [("", "more arithmetic", f"time, width {wider}", "middle half", f"time, width {WIDTH}")]
for name in chosen:
    low, middle, high = taken.more_time(name)
    spread = "-" if name == "plain" else f"{low:.0f} to {high:.0f}%"
    narrow = f"{quartiles[name][1]:+.0f}%"
    table.append((name, f"{100 * (work[name] / work['plain'] - 1):.1f}%", f"{middle:+.0f}%", spread, narrow))
show_table(table)

# %% [markdown] name="moved_task"
# The last column shows the same policies with narrow layers. First compare the ranges (the middle 50% of the rounds): where they overlap, these rounds do not show which policy is faster.
# Where they do not, expect less added time with wide layers, because Python takes a smaller share of it. A compiled block needs no Python at all for this choice (section 4).
#
# ## 3 · Moved instead of recomputed
#
# Activations can also be kept elsewhere and fetched when they are needed. Autograd has hooks for that. It calls `pack` with each tensor that it saves,
# and keeps what `pack` returns. In the backward pass it calls `unpack` with that object, and `unpack` returns the tensor. (PyTorch's `checkpoint` is built from
# such hooks: `pack` discards the tensor, and `unpack` runs the block again.)
#
# ### Your turn: hooks
#
# **Contract.** `moved(parameters, put, get, least)` returns a context manager, `torch.autograd.graph.saved_tensors_hooks(pack, unpack)`. Tensors that are
# saved inside it are put away.
#
# - `put(tensor)` stores a copy and returns a ticket, which may be any object, including a tensor. `get(ticket)` returns the tensor. Call `get` in the backward pass only;
#   if the graph is retained, a second backward pass calls it again.
# - Put away floating-point tensors of `least` bytes or more, counted by the tensor's own elements (`tensor.nbytes`) even if its storage is larger. All others stay.
# - `parameters` stay, and so does every tensor that shares memory with one. (They exist anyway, and a linear layer saves its weight *transposed*.)
# - For a tensor that was put away, only the ticket is kept, and only as long as the graph needs it: after a backward pass that does not retain the graph, nothing is kept.
# - For a tensor that stays, keep `tensor.detach()`. Otherwise an operation that saves its own result would keep itself alive.


# %% name="moved" answer=true reveal=true
def moved(parameters, put, get, least):
    ### BEGIN SOLUTION
    there = {p.untyped_storage().data_ptr() for p in parameters}

    def pack(tensor):
        exists = tensor.untyped_storage().data_ptr() in there
        if exists or tensor.nbytes < least or not tensor.is_floating_point():
            return False, tensor.detach()
        return True, put(tensor)

    def unpack(packed):
        away, kept = packed
        return get(kept) if away else kept

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    ### END SOLUTION


# %% name="moved_check"
moved = check("selective_checkpointing.moved", moved)

# %% name="moved_hint"
hint("selective_checkpointing.moved")

# %% [markdown] name="offload_text"
# Where can saved tensors go?
#
# - **Away.** From a GPU's memory to the host's. On a CPU they are already in the host's memory, so here they move to files. The meter does not count
#   files, but the operating system caches them in the same RAM as long as there is room. So on a CPU the cell shows the mechanism and its cost, but frees no RAM.
# - **Nowhere.** They can stay where they are, in half the bytes: as BF16.
#
# `Elsewhere` moves tensors away: `put(tensor)` stores a copy and returns a ticket, and `get(ticket)` loads the copy.
#
# **Predict.** A step moves every large tensor out and back in. By what percentage is it slower than the plain step?

# %% name="offload_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 2 * quartiles["every block"][1]  # twice as slow as recomputing
### END GUESS
moving_guess = Prediction("Moved away: more time than plain", my_guess, "%", difference=True)


# %% name="offload"
def step_under(model, put, get, least=64 * 1024):
    """Run forward and backward; tensors that autograd saves go through `put` and `get`."""
    model.zero_grad()
    with moved(model.parameters(), put, get, least):
        loss = loss_of(model, plain)
    loss.backward()


elsewhere = Elsewhere()
hooks = {
    "moved away": (elsewhere.put, elsewhere.get),
    "kept in BF16": (lambda t: t.bfloat16(), lambda t: t.float()),
}
found, model = {}, make_gpt()
loss_of(model, plain).backward()
right = torch.cat([p.grad.flatten() for p in model.parameters()])
with sign_of_life("moving tensors"):
    for name, (put, get) in hooks.items():
        with MemoryMeter(model) as meter:
            step_under(model, put, get)
        mine = torch.cat([p.grad.flatten() for p in model.parameters()])
        found[name] = meter, ((mine - right).norm() / right.norm()).item()
    moved_bytes = elsewhere.nbytes
    steps = {"plain": lambda: run(plain), "every block": lambda: run(every(1))}
    steps |= {name: lambda pair=pair: step_under(deep, *pair) for name, pair in hooks.items()}
    taken = in_turns(steps, 4)
quartiles |= {name: taken.more_time(name) for name in hooks}
moving_guess.reveal(quartiles["moved away"][1])
for name, (meter, error) in found.items():
    low, middle, high = quartiles[name]
    print(
        f"{name:13} peak {human_bytes(meter.peak_bytes)}, {middle:+.0f}% time ({low:.0f} to {high:.0f}%), gradient off by {error:.1e}"
    )
print(f"each step moves {human_bytes(moved_bytes)} out, and the same amount back")
low, middle, high = taken.more_time("every block")
print(f"every block checkpointed, in the same rounds: {middle:+.0f}% time ({low:.0f} to {high:.0f}%)")

# %% [markdown] name="offload_explained"
# - **Moving saved tensors away** adds no arithmetic and leaves the gradient unchanged, at the price of a round trip for every byte. Whether this is faster than recomputing
#   depends on the link: compare its bandwidth with the bytes per second that recomputation produces ([[where_the_time_goes]]).
# - **On a GPU**, the copies can run alongside the arithmetic if they use pinned memory and a stream of their own.
#   `torch.autograd.graph.save_on_cpu(pin_memory=True)` is the one-line version, without a separate stream.
# - **Saving them in BF16** leaves the forward pass unchanged. Only the backward pass works with rounded values. The relative error of the gradient is smaller than that of
#   rounding a single number to 8 significant bits, because many rounding errors average out.
#
# Either method can be combined with checkpointing. Then only the inputs of the blocks are moved or rounded.
#
# ## 4 · Let the compiler choose
#
# `torch.compile` sees a whole block, forward and backward, before it runs. It can choose what to keep: it minimizes what is recomputed under a memory
# budget. It also knows which results the backward pass needs, so it keeps no result that is not needed.
#
# - `activation_memory_budget` is 1 for what the compiler keeps by default, and 0 for "keep only the inputs".
# - Here each block is compiled by itself. All 24 have the same code, so it is compiled once.
# - The backend used here only splits the graph in two and needs no C++ compiler. The default backend would also fuse the kernels.
#
# Order matters: checkpoint a block first, then compile it, then shard it with FSDP ([[fully_shard]] tries the other orders).

# %% name="budget"
model = make_gpt()


def compiled_with(budget):
    """Return the bytes that autograd saves between the passes."""
    torch._dynamo.reset()
    with partitioner.patch(activation_memory_budget=budget):
        one_block = torch.compile(lambda block, x: block(x), backend="aot_eager_decomp_partition")
        return saved_tensor_bytes(lambda: loss_of(model, lambda block, x, i: one_block(block, x)), model.parameters())


with sign_of_life("compiling a block three times"):
    compiled = {budget: compiled_with(budget) for budget in (1.0, 0.4, 0.0)}
without = saved_tensor_bytes(lambda: loss_of(model, plain), model.parameters())
table = [("budget", "saved", "of budget 1"), ("no compiler", human_bytes(without), f"{without / compiled[1.0]:.0%}")]
for budget, kept_bytes in compiled.items():
    table.append((f"{budget:.1f}", human_bytes(kept_bytes), f"{kept_bytes / compiled[1.0]:.0%}"))
show_table(table)

# %% [markdown] name="budget_explained"
# The saved bytes follow the budget. With a budget of 1, this backend saves about as much as autograd does without a compiler. No policy runs while the model trains: the choice was made once, when the block was compiled.
#
# ## 5 · The head, and whole models
#
# ### The head
#
# Logits are large: tokens × vocabulary. Checkpoint the output head together with the loss, and the logits are not saved.
#
# **Predict.** For a vocabulary of 8,000, what is the ratio of the peaks, checkpointed to plain?

# %% name="head_guess"
my_guess = None  # peak, checkpointed / plain
### BEGIN GUESS
my_guess = 0.5  # as if the logits no longer existed
### END GUESS
head_guess = Prediction("Peak with a checkpointed head / plain", my_guess, "times")

# %% name="head"
torch.manual_seed(0)
head, norm = nn.Linear(WIDTH, 8000, bias=False).to(device), nn.LayerNorm(WIDTH).to(device)
hidden = torch.randn(BATCH * LENGTH, WIDTH, device=device, requires_grad=True)


def head_loss(hidden):
    return F.cross_entropy(head(norm(hidden)), targets.flatten())


head_peaks = []
for name, run_head in {
    "plain": lambda: head_loss(hidden),
    "checkpointed": lambda: checkpoint(head_loss, hidden, use_reentrant=False),
}.items():
    with MemoryMeter(head) as meter:
        run_head().backward()
    head_peaks.append(meter.peak_bytes)
    head.zero_grad()
    norm.zero_grad()
    hidden.grad = None
    kept_bytes = human_bytes(sum(meter.stages[0].held_after.values()))
    print(f"{name:13} after the forward pass {kept_bytes:>10}, peak {human_bytes(meter.peak_bytes)}")

left = head_peaks[1] / head_peaks[0]
head_guess.reveal(left)

# %% [markdown] name="head_explained"
# Less is held *after the forward pass*, but the peak stays the same. The backward pass starts with the head, so its logits are recomputed at the very moment of
# the peak. Instead, compute the loss in chunks of tokens and checkpoint each chunk ([[oom_clinic]] does this).
#
# ### Hugging Face models
#
# Models from `transformers` have a switch that checkpoints every block, in training mode only. The cache of keys and values for generating text has to
# be off. In recent releases of version 5 the switch is called `activation_checkpointing_enable` (formerly `gradient_checkpointing_enable`), and it has two options:
#
# - `every_n_layers=2` checkpoints every second block;
# - `offload=True` also moves the saved inputs of the blocks to pinned host memory. It needs a GPU: without one, PyTorch cannot pin memory, and the first step raises an error.

# %% name="hugging_face"
held = {}
for name, options in {"plain": None, "every block": {}, "every_n_layers=2": {"every_n_layers": 2}}.items():
    llama = make_llama()
    if options is not None and hasattr(llama, "activation_checkpointing_enable"):
        llama.activation_checkpointing_enable({"use_reentrant": False}, **options)
    elif options == {}:  # the name in version 4 and early releases of version 5
        llama.gradient_checkpointing_enable({"use_reentrant": False})
    elif options:
        continue
    with MemoryMeter(llama) as meter:
        llama(input_ids=ids, labels=ids).loss.backward()
    held[name] = meter.peak_bytes
    print(f"{name:17} peak {human_bytes(meter.peak_bytes):>10}, in {meter.peak_at}")

# %% [markdown] name="batch_text"
# ## 6 · The largest batch
#
# Less memory per sequence means a larger batch. How much larger, on a GPU that you may not have? Use the **virtual GPU** from [[where_memory_goes]]: inside `with virtual_gpu("rtx-4090-24gb"):` your
# program's allocations follow the rules of PyTorch's CUDA allocator, and operations compute nothing.
#
# On that virtual GPU, train a model the size of GPT-2 in FP32 with AdamW: 12 layers of width 768, a vocabulary of 50,257, and sequences of 1,024 tokens. Per token, the forward pass saves
# 12 × 16 × 768 = 147,456 numbers in the blocks. A tensor of logits has 50,257.
#
# **Predict.** By what factor does the largest batch that fits grow when every block is checkpointed?

# %% name="batch_guess"
my_guess = None  # times the largest plain batch
### BEGIN GUESS
my_guess = (147_456 + 50_257) / (12 * 768 + 50_257)  # a block saves its input only; the logits stay
### END GUESS
batch_guess = Prediction("Largest batch, every block checkpointed / plain", my_guess, "times")


# %% name="batch"
def gpt_loss(model, ids, checkpointed, chunks):
    """Return the loss of token ids (B, T + 1). With more than one chunk, each chunk of the head and loss is checkpointed."""
    x = model.tokens(ids[:, :-1]) + model.positions.weight
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
    rows, labels = model.norm(x).flatten(0, 1), ids[:, 1:].flatten()
    if chunks == 1:
        return F.cross_entropy(model.head(rows), labels)

    def chunk_loss(rows, labels):
        return F.cross_entropy(model.head(rows), labels, reduction="sum")

    pairs = zip(rows.chunk(chunks), labels.chunk(chunks), strict=True)
    return sum(checkpoint(chunk_loss, *pair, use_reentrant=False) for pair in pairs) / len(labels)


def on_4090(batch, checkpointed, chunks):
    """Train two steps on a virtual RTX 4090; return the record of the run."""
    with virtual_gpu("rtx-4090-24gb") as run, contextlib.suppress(torch.OutOfMemoryError):
        model = SmallGPT(50257, 1024, layers=12, width=768).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            ids = torch.randint(50257, (batch, 1025)).to("cuda")
            gpt_loss(model, ids, checkpointed, chunks).backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


@functools.cache
def trains(batch, checkpointed, chunks):
    return not on_4090(batch, checkpointed, chunks).ledger.refusals


# %% name="largest_batch"
variants = {"plain": (False, 1), "every block": (True, 1), "every block, loss in 16 chunks": (True, 16)}
table, largest = [("", "peak with batch 8", "largest batch, estimated", "largest batch that trains")], {}


def fill_4090(*variant):
    """Return the peak with 8 sequences, and the largest batch: as estimated, and as it trains."""
    eight = on_4090(8, *variant)
    estimated = batch = eight.largest_batches["rtx-4090-24gb"]
    while not trains(batch, *variant):  # an estimate may be too high
        batch -= 1
    while trains(batch + 1, *variant):  # or too low
        batch += 1
    return eight.peak_allocated, estimated, batch


for name, variant in variants.items():
    peak, estimated, largest[name] = beside_real_gpu(fill_4090, *variant)
    table.append((name, human_bytes(peak), str(estimated), str(largest[name])))
show_table(table)
batch_guess.reveal(largest["every block"] / largest["plain"], how="simulated")

# %% [markdown] name="batch_explained"
# The logits limit the batch. Add up what the run in the second row holds with 8 sequences: weights and moments of 124 million parameters take 1.4 GiB, and the inputs of the blocks 0.3 GiB. Of the 6.3 GiB,
# 4.6 is left, three times the 1.5 GiB of a tensor of logits: the log-softmax, its gradient, and the gradient of the logits. Three such tensors have 150,771 numbers per token, a little more than everything that the plain blocks save, and
# checkpointing the blocks does not affect them. **After each change, look at the peak again: another category may now be the largest.** With the loss in chunks, each chunk keeps only its input and recomputes
# its logits, so the batch grows much further.
#
# The estimate comes from the run with 8 sequences: `run.largest_batches` scales the parts that grow with the batch. With every block checkpointed it is too high. To see why, run `print(beside_real_gpu(on_4090, 27, True, 1))` in a new cell: with one more sequence
# than fits, the program fails well below 23.1 GiB (what PyTorch can use of the 24), because the free memory is in pieces and none of them is large enough for a tensor of logits ([[memory_profiling]]).

# %% [markdown] name="play_text"
# ## 7 · Explore
#
# The figure shows memory over a forward and a backward pass under each policy. For each policy, find the peak: is it at the loss, in the first block that recomputes, or at the end of the
# backward pass? How much of each spike is recomputed?
#
# A note on the categories: the meter counts a tensor as an *activation* if autograd saves it. Results that a policy keeps are stored by `checkpoint` itself, so the meter shows them as *temporaries*. Under a selective
# policy, temporaries that pile up through the forward pass are the kept results.

# %% name="play"
explore(
    lambda policy: runs[policy][0].plot(f"{policy}; peak {human_bytes(runs[policy][0].peak_bytes)}"),
    "Memory over a forward and a backward pass: a curve that rises to the loss and falls, with a spike for each block that recomputes something.",
    policy=("keep attention", tuple(policies)),
)

# %% [markdown] name="summary_text"
# ## 8 · Before and after

# %% name="summary"
table = [("", "peak", "of plain", "more arithmetic", "time", "middle 50%")]
peaks = {name: (MiB * peak, more) for name, (peak, more) in ways.items()}
peaks |= {name: (meter.peak_bytes, 0.0) for name, (meter, _) in found.items()}
for name, (peak, more) in peaks.items():
    low, middle, high = quartiles[name]
    share, spread = f"{peak / before.peak_bytes:.0%}", "-" if name == "plain" else f"{low:.0f} to {high:.0f}%"
    table.append((name, human_bytes(peak), share, f"{more:.1f}%", f"{middle:+.0f}%", spread))
show_table(table)
print("(moved away: on a CPU, to files that the system caches in RAM; the peak does not count them)")
gpt12 = f"GPT, {len(deep.blocks)} blocks of width {WIDTH}, this device"
for name in ("MLP only", "keep from 2 x width", "moved away"):
    claims.figure(f"{name}, more time", gpt12, quartiles[name][1], "%")
claims

# %% [markdown] name="recap"
# ## Recap
#
# - This lab's GPT block saves 16 times its input, a Llama block about 21 times. Fused attention saves no scores. So the MLP holds the most memory, and it costs few FLOPs
#   per byte to recompute.
# - In terms of arithmetic, choosing *what* to keep inside a block beats choosing *which* blocks to checkpoint. Of the results that would be computed again, keep those that cost the most FLOPs per byte, including the result of attention.
#   Drop what early stop never recomputes. In terms of time, a policy in Python costs the most with narrow layers. The compiler chooses once.
# - A pair of hooks can also move saved tensors or round them.
# - A checkpointed head does not lower the peak, because its logits return when the backward pass starts. Computing the loss in chunks does lower it.
# - After each change, find the peak again.
#
# **What to reach for when.** If the activations of the blocks are the largest category, checkpoint every block ([[activation_checkpointing]]). Then keep as much as
# you can afford, with a selective policy or the compiler's budget. If logits are the largest, compute the loss in chunks. If the link to the host is fast, move the inputs of the blocks there.
#
# **Sources.** Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*; PyTorch documentation, *Hooks for
# autograd saved tensors*; PyTorch blog 2025, *Current and New Activation Checkpointing Techniques in PyTorch*.
