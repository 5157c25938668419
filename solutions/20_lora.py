# %% [markdown] name="title"
# # LoRA, and 7B in 24 GB
#
# **Freeze the model and train a small low-rank correction beside it. This lets you fine-tune a model of 7 billion parameters on one consumer GPU.**
#
# | | |
# |---|---|
# | After this you can | write LoRA and merge it; account for every byte of a LoRA step; choose rank, alpha and targets, and compare methods fairly; quantize to NF4 by hand and fine-tune on a 4-bit base; plan a 7B fine-tune for a 24 GB or 16 GB GPU before you rent it, and state what it costs in time |
# | Time | 85 to 115 minutes; a good place to stop is after section 5 |
# | Difficulty | ●●○ |
# | Needs | a CPU; bitsandbytes for QLoRA; a GPU with 20 GB or more for one cell that runs a 7B model |
# | Before this | labs [[#where_memory_goes]], [[#mixed_precision]], [[#gradient_accumulation]], [[#activation_checkpointing]] and [[#memory_profiling]]; [[#oom_clinic]] helps |
# | Syllabus | T25, C16 |

# %% name="setup" setup=true
import contextlib
import copy
import importlib.util
import math
import tempfile
import warnings

# %% name="setup_helpers" setup=true
from helpers import (
    CATEGORIES,
    Claims,
    GiB,
    MemoryMeter,
    MiB,
    Prediction,
    Recipe,
    TokensLine,
    category_bars,
    category_table,
    check,
    compare,
    count_flops,
    count_parameters,
    device_name,
    english,
    explore,
    find_gpu,
    fine_tune,
    hint,
    human_bytes,
    levels_picture,
    lora_picture,
    measure_recipe,
    pick_device,
    planned,
    profile_step,
    python_source,
    show,
    show_table,
    supports,
)
from helpers.exercises.lora.nf4 import LEVELS
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from peft import (
    LoraConfig,
    get_peft_model,
    prepare_model_for_kbit_training,
)
from peft.optimizers import create_loraplus_optimizer
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.utils import logging

logging.disable_progress_bar()  # for saving and loading, which take a moment here
claims = Claims()
device = pick_device()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}")

# %% [markdown] name="idea_text"
# ## 1 · A low-rank correction
#
# Fine-tuning changes the weights W of a layer by some ΔW. **LoRA** (*low-rank adaptation*) leaves W unchanged and writes ΔW as the product of two thin matrices:
#
# y = x Wᵀ + (α / r) · (x Aᵀ) Bᵀ, with A of shape (r, in) and B of shape (out, r).
#
# B starts at zero, so at first nothing changes. Only A and B are trained. The factor α / r is meant to let you keep the learning rate when you change the rank. Many people set α = 2 r, so that the factor stays the same.

# %% name="layer_picture"
show(
    lora_picture(),
    "x goes through the frozen W and, in parallel, through the thin A and B, whose product is scaled and added. Only A and B are trained.",
)

# %% [markdown] name="layer_task"
# ### Your turn: the layer
#
# **Contract.** `forward(x)` of the layer below takes `x` of shape (..., in) and returns (..., out): the output of the frozen layer plus `scale` · (x Aᵀ) Bᵀ. It creates no matrix as large as W. Gradients reach A, B and x. `x` is not changed, and it need not be contiguous.


# %% name="layer" answer=true reveal=true
class LoRA(nn.Module):
    """A frozen linear layer with a trained correction of rank r."""

    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        like = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.A = nn.Parameter(torch.empty(rank, linear.in_features, **like))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank, **like))  # zero: the first step starts from W
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))  # as in nn.Linear
        self.scale = alpha / rank

    def forward(self, x):
        ### BEGIN SOLUTION
        return self.linear(x) + self.scale * F.linear(F.linear(x, self.A), self.B)
        ### END SOLUTION

    @torch.no_grad()
    def merged(self):
        """An ordinary linear layer with the correction added to its weight."""
        linear = copy.deepcopy(self.linear)
        linear.weight += self.scale * (self.B @ self.A)
        return linear


# %% name="layer_check"
LoRA = check("lora.layer", LoRA)

# %% name="layer_hint"
hint("lora.layer")

# %% name="lora"
torch.manual_seed(0)
plain = nn.Linear(64, 48)
x = torch.randn(5, 64)
layer = LoRA(copy.deepcopy(plain), rank=4, alpha=8)
print("before training, LoRA == plain:", torch.equal(layer(x), plain(x)))
layer(x).square().mean().backward()
print(f"gradients: A {layer.A.grad.norm():.3f}, B {layer.B.grad.norm():.3f}, W {layer.linear.weight.grad}")
with torch.no_grad():
    layer.B.normal_()
distance = ((layer.merged()(x) - layer(x)).norm() / layer(x).norm()).item()
print(f"with B set at random, merged and unmerged differ by {distance:.1e}")
claims.record("T25", "merged and unmerged LoRA are equal", "nn.Linear(64, 48), r=4", distance, "relative", 0, 1e-5)

# %% [markdown] name="lora_explained"
# A's gradient is zero at the first step, because its formula contains B as a factor, and B is zero. B moves first, then A. If both were zero, neither would ever move. If both were random, the model would be damaged before training begins.
#
# ### How many parameters
#
# Guides to LoRA say "about 20 million, 0.1 to 1%" for a 7B model with r = 16 on q, k, v and o. Let us count them with **PEFT**, Hugging Face's library of adapters. `get_peft_model` freezes a model and puts an adapter beside each layer named in `target_modules`.

# %% name="count"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
SEVEN = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
with torch.device("meta"):  # shapes only: no byte is allocated
    seven = LlamaForCausalLM(LlamaConfig(**SEVEN))
    adapted = get_peft_model(seven, LoraConfig(r=16, lora_alpha=32, target_modules=ATTENTION))
trained_at_7b = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
total = count_parameters("llama-2-7b")

print(f"{trained_at_7b:,} of {total:,}: {trained_at_7b / total:.2%}")
claims.record(
    "C16", "about 20M trained parameters", "Llama-2-7B, r=16 on q, k, v, o", trained_at_7b / 1e6, "million", 19, 21
)
claims.record(
    "C16", "0.1 to 1 % of the model", "Llama-2-7B, r=16 on q, k, v, o", 100 * trained_at_7b / total, "%", 0.1, 1
)
del seven, adapted

