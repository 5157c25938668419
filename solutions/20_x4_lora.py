# %% [markdown] name="title"
# # X4 · Fine-tune 7B inside 24 GB
#
# **Graded exercise, 10 points.** You write a LoRA layer, an adapter whose size you know in advance, a plan for 7B on a 24 GB GPU, a fine-tune that accumulates over micro-batches and leaves its base unchanged, and the code that labels a file of chats. The plan is for 7B. The fine-tune runs on a small Llama, so that it works on any machine.
#
# | | |
# |---|---|
# | After this you can | write, merge and unmerge LoRA; predict what an adapter trains; plan the largest micro-batch that fits on a GPU; fine-tune a frozen model with accumulation and equal weight for every token that counts, and show that the base stayed frozen; label a file of chats so that only answers count |
# | Time | 60 to 100 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; a 24 GB GPU for the last, ungraded cell |
# | Before this | [[lora]]; from [[gradient_accumulation]], how tokens are weighted; for part 5, section 1 of [[adapters_in_practice]] helps |
# | Syllabus | X4 (T25, C16) |
#
# There are five answer cells, each followed by its check. Run a check as often as you like. In a copy without reference answers the checks give no verdict; your instructor's grading does. Save the notebook when you are done: it is your submission. Do not rename it.

# %% name="setup" setup=true
import copy
import math
import subprocess
import sys
from pathlib import Path

from helpers import (
    GiB,
    Prediction,
    RealModelError,
    Recipe,
    check,
    device_name,
    hint,
    measure_recipe,
    pick_device,
    plan,
    real_model,
    training_script,
)
from helpers.exercises.x4 import small_chats, small_llama

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import nn

device = pick_device()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}")

# %% [markdown] name="layer_task"
# ## Part 1 · The layer (3 points)
#
# **Contract.** `LoRALinear(linear, rank, alpha, dropout)` is an `nn.Module` around an `nn.Linear`.
#
# - Exactly two parameters are trained. A, of shape (rank, in), starts with random values, which are different in each layer. B, of shape (out, rank), starts at zero. Both have the device and dtype of the linear layer's weight. The linear layer is frozen, including its bias if it has one. Use the given layer, not a copy.
# - Unmerged, the output is x Wᵀ + bias + (alpha / rank) · (d(x) Aᵀ) Bᵀ, where d is dropout of the input with probability `dropout`, active in training mode only. Each call draws a new mask, element by element. As in `nn.Linear`, x has the shape (..., in), need not be contiguous, and is not changed; the output has the dtype of x.
# - `merge()` computes the correction from the current A and B and adds it to the linear layer's weight in place. A merged layer returns the output of the linear layer alone, in training mode too, and the gradient with respect to x is that of the linear layer. `unmerge()` removes the correction again. A second `merge()` does nothing to a merged layer, and `unmerge()` does nothing to a layer that is not merged. A layer can be merged and unmerged repeatedly, each time with a different A, B and weight. Neither call changes A, B, the mode of the layer, or any other layer. (While a layer is merged, neither A and B nor the weight changes, and the layer is not trained.)


# %% name="layer" answer=true
class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        ### BEGIN SOLUTION
        self.linear = linear.requires_grad_(False)
        like = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.A = nn.Parameter(torch.empty(rank, linear.in_features, **like))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank, **like))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.scale = alpha / rank
        self.dropout = nn.Dropout(dropout)
        self.is_merged = False
        ### END SOLUTION

    def forward(self, x):
        ### BEGIN SOLUTION
        y = self.linear(x)
        if self.is_merged:
            return y
        return y + self.scale * F.linear(F.linear(self.dropout(x), self.A), self.B)
        ### END SOLUTION

    @torch.no_grad()
    def merge(self):
        ### BEGIN SOLUTION
        if not self.is_merged:
            self.linear.weight += self.scale * (self.B @ self.A)
            self.is_merged = True
        ### END SOLUTION

    @torch.no_grad()
    def unmerge(self):
        ### BEGIN SOLUTION
        if self.is_merged:
            self.linear.weight -= self.scale * (self.B @ self.A)
            self.is_merged = False
        ### END SOLUTION


# %% name="layer_check" points=3
check("x4.layer", LoRALinear)

# %% name="layer_hint"
hint("x4.layer")

