"""Models and recipes that the meter is tried on, and the peak rebuilt from PyTorch's own profiler."""

import functools
import gc

from helpers import SmallCNN, SmallGPT, ViT, digits
from helpers.planner.simulate.blocks import find_blocks

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

CPU = torch.device("cpu")


def cnn():
    data = digits(size=16)
    return SmallCNN(width=16), data.train_x[:64], data.train_y[:64]


def gpt():
    ids = torch.randint(256, (4, 65), generator=torch.Generator().manual_seed(0))
    return SmallGPT(layers=4, context=64), ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def vit():
    data = digits(size=16)
    return ViT(), data.train_x[:64], data.train_y[:64]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 64, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(64, 10)

    def forward(self, x):  # (B, 1, 8, 8) -> (B, 10)
        return self.head(self.drop(self.lstm(x.squeeze(1))[0][:, -1]))


def lstm():
    data = digits()
    return Recurrent(), data.train_x[:128], data.train_y[:128]


def mlp():
    data = digits()
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Dropout(0.1)) for _ in range(4)]
    return (
        nn.Sequential(nn.Flatten(), nn.Sequential(*blocks), nn.Linear(64, 10)),
        data.train_x[:256],
        data.train_y[:256],
    )


class Logits(nn.Module):
    """A Hugging Face model that takes a tensor and returns one."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).logits


def hugging_face(family, config):
    torch.manual_seed(0)
    ids = torch.randint(config.vocab_size, (4, 64))
    return Logits(family(config)), ids, ids


SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4}


def llama():
    config = transformers.LlamaConfig(vocab_size=500, num_key_value_heads=2, use_cache=False, **SIZES)
    return hugging_face(transformers.LlamaForCausalLM, config)


def llama_lora():
    from peft import LoraConfig, get_peft_model  # eight seconds that collecting tests need not take

    model, x, y = llama()
    model.model = get_peft_model(model.model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))
    return model, x, y


def bert():
    return hugging_face(transformers.BertForMaskedLM, transformers.BertConfig(vocab_size=500, **SIZES))


def gpt2_eager():
    config = transformers.GPT2Config(vocab_size=500, n_embd=64, n_layer=4, n_head=4, use_cache=False)
    config._attn_implementation = "eager"
    return hugging_face(transformers.GPT2LMHeadModel, config)


def training_step(model, optimizer, x, y, dtype):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
    loss.backward()
    optimizer.step()


def fp32_adamw(model):
    optimizer = torch.optim.AdamW(model.parameters())
    return [optimizer], lambda x, y: training_step(model, optimizer, x, y, None)


def bf16_autocast(model):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return [optimizer], lambda x, y: training_step(model, optimizer, x, y, torch.bfloat16)


def checkpointed(model):
    for block in find_blocks(model):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return bf16_autocast(model)


def frozen_half(model):
    parameters = list(model.parameters())
    for parameter in parameters[: len(parameters) // 2]:
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.01, momentum=0.9)
    return [optimizer], lambda x, y: training_step(model, optimizer, x, y, None)


def accumulation(model):
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step(x, y):
        for part_x, part_y in zip(x.chunk(2), y.chunk(2), strict=True):
            (F.cross_entropy(model(part_x).flatten(0, -2), part_y.flatten()) / 2).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return [optimizer], step


def step_in_backward(model):
    optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters() if p.requires_grad}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)
    return list(optimizers.values()), lambda x, y: F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()


def first_step(step, x, y):
    """Run `step`, so that the optimizer's state appears; skip the test where this CPU has no kernel for it."""
    try:
        step(x, y)
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        pytest.skip("this CPU's oneDNN has no such kernel (an LSTM in BF16)")


ARCHITECTURES = (cnn, gpt, vit, lstm, mlp, llama, llama_lora, bert, gpt2_eager)

RECIPES = (fp32_adamw, bf16_autocast, checkpointed, frozen_half, accumulation, step_in_backward)


def rebuilt_peak(step, static):
    """The peak of `step` from the profiler's running balance, plus the bytes that were there before."""
    gc.collect()  # what an earlier test left behind and is freed during the profile would count as negative
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    balance = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            balance += event.nbytes()
            peak = max(peak, balance)
    return static + peak


def storages(*tensors):
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())