# %% [markdown] name="base_text"
# The guides' percentage is right. Their number is too high for these targets: each of 32 layers has four matrices of 4,096 × 4,096, so there are 32 × 4 × 16 × (4,096 + 4,096) = 16.8 million parameters.
#
# ## 2 · A base to adapt
#
# To fine-tune, we need a model that already knows something. So a small Llama first learns English from the bytes of Python's manual. Then we fine-tune it on something else: Python source code.
#
# Its loss is in **nats per byte**: the mean of −ln p, where p is the probability that the model gave to the next byte. A uniform guess among 256 bytes has a loss of ln 256 = 5.55.

# %% name="base"
LENGTH, BATCH = 64, 8
prose, code = english(device), python_source(device)


def windows(ids, n, seed):
    """n sequences of LENGTH bytes, drawn at random: (n, LENGTH)."""
    starts = torch.randint(len(ids) - LENGTH, (n,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([ids[i : i + LENGTH] for i in starts.tolist()])


def loss_of(model, ids):
    return model(input_ids=ids, labels=ids).loss  # the model shifts the labels itself


@torch.no_grad()
def evaluate(model, text):
    """The loss on held-out text. (There is no dropout here, so the mode stays as it is: see section 6.)"""
    return loss_of(model, windows(text.test_x, 64, seed=1)).item()


# %% name="train"
def train(model, text, steps, lr, seed=0, optimizer=None):
    """Train on windows of a text; return the seconds it took."""

    def loss_at(step):
        return loss_of(model, windows(text.train_x, BATCH, seed=1000 * seed + step))

    return fine_tune(model, loss_at, steps, lr, optimizer)  # AdamW, a rate that rises and falls, clipping


# %% name="base_trained"
def make_llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
            max_position_embeddings=4 * LENGTH, tie_word_embeddings=False,
        )
    ).to(device)  # fmt: skip


base = make_llama()
print(
    f"{sum(p.numel() for p in base.parameters()):,} parameters; before training {evaluate(base, prose):.2f} nats per byte"
)
seconds = train(base, prose, steps=200, lr=5e-3)
before = {"English": evaluate(base, prose), "Python": evaluate(base, code)}
print(f"after {seconds:.0f} s: English {before['English']:.2f}, Python {before['Python']:.2f}")

# %% [markdown] name="memory_text"
# ## 3 · Where the memory goes
#
# We compare four setups, each in its second training step: full training; LoRA by hand on q, k, v and o; PEFT's LoRA, which should take the same memory; and PEFT with activation checkpointing.
#
# `task_type="CAUSAL_LM"` does not change which parameters are trained. It tells PEFT that the model is a causal language model. PEFT's wrapper then accepts the right inputs and offers `generate`, and the saved adapter records the task.
#
# **Predict.** With LoRA of rank 8, gradients and optimizer state nearly vanish. To what fraction of their size in full training do the **activations** fall?

# %% name="guess_activations"
my_guess = None  # a share, such as 0.5
### BEGIN GUESS
my_guess = 0.8  # the gradient still flows back through all layers
### END GUESS
activations_guess = Prediction("Activations with LoRA / with full training", my_guess, "of full training")


# %% name="memory"
def by_hand(model, rank=8, alpha=16, targets=ATTENTION):
    """Freeze the model and put a LoRA beside each layer named in `targets`."""
    model.requires_grad_(False)
    for block in model.model.layers:
        for parent in (block.self_attn, block.mlp):
            for name, child in list(parent.named_children()):
                if name in targets:
                    setattr(parent, name, LoRA(child, rank, alpha))
    return model


def with_peft(model, rank=8, alpha=16, targets=ATTENTION, **options):
    torch.manual_seed(0)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM", **options)
    return get_peft_model(model, config)


def checkpointed(model):
    model = with_peft(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})  # the default in new versions of Transformers
    model.config.use_cache = False
    return model


# %% name="memory_measured"
def measured(model):
    """The memory profile of a second training step: the first one creates the optimizer state."""
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, foreach=False)
    ids = windows(code.train_x, BATCH, seed=0)
    for _ in range(2):
        with MemoryMeter(model, optimizer) as profile:
            loss_of(model, ids).backward()
            optimizer.step()
            optimizer.zero_grad()
    return profile


setups = {"full": lambda model: model, "LoRA by hand": by_hand, "PEFT": with_peft, "PEFT + ckpt": checkpointed}
meters = {name: measured(setup(copy.deepcopy(base))) for name, setup in setups.items()}
show_table(category_table(meters))
full, lora, peft_meter, ckpt = meters.values()
activations_guess.reveal(lora.largest["activations"] / full.largest["activations"])

# %% name="memory_picture"
show(
    category_bars(
        {name: meter.at_peak for name, meter in meters.items()}, CATEGORIES, "At the peak of a training step"
    ),
    "LoRA keeps most of the activations of full training; its gradients and optimizer state are gone before the peak, or too small to see. Checkpointing shrinks the activations.",
)
claims.record(
    "T25",
    "LoRA: gradients and optimizer state vanish",
    "small Llama, r=8 on q, k, v, o",
    (lora.largest["gradients"] + lora.largest["optimizer state"])
    / (full.largest["gradients"] + full.largest["optimizer state"]),
    "of full training",
    0,
    0.1,
)
claims.figure(
    "activations with LoRA",
    "small Llama, r=8 on q, k, v, o",
    lora.largest["activations"] / full.largest["activations"],
    "of full training",
)

# %% [markdown] name="memory_explained"
# LoRA removes most of the static part: gradients and moments exist only for A and B. Activations fall far less. To reach A and B in the first layer, the gradient must flow back through **all** layers above it, and the operations on the way need their saved tensors: nonlinear operations need their inputs, and attention needs q, k and v.
#
# So which activations did LoRA remove? We freeze the model part by part and measure. First the MLPs and the head are frozen, then the norms, then the embedding. In these three steps q, k, v and o are still trained in full.
#
# **Predict.** In the last step q, k, v and o are frozen, too, and each gets a LoRA of rank 8. By how many MiB do the activations change? (Enter a negative number if you expect them to fall. The table above lists the activations of full training.)

# %% name="guess_frozen"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = -2
### END GUESS
frozen_guess = Prediction("Activations, from q, k, v, o trained to frozen with LoRA", my_guess, "MiB", difference=True)