# %% [markdown] name="adapter_task"
# ## Part 2 · The adapter (2 points)
#
# **Contract.**
#
# - `adapter_config(rank)` returns PEFT's `LoraConfig` for a Llama: it has the given rank on **every** linear layer of attention and MLP in each block, and no adapter on any other layer. Alpha is twice the rank, dropout is 0.05, and `task_type` is causal language modeling. Each B starts at zero, PEFT's default. Biases, which some Llamas have, are not trained.
# - `trained_parameters(config, rank)` returns the number of parameters, an `int`, that such an adapter trains in the Llama of a `LlamaConfig`. Compute this number from the configuration alone, without changing it and without allocating weights or adapters. Take into account `num_key_value_heads` (grouped-query attention: fewer heads for k and v) and `head_dim`, which need not be `hidden_size // num_attention_heads`.


# %% name="adapter" answer=true
def adapter_config(rank):
    ### BEGIN SOLUTION
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.05, target_modules=layers, task_type="CAUSAL_LM")
    ### END SOLUTION


def trained_parameters(config, rank):
    ### BEGIN SOLUTION
    width, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    q_and_o, k_and_v, mlp = 2 * (width + queries), 2 * (width + keys), 3 * (width + inner)
    return config.num_hidden_layers * rank * (q_and_o + k_and_v + mlp)
    ### END SOLUTION


# %% name="adapter_check" points=2
check("x4.adapter", adapter_config, trained_parameters)

# %% name="adapter_hint"
hint("x4.adapter")

# %% [markdown] name="plan_task"
# ## Part 3 · The plan (1 point)
#
# A colleague wants to fine-tune Llama-2-7B (`"llama-2-7b"`) on one RTX 4090 (24 GB) and asks you for a recipe. These choices are fixed: the weights are in BF16 and not quantized, LoRA has rank 16 and is on q, k, v and o, the optimizer is AdamW, the only GPU holds everything (no offloading), and an update uses **32 sequences**.
#
# You choose the sequences per micro-batch (`micro_batch_size`), the micro-batches per update (`gradient_accumulation_steps`), the tokens per sequence (`seq`: 512, 1024, 2048 or 4096), and `checkpointing`. Set `lora_rank` and `lora_targets` as fixed above. Leave all remaining fields of `Recipe` at their defaults (`help(Recipe)` lists them), except `lora_alpha` and `optimizer_impl`, which may have any value.
#
# **Contract.** `fine_tune_plan()` returns a `Recipe` for this fine-tune.
#
# - `micro_batch_size` × `gradient_accumulation_steps` is 32. Both, and `seq`, are ints.
# - The planner reports that the recipe fits: `plan(recipe).fits["rtx-4090-24gb"]` is true.
# - No other choice of these four fields that fits has more tokens per micro-batch (`micro_batch_size` × `seq`).
#
# Use the planner in a cell of your own to find this recipe: `plan(recipe)` prints what you need, usually within 5 to 15 seconds. The function itself need not search.
#
# [[Lora]] estimated two token counts from straight lines: a safe one, and one based on a rule of thumb. Here `fits` decides: it replays the recipe's allocations by the allocator's rules on a GPU of that size. The choices above leave few token counts to try.
#
# **Predict** (no points) before you run the planner. The weights take 12.6 GiB. If you choose the largest micro-batch that fits the card, how many GiB are allocated at the peak?

# %% name="guess_peak"
my_guess = None  # GiB
### BEGIN GUESS
my_guess = 22  # nearly the whole card
### END GUESS
peak_guess = Prediction("Peak of the largest micro-batch that fits, 7B, LoRA, 24 GB", my_guess, "GiB")


# %% name="plan" answer=true
def fine_tune_plan():
    ### BEGIN SOLUTION
    return Recipe(
        "llama-2-7b",
        micro_batch_size=4,
        seq=2048,
        gradient_accumulation_steps=8,
        precision="bf16",
        checkpointing="every",
        lora_rank=16,
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
    )
    ### END SOLUTION


# %% name="plan_check" points=1
check("x4.plan", fine_tune_plan)

# %% name="plan_hint"
hint("x4.plan")

