"""The small Llama that is fine-tuned: it has read English, and is asked for Python source."""

import copy
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.data import Split, english, python_source
from ...core.device import pick_device
from ..probing.plain import plain

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LENGTH, ROWS, STEPS = 48, 16, 60
PROMPTS = (0, 28, 40, 45)  # tokens at the beginning of a row that do not count, by micro-batch of a batch
MICRO_BATCHES = len(PROMPTS)
MicroBatch = tuple[Tensor, Tensor]  # ids, labels


def llama_config(**sizes: Any) -> Any:
    """Return the `LlamaConfig` of a small Llama, of other `sizes` where they are given."""
    from transformers import LlamaConfig

    small = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2}
    return LlamaConfig(**small | {"num_attention_heads": 4, "max_position_embeddings": 64} | sizes)


def _windows(ids: Tensor, n: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(ids) - LENGTH, (n,), generator=generator)
    return torch.stack([ids[i : i + LENGTH] for i in starts.tolist()])


@functools.lru_cache(maxsize=2)
def pretrained(seed: int) -> nn.Module:
    """Return a small Llama that has read some English."""
    from transformers import LlamaForCausalLM

    device, text = pick_device(), english()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(llama_config()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(80):
        ids = _windows(text.train_x, ROWS, generator).to(device)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def batches_of(text: Split, n: int, seed: int) -> list[list[MicroBatch]]:
    """Return `n` batches of stretches of `text`, three micro-batches and then four each: ids and labels, both (4, 48).

    Labels are the ids, and -100 where a token does not count. Micro-batches of a batch differ in how many count.
    """
    generator, of_prompts = (torch.Generator().manual_seed(number) for number in (seed, seed + 1))
    place, batches = torch.arange(LENGTH), []
    for _ in range(n):
        rows = _windows(text.train_x, ROWS, generator).chunk(MICRO_BATCHES)
        prompts = [PROMPTS[i] for i in torch.randperm(MICRO_BATCHES, generator=of_prompts)]
        pairs = [(ids, ids.masked_fill(place < prompt, -100)) for ids, prompt in zip(rows, prompts, strict=True)]
        batches.append([(ids.to(pick_device()), labels.to(pick_device())) for ids, labels in pairs])
    batches[0].pop()
    return batches


def tensors_of(batches: list[list[MicroBatch]]) -> list[Tensor]:
    """Return ids and labels of all micro-batches, in order."""
    return [tensor for batch in batches for pair in batch for tensor in pair]


def copied(batches: list[list[MicroBatch]]) -> list[list[MicroBatch]]:
    """Return batches with tensors of their own."""
    return [[(ids.clone(), labels.clone()) for ids, labels in batch] for batch in batches]


def fresh(seed: int) -> nn.Module:
    """Return a copy of the small Llama; the random numbers that follow are the same whether it was trained just now."""
    model = copy.deepcopy(pretrained(seed))
    torch.manual_seed(seed)
    return model


def small_llama(seed: int = 0) -> tuple[nn.Module, list[list[MicroBatch]], Tensor]:
    """Return what part 4 is tried on.

    Returns:
        a small Llama that has read some English, in evaluation mode; 60 batches of Python source, of three
        micro-batches and then four each, (ids, labels) of shape (4, 48); 64 held-out stretches of it, (64, 48).
    """
    return fresh(seed), batches_of(python_source(), STEPS, seed), held_out(seed)


def held_out(seed: int, rows: int = 64) -> Tensor:
    """Return stretches of Python source that no batch holds, token ids (rows, 48)."""
    return _windows(python_source().test_x, rows, torch.Generator().manual_seed(seed)).to(pick_device())


@torch.no_grad()
def loss_on_held_out(model: nn.Module, seed: int) -> float:
    """Return the loss on held-out Python. The model sees no token before it has predicted it."""
    ids, losses = held_out(seed, 256), []
    for length in range(6, ids.shape[1], 6):
        logits = plain(model(input_ids=ids[:, :length]).logits)[:, -1]
        losses.append(F.cross_entropy(logits.float(), ids[:, length]))
    return torch.stack(losses).mean().item()


@functools.lru_cache(maxsize=2)
def loss_before(seed: int) -> float:
    """Return the loss on held-out Python of the base itself."""
    return loss_on_held_out(pretrained(seed), seed)