# %% name="frozen"
frozen = copy.deepcopy(base)
last = full.largest["activations"]
table = [("activations", "saved", "change"), ("everything trained", human_bytes(last), "")]
for part, names in {
    "MLPs and head frozen": ("mlp", "lm_head"),
    "and the norms": ("norm",),
    "and the embedding": ("embed_tokens",),
}.items():
    for name, p in frozen.named_parameters():
        if any(word in name for word in names):
            p.requires_grad_(False)
    now = measured(copy.deepcopy(frozen)).largest["activations"]
    table.append((part, human_bytes(now), f"{human_bytes(last - now)} less"))
    last = now
lora_adds = lora.largest["activations"] - last
table.append(("and q, k, v, o, with LoRA added", human_bytes(last + lora_adds), f"{human_bytes(lora_adds)} more"))
show_table(table)
frozen_guess.reveal(lora_adds / MiB)

# %% [markdown] name="frozen_explained"
# A *frozen* linear layer no longer needs its input, which it had saved to compute the gradient of its weight. That explains the first change (MLPs and head). The norms saved their normalized inputs for the gradients of their weights. Once the embedding is frozen, nothing below the first norm is trained, so the first norm need not save its input.
#
# Freezing q, k, v and o saves nothing: each LoRA still needs its layer's input for A, and also saves x Aᵀ. Most of the activations stay. That is why the setup *PEFT + ckpt* in this section's first table adds checkpointing.
#
# ### A trap: reentrant checkpointing of a frozen model
#
# Reentrant checkpointing ([[activation_checkpointing]]) looks at the *inputs* of a block to decide whether to record gradients. With a frozen embedding no input requires a gradient, so nothing in the block is recorded. `use_reentrant=False` avoids the problem, and new versions of Transformers use it by default. Older code and your own models may still be reentrant.


# %% name="trap"
def gradients(reentrant, targets):
    """A sentence on which adapters get a gradient."""
    model = with_peft(copy.deepcopy(base), targets=targets)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if hasattr(model, "_require_grads_hook"):  # newer versions work around the trap by themselves
        model.disable_input_require_grads()
    model.config.use_cache = False
    model.train()
    try:
        loss_of(model, windows(code.train_x, 2, seed=0)).backward()
    except RuntimeError as error:
        return f"error: {str(error)[:46]} ..."
    arrived = {n: p.grad is not None for n, p in model.named_parameters() if p.requires_grad}
    blocks = [there for name, there in arrived.items() if ".layers." in name]
    head = [there for name, there in arrived.items() if "lm_head" in name]
    words = f"gradients for {sum(blocks)} of {len(blocks)} tensors in the blocks"
    return words + (f", for {sum(head)} of {len(head)} at the head" if head else "")


# %% name="trap_seen"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch warns: "None of the inputs have requires_grad=True"
    print("LoRA on          use_reentrant")
    for where, targets in (("q, k, v, o", ATTENTION), ("and lm_head", [*ATTENTION, "lm_head"])):
        for reentrant in (False, True):
            print(f"{where:17}{reentrant!s:15}{gradients(reentrant, targets)}")

# %% [markdown] name="trap_explained"
# With adapters in the blocks alone, `backward()` raises an error, so you notice. It is worse when the head is trained as well: the head gets its gradient, no error stops the run, the loss may even fall, and no adapter in the blocks is trained. PyTorch prints one warning (silenced here). Before you pay for an overnight run, check once that every adapter gets a gradient. (In older versions of Transformers, the workaround was `model.enable_input_require_grads()`.)
#
# ## 4 · Does it learn, and does the base survive?
#
# We fine-tune on Python source with full training, LoRA on attention, and LoRA on all linear layers but the head ("all-linear"), each for the same number of steps at two learning rates. Then we test each model on English again.
#
# **Predict.** What share of the loss reduction of full training at 2e-3 does LoRA of rank 8 on **all linear layers** achieve at 1e-2? (Mean of three runs on different data.)

# %% name="guess_adapt"
my_guess = None  # of full training
### BEGIN GUESS
my_guess = 0.8
### END GUESS
adapt_guess = Prediction("Loss reduction on Python, LoRA on all linear layers / full", my_guess, "of full training")

# %% name="adapt"
STEPS = 40
setups["all-linear"] = lambda model: with_peft(model, targets="all-linear")
tries = [("full", 5e-4, 1), ("full", 2e-3, 3), ("LoRA by hand", 1e-2, 1), ("PEFT", 5e-3, 1), ("PEFT", 1e-2, 3)]
tries += [("all-linear", 5e-3, 1), ("all-linear", 1e-2, 3)]
adapted, falls = {}, {}
print(f"{'':14}{'trained':>9}{'lr':>8}{'Python':>9}{'English':>9}  loss reduction on Python, each run")
print(f"{'before':14}{'':17}{before['Python']:>9.3f}{before['English']:>9.3f}")
for name, lr, runs in tries:
    falls[name, lr] = []
    for seed in range(runs):
        model = setups[name](copy.deepcopy(base))
        train(model, code, STEPS, lr, seed)
        learned = evaluate(model, code)
        falls[name, lr].append(before["Python"] - learned)
        if seed == 0:
            adapted[name, lr] = model, learned, evaluate(model, prose)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    _, learned, english_after = adapted[name, lr]
    each = ", ".join(f"{fall:.3f}" for fall in falls[name, lr])
    print(f"{name:14}{trained:>9,}{lr:>8}{learned:>9.3f}{english_after:>9.3f}  {each}")
shares = {name: sum(falls[name, 1e-2]) / sum(falls["full", 2e-3]) for name in ("PEFT", "all-linear")}
print(f"LoRA's share of the reduction: attention {shares['PEFT']:.0%}, all linear layers {shares['all-linear']:.0%}")
adapt_guess.reveal(shares["all-linear"])

# %% name="adapt_verdicts"
tuned, on_python, on_english = adapted["PEFT", 1e-2]
with tuned.disable_adapter():
    unharmed = evaluate(tuned, prose)
print(f"PEFT with the adapter switched off: English {unharmed:.4f}, before {before['English']:.4f}")
claims.record(
    "T25", "the base is unharmed", "English, adapter off / before", unharmed / before["English"], "times the loss", 1, 1
)
subject = f"Python source, {STEPS} steps, r=8, mean of 3 runs"
for name, where in (("PEFT", "attention"), ("all-linear", "all linear layers")):
    claims.figure("LoRA's share of the loss reduction", f"{subject}, on {where}", shares[name], "of full training's")
_, gentle_python, gentle_english = adapted["full", 5e-4]
for name in ("PEFT", "all-linear"):
    _, learned, english_after = adapted[name, 1e-2]
    print(
        f"full at 5e-4 against {name}: {gentle_python - learned:+.3f} nats on Python, "
        f"{gentle_english - english_after:+.3f} on English"
    )