# %% [markdown] name="finetune_task"
# ## Part 4 · The fine-tune (3 points)
#
# **Contract.**
#
# - `fine_tune(base, batches)` adapts `base`, a small `LlamaForCausalLM` in evaluation mode that was trained on some English text, to Python source. `batches` is a list of batches. Each of them is a list of micro-batches `(ids, labels)`, two int64 tensors of shape (4, 48); how many there are differs between batches. Labels are the ids, except for tokens that do not count: there they are −100. The number of tokens that count differs between micro-batches and is never zero. Labels are not shifted: the output at position i predicts the label at position i + 1, and the first label of a row is not predicted. Put an adapter of rank 8 on all linear layers of the blocks, and on no other layer. You may call `adapter_config`, or use your own layer from part 1 instead of PEFT; alpha and dropout are yours to choose.
# - Train it with a single AdamW optimizer, and make one update per batch, in the given order. The micro-batches of a batch go through the model one at a time, in order, each once and in one piece, with every layer in training mode; do not run the model for any other purpose. Each update uses the gradient of the mean cross-entropy over its whole **batch**: every next token that counts has the same weight, whichever micro-batch it is in. It uses no other loss; you may clip this gradient. Return the adapted model in evaluation mode. Choose the learning rate well: the loss on other Python source must fall by at least seven tenths as far as with the reference solution, which uses a constant rate on the same base and batches.
# - The base does not change by a single bit and gets no gradients. The optimizer holds exactly the trained parameters.
# - `merged_model(model)` takes the model that `fine_tune` returned (and may consume it) and returns an ordinary `LlamaForCausalLM` with the adapter merged into its weights.
# - Both functions may be called again, with another base and other batches; they keep nothing from one call to the next.
#
# The next cell provides a base, batches and other Python source, so that you can try your answer before you run the check. (Grading uses different ones.)

# %% name="material"
base, batches, unseen = small_llama()


@torch.no_grad()
def unseen_loss(model):
    return model(input_ids=unseen, labels=unseen).loss.item()


print(f"{len(batches)} batches: the first of {len(batches[0])} micro-batches, the second of {len(batches[1])}")
print(f"shape of a micro-batch: {tuple(batches[0][0][0].shape)}")
print(
    "counted tokens per micro-batch, first batch:", [(labels[:, 1:] != -100).sum().item() for _, labels in batches[0]]
)
print(f"loss on unseen Python: {unseen_loss(base):.3f}")


# %% name="finetune" answer=true
def fine_tune(base, batches):
    ### BEGIN SOLUTION
    adapter = adapter_config(8)
    model = get_peft_model(base, adapter).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for batch in batches:
        count = sum((labels[:, 1:] != -100).sum() for _, labels in batch)
        for ids, labels in batch:
            logits = model(input_ids=ids).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
            (loss / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()
    ### END SOLUTION


def merged_model(model):
    ### BEGIN SOLUTION
    return model.merge_and_unload()
    ### END SOLUTION


# %% name="tried"
try:
    torch.manual_seed(0)
    print(f"after your fine-tune: {unseen_loss(fine_tune(copy.deepcopy(base), batches)):.3f}")
except NotImplementedError:
    print("This appears once part 4 is written.")

# %% name="finetune_check" points=3
check("x4.finetune", fine_tune, merged_model)

# %% name="finetune_hint"
hint("x4.finetune")

# %% [markdown] name="chats_task"
# ## Part 5 · The labels (1 point)
#
# Data for a fine-tune often comes as a `messages` file: each line is one chat, a list of turns with `role` and `content`. The model should learn to write all of the assistant's turns, and nothing else. A tokenizer's **chat template** (`apply_chat_template`) writes such a chat as one text, with special tokens around each turn.
#
# **Contract.** `labeled_chats(chats, tokenizer, longest)` returns a list with one pair `(ids, labels)` per chat, in order. Each pair consists of two lists of `int` of the same length.
#
# - `ids` are the tokens of the entire chat, formatted with the tokenizer's chat template, with nothing after the last turn. Any template is possible. It supplies all special tokens; the tokenizer must not add any of its own. The text of earlier turns does not depend on later turns, and neither do its tokens. A chat begins with a system or user turn, and may end with a user turn. Answers may be empty, and one may follow another directly.
# - `labels` repeat the tokens that the assistant writes: the content of each of its turns, and the `tokenizer.eos_token_id` that ends the turn. Everywhere else they are −100, including the headers of all turns, even the assistant's, and the line breaks between turns. Labels are not shifted.
# - The same words may occur in a question and in an answer. No content contains the `eos_token`.
# - Leave out a chat of more than `longest` tokens. `chats` is not changed.

# %% name="chats_material"
chats, tokenizer, longest = small_chats()
for turn in chats[0]:
    print(turn)
print(repr(tokenizer.apply_chat_template(chats[0], tokenize=False)))


# %% name="chats" answer=true
def labeled_chats(chats, tokenizer, longest):
    ### BEGIN SOLUTION
    def tokens(turns, prompt=False):
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=prompt)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    found = []
    for turns in chats:
        ids = tokens(turns)
        labels = [-100] * len(ids)
        for i, turn in enumerate(turns):
            if turn["role"] == "assistant":
                start = len(tokens(turns[:i], prompt=True))
                end = ids.index(tokenizer.eos_token_id, start) + 1
                labels[start:end] = ids[start:end]
        if len(ids) <= longest:
            found.append((ids, labels))
    return found
    ### END SOLUTION