# %% [markdown] name="adapt_explained"
# LoRA on all linear layers achieves a larger share of full training's loss reduction than LoRA on attention alone, but stays far below full training in the same number of steps. (Most of the weights are in the MLP.) [[Adapters_in_practice]] repeats the comparison on a pretrained model. (The losses of *LoRA by hand* and *PEFT* differ slightly because their A starts from different random numbers.)
#
# "LoRA forgets less" is another common claim. Within each method, the smaller learning rate forgets less, so compare methods that have learned about the same amount. The last two lines come closest to that: they subtract the losses of each LoRA from those of full training at 5e-4. (A negative number means that full training has the lower loss.) Each line compares single runs, scored on 64 windows of text, so a difference of a few hundredths proves nothing. If you try only one learning rate per method, you compare rates rather than methods.
#
# An adapter can be switched off again, which leaves the base bit for bit what it was; full training cannot be undone. So one base can serve many adapters ([[adapters_in_practice]]).
#
# ## 5 · Rank, alpha, targets
#
# Next we vary one thing at a time, with α / r = 2 unless alpha is given. The first three settings run three times, each time on different data.
#
# **Predict.** Start from LoRA of rank 8 on q and v. By how many nats does **quadrupling the rank** lower the loss (mean of three runs)? For comparison, the table above lists the loss reduction of full training.

# %% name="guess_sweep"
my_guess = None  # nats per byte
### BEGIN GUESS
my_guess = 0.03
### END GUESS
sweep_guess = Prediction("Loss on Python, from r=8 to r=32 on q and v: lower by", my_guess, "nats", difference=True)

# %% name="sweep"
MLP = ["gate_proj", "up_proj", "down_proj"]
TWO, SEVEN_LAYERS = ["q_proj", "v_proj"], ATTENTION + MLP
FEWER = 25  # steps
settings = {  # name: (rank, alpha, targets, runs)
    "r=8 on q, v": (8, 16, TWO, 3),
    "r=32 on q, v": (32, 64, TWO, 3),
    "r=8 on q, k, v, o": (8, 16, ATTENTION, 3),
    "r=32 on q, k, v, o": (32, 64, ATTENTION, 1),
    "r=2 on all linear layers": (2, 4, SEVEN_LAYERS, 1),
    "r=8 on all linear layers": (8, 16, SEVEN_LAYERS, 1),
    "r=8, alpha 2": (8, 2, ATTENTION, 1),
    "r=8, alpha 64": (8, 64, ATTENTION, 1),
}
swept = {}
print(f"{'':26}{'trained':>9}  Python, after {FEWER} steps")
for name, (rank, alpha, targets, runs) in settings.items():
    swept[name] = []
    for seed in range(runs):
        model = with_peft(copy.deepcopy(base), rank, alpha, targets)
        train(model, code, FEWER, 1e-2, seed)
        swept[name].append(evaluate(model, code))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{name:26}{trained:>9,}  " + "  ".join(f"{loss:.3f}" for loss in swept[name]))

start, more_rank, more_layers = list(swept.values())[:3]
sweep_guess.reveal((sum(start) - sum(more_rank)) / 3)

# %% name="sweep_verdicts"
gains = {
    "twice the layers": [a - b for a, b in zip(start, more_layers, strict=True)],
    "four times the rank": [a - b for a, b in zip(start, more_rank, strict=True)],
}
for name, gain in gains.items():
    print(f"from r=8 on q, v to {name:20} loss lower by " + ", ".join(f"{g:.3f}" for g in gain))
mean = sum(a - b for a, b in zip(gains["twice the layers"], gains["four times the rank"], strict=True)) / 3
subject = f"Python source, {FEWER} steps, from r=8 on q, v; mean of 3 runs"
claims.figure("twice the layers against four times the rank", subject, mean, "nats better")


# %% [markdown] name="sweep_explained"
# Starting from q and v with rank 8, compare doubling the number of layers with quadrupling the rank. The higher rank trains twice as many parameters as the additional layers do. In the lines above, the additional layers lower the loss more than the higher rank does, in each of the three runs. Rank 2 on all seven layers does about as well as rank 32 on four of them, with about an eighth of the parameters. Put a small rank on many layers before you raise it.
#
# Alpha acts like a learning rate: with 2 the steps are too small, and 64 does no better than the 16 of the third row. All of these results come from one small model and a few dozen steps. Add settings of your own to the table.
#
# ### Variants
#
# PEFT implements variants of LoRA. Most of them take one argument:
#
# - **rsLoRA** divides alpha by √r rather than r, because α / r makes the steps too small at high ranks.
# - **DoRA** learns the norm of each row of the weight separately from its direction.
# - **PiSSA** initializes A and B with the largest singular values of W and their vectors, and freezes the rest, so B is not zero at first.
# - **LoftQ** is for a base in 4 bits: it initializes A and B in the same way from the quantization error (section 6; PEFT: `replace_lora_weights_loftq`).
# - **LoRA+** gives B a learning rate several times that of A.

# %% name="relatives"
relatives = {
    "LoRA, r=8": {},
    "rsLoRA": {"use_rslora": True, "alpha": 16 / 8**0.5},
    "DoRA": {"use_dora": True},
    "PiSSA": {"init_lora_weights": "pissa"},
    "LoRA+": {},
}
print(f"{'':12}{'trained':>9}  Python, after {FEWER} steps")
for name, options in relatives.items():
    model, optimizer = with_peft(copy.deepcopy(base), **options), None
    if name == "LoRA+":
        optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=5e-3, loraplus_lr_ratio=4, weight_decay=0.0)
    train(model, code, FEWER, 1e-2, optimizer=optimizer)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{name:12}{trained:>9,}  {evaluate(model, code):.3f}")

# %% [markdown] name="relatives_explained"
# Here rsLoRA gets alpha / √8, which makes it identical to the first row: rsLoRA is a rule for changing the rank, not a better layer. Each of the other rows is a single run at a learning rate that was not tuned for it. The rows show how many parameters each variant trains, not which of them is best. (Section 8 times a step of DoRA.) *LoRA Without Regret* (Thinking Machines, 2025) finds that LoRA on all layers matches full fine-tuning on data sets of typical size, at about ten times the learning rate.
#
# ## 6 · QLoRA: the base in 4 bits
#
# A frozen base is only read, never updated, so 4 bits may be enough. **NF4** has sixteen levels, placed to suit normally distributed weights, with an FP32 scale per block of 64. Each time a layer is used, its weights are dequantized (to `bnb_4bit_compute_dtype`: here BF16 on a GPU that supports it, otherwise FP32), multiplied in that dtype, and dropped.
#
# The figure compares the levels with sixteen that are evenly spaced, for normally distributed weights. NF4's levels are dense where weights are dense, so they are used more evenly; a level that is rarely used is wasted. (The bars at both ends are the largest weights of the blocks.)

# %% name="levels_picture"
drawn = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
scaled = (drawn / drawn.abs().amax(1, keepdim=True)).flatten()
show(
    levels_picture(scaled, {"NF4": LEVELS, "evenly spaced": torch.linspace(-1, 1, 16).tolist()}),
    "A bell curve of weights; NF4's sixteen levels are dense in its middle and sparse at its ends; evenly spaced ones are not.",
)

# %% [markdown] name="nf4_task"
# ### Your turn: NF4
#
# *Double quantization* (`nf4-dq` below) stores the blocks' scales in 8 bits, with an FP32 scale per 256 of them. Write an encoder and a decoder for NF4 with double quantization.
#
# **Contract.** `LEVELS` holds the sixteen levels in rising order.
#
# - `nf4_encode(weights)` takes FP32 weights (n,), n a multiple of 64, and returns `packed, codes, tops, mean`. Neither function changes its arguments.
# - `packed`, uint8 (n / 2,), holds for each weight w the index of the level nearest to w / scale. Each byte holds two indices, the first of them in the upper four bits. The scale of a block of 64 is its largest magnitude, however small. In a block of zeros, each index is that of the level whose *value* is 0.
# - `mean` is the FP32 mean of all scales.
# - `tops`, FP32 (⌈n / 64 / 256⌉,), holds the largest magnitude of scale − mean in each group of 256 scales. The last group may be smaller.
# - `codes`, int8 (n / 64,), holds the scales in 8 bits: (scale − mean) / top · 127, rounded; 0 where the top is 0. (bitsandbytes rounds to the entries of an 8-bit code book, not to integers.)
# - `nf4_decode(packed, codes, tops, mean)` returns the weights (n,) in FP32: level · scale, where the scale is decoded from its 8 bits.


# %% name="by_hand_nf4" answer=true reveal=true
def nf4_encode(weights):
    ### BEGIN SOLUTION
    blocks = weights.view(-1, 64)
    scales = blocks.abs().amax(1)
    x = blocks / torch.where(scales == 0, 1.0, scales)[:, None]
    levels = torch.tensor(LEVELS)
    index = torch.bucketize(x, (levels[1:] + levels[:-1]) / 2).flatten().to(torch.uint8)
    mean = scales.mean()
    groups = F.pad(scales - mean, (0, -len(scales) % 256)).view(-1, 256)
    tops = groups.abs().amax(1)
    codes = (groups / tops.clamp(min=1e-30)[:, None] * 127).round().to(torch.int8).flatten()[: len(scales)]
    return index[::2] << 4 | index[1::2], codes, tops, mean
    ### END SOLUTION


def nf4_decode(packed, codes, tops, mean):
    ### BEGIN SOLUTION
    index = torch.stack((packed >> 4, packed & 15), 1).long()
    scales = codes.float() * tops.repeat_interleave(256)[: len(codes)] / 127 + mean
    return (torch.tensor(LEVELS)[index].view(-1, 64) * scales[:, None]).flatten()
    ### END SOLUTION


# %% name="nf4_check"
nf4_encode, nf4_decode = check("lora.nf4", nf4_encode, nf4_decode)

# %% name="nf4_hint"
hint("lora.nf4")

# %% name="nf4"
has_4_bits = importlib.util.find_spec("bitsandbytes") is not None
if has_4_bits:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    matrix, bits = torch.randn(1024, 1024, device=device), {}
    for double in (False, True):
        packed, state = quantize_4bit(matrix, quant_type="nf4", compress_statistics=double)
        nbytes = packed.nbytes + state.absmax.nbytes + (state.state2.absmax.nbytes if double else 0)
        bits[double] = 8 * nbytes / matrix.numel()
    print(f"a matrix of 1,024 x 1,024: {bits[False]:.3f} bits per weight")
    print(f"with double quantization: {bits[True]:.3f}; 4 + 8 / 64 + 32 / (64 x 256) = {4 + 8 / 64 + 32 / 2**14:.3f}")
    for said, double in ((4.5, False), (4.127, True)):
        name = f"NF4{', double quantization' if double else ''}: {said} bits a weight"
        claims.record("T25", name, "1,024 x 1,024, blocks of 64", bits[double], "bits", said - 0.05, said + 0.05)
    flat = matrix.flatten().cpu()
    both = {"by hand": nf4_decode(*nf4_encode(flat)), "bitsandbytes": dequantize_4bit(packed, state).flatten().cpu()}
    for name, weights in both.items():
        print(f"{name:14}relative error of the decoded matrix: {(weights - flat).norm() / flat.norm():.4f}")
else:
    print("bitsandbytes is not installed, so this section does nothing: pip install bitsandbytes")

# %% name="qlora_base"
if has_4_bits:
    fast = torch.bfloat16 if device.type == "cuda" and supports(torch.bfloat16, device) else torch.float32
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=fast)
    with tempfile.TemporaryDirectory() as folder:
        base.save_pretrained(folder)
        quantized = LlamaForCausalLM.from_pretrained(
            folder, device_map={"": str(device)}, quantization_config=nf4
        ).train()
    packed = [m for m in quantized.modules() if type(m).__name__ == "Linear4bit"]
    weights = sum(m.in_features * m.out_features for m in packed)
    nbytes = sum(m.weight.nbytes + m.weight.quant_state.absmax.nbytes for m in packed)
    print(f"{len(packed)} layers, {weights:,} weights: FP32 {human_bytes(4 * weights)}, NF4 {human_bytes(nbytes)}")
    print(f"loss of the quantized base: English {evaluate(quantized, prose):.3f} ({before['English']:.3f} in FP32)")

# %% name="qlora"
if has_4_bits:
    qlora = with_peft(prepare_model_for_kbit_training(quantized, use_gradient_checkpointing=False))
    train(qlora, code, STEPS, 1e-2)
    learned = evaluate(qlora, code)
    print(f"QLoRA on Python: {learned:.3f}, LoRA on the FP32 base {on_python:.3f}")

    subject = f"Python source, {STEPS} steps, one run each"
    claims.figure("loss after QLoRA minus loss after LoRA", subject, learned - on_python, "nats")