# %% name="chats_check" points=1
check("x4.chats", labeled_chats)

# %% name="chats_hint"
hint("x4.chats")

# %% [markdown] name="real_text"
# ### On a real model (no points)
#
# Where a pretrained model is installed (`make install-real`, see [[adapters_in_practice]]), the next cell runs your functions on it, unchanged: SmolLM2-135M-Instruct trains on two short batches of Python source. No points depend on it: the check above and the grading use the small Llama.

# %% name="real"
try:
    pretrained = real_model()
    texts = (bytes(torch.cat([ids.flatten() for ids, _ in batch]).tolist()) for batch in batches[:3])
    rows = [torch.tensor([pretrained.tokenizer(text.decode(errors="replace"))["input_ids"][:96]]) for text in texts]
    with torch.no_grad():
        start = pretrained.model(input_ids=rows[2], labels=rows[2]).loss.item()
    tuned = fine_tune(pretrained.model, [[(row, row)] for row in rows[:2]])
    with torch.no_grad():
        end = merged_model(tuned)(input_ids=rows[2], labels=rows[2]).loss.item()
    print(f"{pretrained.name}, two updates, merged: {end:.3f} nats per token on other Python; before {start:.3f}")
except (RealModelError, NotImplementedError) as error:
    print(str(error) or "This appears once part 4 is written.")

# %% [markdown] name="seven_text"
# ## Your plan at 7B
#
# On a GPU with enough memory, the next cells carry out your plan for 7B and compare the peak with the planner's: first for two updates with random weights, then with real weights if you name a model. On other machines you see only the planner's figure.

# %% name="seven"
try:
    recipe = fine_tune_plan()
    planned = plan(recipe)
    peak_guess.reveal(planned.peak_allocated_bytes / GiB, "planned")
    print(f"{recipe.micro_batch_size * recipe.seq:,} tokens in a micro-batch: {recipe.summary}")
except NotImplementedError:
    planned = None
    print("This appears once part 3 is written.")

# %% [markdown] name="seven_left"
# Each token count that you can choose is twice the one before. The largest that fits can therefore leave several GiB of the card empty, because twice as many tokens need more than the whole card.

# %% name="measured"
room = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
if planned and room > planned.reserved_bytes[1]:
    seen = measure_recipe(recipe)
    speed = recipe.micro_batch_size * recipe.gradient_accumulation_steps * recipe.seq / seen.seconds
    print(
        f"measured: {seen.peak_bytes / GiB:.2f} GiB allocated, {seen.reserved_bytes / GiB:.2f} reserved, {speed:,.0f} tokens/s"
    )
else:
    print(f"This device has {room / GiB:.0f} GiB of GPU memory, so nothing is trained here: there is only the plan.")

# %% [markdown] name="real_seven_text"
# Random weights take as many bytes as real ones, but a model with random weights learns nothing useful here. If you name a real 7B Llama, the script that is exported from your plan fine-tunes it for ten updates on Python's manual and saves the adapter in `trained`. (The script runs in a process of its own, so almost all of the GPU's memory is free for it.)

# %% name="real_seven"
SEVEN = ""  # such as "meta-llama/Llama-2-7b-hf", or a folder
if SEVEN and planned and room > planned.reserved_bytes[1]:
    torch.cuda.empty_cache()
    Path("train_seven.py").write_text(training_script(recipe))
    line = [sys.executable, "train_seven.py", "--weights", SEVEN, "--steps", "10", "--checkpoint-every", "0"]
    done = subprocess.run(line, capture_output=True, text=True)
    print(done.stdout or done.stderr[-500:])
    print(f"planned: peak {planned.peak_allocated_bytes / GiB:.2f} GiB")
else:
    print("No model is named, or there is no GPU with room for the plan, so nothing is fine-tuned here.")

# %% [markdown] name="submit"
# ## Submit
#
# Save this notebook without renaming it. Your instructor collects it as `YOUR_NAME/20_x4_lora.ipynb` and grades it with
#
# ```
# python -m helpers grade SUBMISSIONS --out GRADES
# ```
#
# The grader takes only your five answer cells, runs them with different random numbers, and applies the same ten checks, worth one point each. (Each check cell above runs one to three of them.) Changes elsewhere in the notebook neither help nor hurt.