# %% [markdown] name="qlora_explained"
# The two losses come from one run each, so their difference does not show which method learns more. It only shows that the 4-bit base did no large harm here.
#
# > **Note:** on a CPU with AVX-512 BF16, bitsandbytes 0.50 repacks a layer the first time it is used in *evaluation* mode, and from then on no gradient passes through the layer (PyTorch warns, but the run continues). To train a quantized model further after an evaluation, evaluate it in training mode with dropout at zero, or load it again.
#
# Embedding, head and norms are not quantized; `prepare_model_for_kbit_training` even casts them from 16 bits to FP32. In this small model, they take about as many bytes as the NF4 weights; in a 7B model, nearly all parameters are in the quantized layers.

# %% [markdown] name="ladder_text"
# ## 7 · The ladder: 7B on one GPU
#
# Now the real case: Llama-2-7B, sequences of 512 tokens, one at a time. Each rung of the ladder changes one thing. The planner ([[where_memory_goes]]) runs each recipe on fake tensors, which takes a few seconds per recipe and gives the same result on every machine. `planned` looks up plans that were made in advance and computes any that are missing, such as the plan of a rung that you change. The table below also lists figures from guides to fine-tuning, which give no source; their figures are in GB of 10⁹ bytes. (1 GiB is 1.07 GB.)
#
# Full training in FP32 with AdamW takes 16 bytes per parameter, or 100 GiB for 6.74 billion.
#
# **Predict.** How high is the peak with weights in BF16, LoRA of rank 16 and checkpointing?

# %% name="guess_lora_peak"
my_guess = None  # GiB
### BEGIN GUESS
my_guess = 6.74e9 * 2 / 2**30 + 1
### END GUESS
lora_guess = Prediction("7B, BF16, LoRA, checkpointing, peak", my_guess, "GiB")

# %% name="ladder_rungs"
adapters = {"lora_rank": 16, "lora_targets": tuple(ATTENTION), "optimizer_impl": "fused"}
recomputed = {"precision": "bf16", "checkpointing": "every", **adapters}
in_nf4 = recomputed | {"quantize": "nf4-dq"}
rungs = {  # name: (recipe, GB according to guides)
    "FP32, AdamW": ({"precision": "fp32", "optimizer_impl": "fused"}, 114),
    "BF16 autocast, FP32 AdamW": ({"precision": "bf16-amp", "optimizer_impl": "fused"}, 112),
    "all in BF16": ({"precision": "bf16", "optimizer_impl": "fused"}, None),
    "+ LoRA r=16": ({"precision": "bf16", **adapters}, 14.3),  # without activations
    "+ checkpointing": (recomputed, None),
    "+ 32 micro-batches": (recomputed | {"gradient_accumulation_steps": 32}, None),
    "+ base in NF4": (in_nf4, None),
    "the same, FP16 for a T4": (in_nf4 | {"precision": "fp16-amp"}, None),
}

# %% [markdown] name="ladder_plan_text"
# The figure in section 9 also needs recipes with more tokens.

# %% name="ladder_plan"
longer = {"LoRA": "+ checkpointing", "QLoRA": "+ base in NF4", "QLoRA on a T4": "the same, FP16 for a T4"}
lengths = {
    f"{name}, {seq} tokens": {**rungs[rung][0], "seq": seq} for name, rung in longer.items() for seq in (1024, 4096)
}
lengths["LoRA, 4 x 1024 tokens"] = {**rungs["+ checkpointing"][0], "seq": 1024, "micro_batch_size": 4}
recipes = {name: recipe for name, (recipe, _) in rungs.items()} | lengths
plans = planned([Recipe("llama-2-7b", **recipe) for recipe in recipes.values()])
newer = {name: rungs[name][0] for name in ("+ checkpointing", "+ base in NF4")}
eight = dict(zip(newer, planned([Recipe("llama-3.1-8b", **recipe) for recipe in newer.values()]), strict=True))
print(f"{len(plans)} plans; making them took {sum(one.seconds for one in plans):.0f} s")
by_name = dict(zip(recipes, plans, strict=True))
peaks = {name: one.peak_allocated_bytes for name, one in by_name.items()}
reserved = {name: one.reserved_bytes[1] for name, one in by_name.items()}

# %% name="ladder"
static = 2 * total + 16 * trained_at_7b  # the base in BF16; in FP32 the adapters, their gradients and two moments
rows = []
for name, (_, said) in rungs.items():
    if name == "+ LoRA r=16":
        rows.append(("+ LoRA, without activations (formula)", static, said))
        said = None
    rows.append((name, peaks[name], said or ""))
rows += [(f"Llama-3.1-8B: {name}", one.peak_allocated_bytes, "") for name, one in eight.items()]
table = [(name, f"{size / GiB:.1f} GiB", f"{size / 1e9:.1f}", str(said)) for name, size, said in rows]
show_table([("7B, 512 tokens", "planned", "in GB", "guides say"), *table])
cast = 2 * 2 * 128256 * 4096  # embedding and head, two more bytes each
print(f"casting embedding and head of 128,256 tokens to FP32 adds {cast / GiB:.1f} GiB")
lora_guess.reveal(peaks["+ checkpointing"] / GiB, "planned")

# %% name="ladder_verdicts"
for name, gigabytes in (
    ("FP32, AdamW", peaks["FP32, AdamW"] / 1e9),
    ("BF16 autocast, FP32 AdamW", peaks["BF16 autocast, FP32 AdamW"] / 1e9),
    ("+ LoRA r=16", static / 1e9),
):
    said = rungs[name][1]
    subject = f"7B, {name}: " + ("without activations, by formula" if "LoRA" in name else "512 tokens, planned")
    claims.record("T25", f"about {said} GB", subject, gigabytes, "GB", said * 0.9, said * 1.1)
for said, name, gpu in (
    ("LoRA on 7B fits 24 GB", "+ checkpointing", "rtx-4090-24gb"),
    ("QLoRA on 7B fits a free T4", "the same, FP16 for a T4", "t4-16gb"),
):
    claims.record("T25", said, f"reserved, planned, {gpu}", reserved[name] / GiB, "GiB", 0, find_gpu(gpu).total / GiB)

# %% [markdown] name="ladder_explained"
# - In the first three rungs the peak is in the **optimizer step**: weights, gradients and both moments, 16 or 8 bytes per parameter. Activations are gone by then, so **autocast saves nothing**: it halves tensors that do not exist at the peak. From LoRA on, the peak is in the backward pass, and activations count.
# - **LoRA** divides the peak by more than any other row does: 6.74 billion parameters no longer have gradients or moments. The guides state that their figure leaves out activations; the row below it shows the total.
# - **Checkpointing** removes most of the activations. **Accumulation** builds a batch of 32 out of micro-batches of one. It costs almost nothing: only the adapters' gradients stay in memory until the update.
# - **NF4** shrinks most of what is left, the frozen weights. Embedding and head stay in 16 bits in the BF16 plans; `prepare_model_for_kbit_training` would cast them to FP32.
# - **Llama-3.1-8B** shares each head of keys and values among four query heads (grouped-query attention), but has 128,256 tokens in its vocabulary. Embedding and head hold an eighth of its parameters, and NF4 does not quantize them. The logits of 512 tokens are four times as large as those of Llama-2.
# - A **T4**, Colab's free GPU, has no BF16, so it needs FP16 autocast with a scaler ([[loss_scaling]]). With autocast, what NF4 does not quantize is in FP32: embedding and head take twice as much. (The adapters are in FP32 in all of these plans.)
#
# (Older guides set `bnb_4bit_quant_storage` because FSDP1's flat parameters can hold only one dtype. `fully_shard` accepts mixed dtypes.)
#
# ## 8 · Seconds
#
# A frozen weight needs no gradient, so LoRA skips one of the three matmuls per weight (forward, gradient of the input, gradient of the weight).
#
# **Predict.** How long does a LoRA step of section 3's small Llama take, as a fraction of a step of full training?

# %% name="guess_pace"
my_guess = None  # LoRA / full
### BEGIN GUESS
my_guess = 2 / 3
### END GUESS
time_guess = Prediction("Time of a step, LoRA / full", my_guess, "of full training")


# %% name="pace"
def step_of(model):
    """Return a training step of `model`."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    ids = windows(code.train_x, BATCH, seed=0)

    def step():
        loss_of(model, ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


steps = {name: step_of(setups[name](copy.deepcopy(base))) for name in ("full", "PEFT")}
step_flops = {name: count_flops(step) for name, step in steps.items()}
print(f"FLOPs of a step, LoRA / full: {step_flops['PEFT'] / step_flops['full']:.2f}")
pace = compare(*steps.values(), runs=7)
time_guess.reveal(1 / pace.speedup)
dora = compare(steps["PEFT"], step_of(with_peft(copy.deepcopy(base), use_dora=True)), runs=7)
print(f"a step of DoRA / of LoRA: {1 / dora.speedup:.2f}")
profiles = {name: profile_step(step) for name, step in steps.items()}
table = [("milliseconds", *steps)]
for kind in dict.fromkeys(kind for profiled in profiles.values() for kind in profiled.by_kind()):
    table.append((kind, *(f"{1e3 * profiled.by_kind().get(kind, 0):.1f}" for profiled in profiles.values())))
show_table(table)

# %% name="pace_planned"
on = "h100-80gb"
rows = [("7B, 512 tokens, planned", "TFLOP", f"ms on {on}", "MFU", "bound by")]
for name, one in zip(recipes, plans, strict=True):
    if name in ("all in BF16", "+ LoRA r=16", "+ checkpointing", "+ base in NF4"):
        forecast = one.forecasts[on]
        bound = max(forecast.bounds, key=forecast.bounds.get)
        cells = f"{one.flops / 1e12:.1f}", f"{1e3 * forecast.seconds:.0f}", f"{forecast.mfu:.0%}", bound
        rows.append((name, *cells))
show_table(rows)

# %% [markdown] name="pace_explained"
# On a small model, the time falls less than the FLOPs do, because matmuls are only a part of the step. Compare the rows. *Matmul* falls with the FLOPs at best: LoRA's own matmuls are thin, and rank 8 or 16 is far too narrow to keep a GPU busy ([[where_the_time_goes]]). In *pointwise*, the optimizer's pass over all weights is gone, but each adapter scales its result and adds it to the layer's output, and both operations work on tensors as large as that output. *Gap* is the time between operations, which Python takes; adapters add operations. DoRA adds more of them: in each forward pass it computes the norms of all rows of W + BA.
#
# In the planned rows the time falls a little further than the FLOPs do.
#
# Checkpointing adds a forward pass. NF4 must unpack the weights each time a layer is used, so it saves bytes and costs time.
#
# ## 9 · How many tokens fit in a micro-batch?
#
# With fused attention, one long sequence takes almost the same number of bytes as several short ones with the same number of tokens in total, as the next cell shows. This model's sequences have at most 4,096 tokens; a micro-batch can have more.

# %% name="tokens"
for name in ("LoRA, 4096 tokens", "LoRA, 4 x 1024 tokens"):
    print(f"{name:24}{peaks[name] / GiB:.3f} GiB allocated, up to {reserved[name] / GiB:.2f} reserved")

# %% name="play"
GPUS = ("t4-16gb", "l4-24gb", "rtx-4090-24gb", "a100-40gb")


def line_of(base_in, gpu_name):
    """Bytes against tokens: a line through the plans at 1,024 and 4,096 tokens."""
    kind = "LoRA" if base_in == "BF16" else "QLoRA on a T4" if gpu_name == "t4-16gb" else "QLoRA"
    return TokensLine(*(by_name[f"{kind}, {seq} tokens"] for seq in (1024, 4096)))


def micro_batch(base_in, gpu_name, tokens):
    line = line_of(base_in, gpu_name)
    title = f"7B, LoRA r=16, checkpointing, base in {base_in}"
    return line.figure(gpu_name, tokens, title if line.computes_on(gpu_name) else f"{gpu_name} has no BF16: choose NF4")


explore(
    micro_batch,
    "Two rising lines, memory allocated and memory reserved against tokens in a micro-batch, with the size of a GPU as a horizontal line.",
    base_in=("BF16", ("BF16", "NF4")),
    gpu_name=("rtx-4090-24gb", GPUS),
    tokens=(2048, range(512, 32769, 512)),
)

# %% [markdown] name="fits_text"
# How many tokens fit on the 4090 with a BF16 base, and how many with NF4? There are two answers. The **safe** answer leaves room for everything that the allocator may reserve ([[memory_profiling]]). The **at most** answer uses a rule of thumb: allocated bytes may fill nine tenths of the GPU. Find both with the sliders; the next cell computes them.

# %% name="fits"
table = [("tokens: safe .. at most", *GPUS)]
for base_in in ("BF16", "NF4"):
    cells = []
    for gpu in GPUS:
        line = line_of(base_in, gpu)
        sure, most = line.fit(gpu)
        cells.append(f"{sure:,} .. {most:,}" if line.computes_on(gpu) else "no BF16")
    table.append((base_in, *cells))
show_table(table)

# %% [markdown] name="fits_explained"
# Between the two figures, the allocator must sometimes release its cache, which takes time, and gaps between blocks may leave too little room. In that range, only a recipe's own plan shows whether it runs: `plan(recipe).fits` replays its allocations by the allocator's rules on a GPU of that size (exercise X4). The line goes through 1,024 and 4,096 tokens; far to the right it is an extrapolation.
#
# ### On a GPU, if there is one
#
# With a GPU of 20 GiB or more that computes in BF16, the next cell runs a 7B model with random weights: memory and speed do not depend on their values. ([[Adapters_in_practice]] fine-tunes a real one by name.)

# %% name="real"
room = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
if room >= 20 * GiB and supports(torch.bfloat16, device):
    expected = peaks["+ checkpointing"]
    seen_7b = measure_recipe(Recipe("llama-2-7b", **rungs["+ checkpointing"][0]))
    print(f"7B, LoRA, checkpointing, 512 tokens: peak {seen_7b.peak_bytes / GiB:.2f} GiB, planned {expected / GiB:.2f}")
    print(f"reserved {seen_7b.reserved_bytes / GiB:.2f} GiB; {512 / seen_7b.seconds:,.0f} tokens/s")
    share = seen_7b.peak_bytes / expected
    claims.record("T25", "the plan is right", "7B, LoRA, 512 tokens, this GPU", share, "x planned", 0.97, 1.03)
else:
    print("No GPU of 20 GiB or more that computes in BF16, so this cell does nothing.")

# %% [markdown] name="program_text"
# ### On a virtual GPU
#
# A plan needs a recipe. To try your own program, use a **virtual GPU**: inside `with virtual_gpu("rtx-4090-24gb"):`, PyTorch behaves as if this machine had that GPU. Python runs as usual, a model of CUDA's allocator places every tensor, and an allocation that does not fit raises the same error as on a real GPU. Operations on the virtual GPU compute nothing, so 7B takes seconds and hardly any memory. For a script, use the command `python -m helpers dry-run --gpu rtx-4090 train.py`.
#
# The next cell defines such a program for 7B and runs two steps with 16,384 tokens. Compare this number with the two figures for this card and a BF16 base in the table above.
#
# **Predict.** Does the program run out of memory, and if so, in which step? (0: it does not.)

# %% name="program_guess"
my_guess = None  # 0, 1 or 2
### BEGIN GUESS
my_guess = 1  # both steps hold the same tensors, so the first one fails
### END GUESS
step_guess = Prediction("16,384 tokens on a virtual 4090, failing step (0: none)", my_guess, "", difference=True)


# %% name="program"
def fine_tune_7b(tokens, steps=2):
    """Train LoRA adapters on Llama-2-7B with random weights, on one sequence of `tokens` tokens."""
    config = LlamaConfig(**SEVEN, use_cache=False)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=ATTENTION))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
    ids = torch.randint(config.vocab_size, (1, tokens), device="cuda")
    for _ in range(steps):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def on_4090(tokens):
    """Run the program on a virtual RTX 4090; return the record of the run."""
    with virtual_gpu("rtx-4090-24gb") as run, contextlib.suppress(torch.OutOfMemoryError):
        fine_tune_7b(tokens)
    return run


short, long = beside_real_gpu(on_4090, 512), beside_real_gpu(on_4090, 16384)
step_guess.reveal(len(long.steps) if long.ledger.ran_out else 0, how="simulated")
expected = peaks["+ checkpointing"] / GiB
print(f"512 tokens: peak {short.peak_allocated / GiB:.2f} GiB on the virtual GPU, {expected:.2f} GiB planned")
for number, step in enumerate(long.steps, 1):
    print(f"16,384 tokens, step {number}: up to {step.allocated / GiB:.2f} GiB allocated")
show(
    long.plot("Llama-2-7B, LoRA, 16,384 tokens, on a virtual RTX 4090"),
    "Memory by category over the two steps, with the card's memory as a line.",
)

# %% [markdown] name="program_explained"
# The first step survives, although its spike almost touches the line. The second one fails at a *lower* level: the memory allocated there (last printed line) plus the 1.95 GiB that the program requests next (16,384 × 32,000 numbers in FP32) would be less than the card's memory. But no single free block is that large. Adam's moments, 128 MiB created at the end of the first step, now occupy memory that the first step could use freely, and the rest of the free memory is in smaller blocks: fragmentation ([[memory_profiling]]). **A successful first step does not show that the run fits.** Measure the second step too, and many more if lengths vary.
#
# The spikes are the logits and the tensors that the loss computes from them, in BF16 and in FP32: 16,384 × 32,000 numbers each. Checkpointing does not reduce these spikes; a chunked loss does ([[oom_clinic]]).

# %% [markdown] name="summary_text"
# ## 10 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - LoRA trains two thin matrices beside each frozen layer. Gradients and optimizer state vanish; most activations stay, so add checkpointing.
# - B starts at zero. α / r acts like a learning rate. Put LoRA on all linear layers before you raise the rank.
# - Give each method a learning rate that suits it. Otherwise you compare rates rather than methods.
# - NF4 keeps the frozen base at 4.1 to 4.5 bits per weight. It saves memory and costs time.
# - LoRA saves much more memory than time: its thin matmuls do not keep a processor busy.
# - Plan a run before you rent a GPU for it, and watch its second step: a successful first step does not show that it fits.
#
# **What to reach for when.** 7B on a 24 GB GPU: LoRA in BF16 with checkpointing. 16 GB or less: QLoRA. A new language or domain, and enough GPUs: full fine-tuning, sharded ([[sharding]]).
#
# **Next.** In exercise X4 you plan and run such a fine-tune yourself. After it, [[adapters_in_practice]] fine-tunes a pretrained chat model, from its data to many adapters on one base.
#
# **Sources.** Hu et al. 2021, *LoRA: Low-Rank Adaptation of Large Language Models*; Dettmers et al. 2023, *QLoRA: Efficient Finetuning of Quantized LLMs*; Biderman et al. 2024, *LoRA Learns Less and Forgets Less*; Schulman et al. 2025, *LoRA Without Regret*; documentation of PEFT and bitsandbytes.
