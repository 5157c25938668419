"""The meter against known truths, and against the peak rebuilt from PyTorch's own profiler."""

import contextlib
import functools
import gc
import pickle
import threading
import time
import warnings

from helpers import TENANTS, MemoryMeter, MiB, SmallCNN, SmallGPT, ViT, digits, pick_device, state_bytes
from helpers.meter.count import state_tensors
from helpers.planner.simulate.blocks import find_blocks

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

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
    config = LlamaConfig(vocab_size=500, num_key_value_heads=2, use_cache=False, **SIZES)
    return hugging_face(LlamaForCausalLM, config)


def llama_lora():
    model, x, y = llama()
    model.model = get_peft_model(model.model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))
    return model, x, y


def bert():
    return hugging_face(BertForMaskedLM, BertConfig(vocab_size=500, **SIZES))


def gpt2_eager():
    config = GPT2Config(vocab_size=500, n_embd=64, n_layer=4, n_head=4, use_cache=False)
    config._attn_implementation = "eager"
    return hugging_face(GPT2LMHeadModel, config)


def training_step(model, optimizer, x, y, dtype):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
    loss.backward()
    optimizer.step()


# -- exactness: architectures x recipes


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


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("make", ARCHITECTURES, ids=lambda f: f.__name__)
def test_peak_is_the_allocators_to_a_tenth_of_a_percent(make, recipe):
    torch.manual_seed(0)
    model, x, y = make()
    optimizers, step = recipe(model)
    step(x, y)
    model.zero_grad()  # so that nothing older than the profile is freed in it, which the profile would not see
    state = [t for optimizer in optimizers for t in state_tensors(optimizer)]
    truth = rebuilt_peak(lambda: step(x, y), storages(*model.parameters(), *model.buffers(), *state, x, y))
    model.zero_grad()
    with MemoryMeter(model, optimizers) as meter:
        step(x, y)
    assert meter.method == "allocator"
    assert meter.peak_bytes == pytest.approx(truth, rel=1e-3)
    assert sum(meter.at_peak.values()) == meter.peak_bytes
    assert set(meter.at_peak) == set(TENANTS)
    assert bool(meter.largest["recomputed activations"]) == (recipe is checkpointed and bool(find_blocks(model)))
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    if recipe is step_in_backward:
        assert 0 < meter.largest["gradients"] < trained  # never all at once
    else:
        assert meter.largest["gradients"] == pytest.approx(trained, rel=0.01)


def test_known_allocations_are_counted_to_the_byte():
    with MemoryMeter(device=CPU) as meter:
        a = torch.empty(3 * MiB, dtype=torch.uint8)
        b = torch.empty(5 * MiB, dtype=torch.uint8)
        del a
        c = torch.empty(2 * MiB, dtype=torch.uint8)
    assert meter.peak_bytes == 8 * MiB  # a and b; then b and c hold 7
    assert meter.at_peak["temporaries"] == 8 * MiB
    del b, c


def test_memory_older_than_the_meter_ends_when_it_is_freed():
    old = [torch.ones(4 * MiB, dtype=torch.uint8)]
    with MemoryMeter(device=CPU) as meter:
        old[0].view(-1)[0].item()  # the meter learns of it
        old.clear()
        new = torch.empty(3 * MiB, dtype=torch.uint8)
    assert meter.peak_bytes == 4 * MiB
    del new


def test_views_and_in_place_operations_cost_nothing():
    with MemoryMeter(device=CPU) as meter:
        a = torch.zeros(MiB, dtype=torch.uint8)
        a.view(2, -1).bitwise_not_().t()[0].zero_()
    assert meter.peak_bytes == MiB


def test_tenants_of_a_linear_layer_are_what_arithmetic_says():
    model = nn.Linear(256, 512, bias=False)
    weight = 256 * 512 * 4
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x = torch.randn(64, 256)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    with MemoryMeter(model, optimizer) as meter:
        step()
    assert meter.largest["parameters"] == weight
    assert meter.largest["gradients"] == weight
    assert meter.largest["optimizer state"] == 2 * weight + 4  # two moments and the step
    assert meter.largest["inputs and other"] == x.nbytes
    assert meter.largest["activations"] == 64 * 512 * 4  # what square() keeps; the input is counted as input


def test_tied_weights_are_counted_once():
    model = SmallGPT(layers=1)
    with MemoryMeter(model) as meter:
        pass
    once = sum(p.numel() * 4 for p in model.parameters())
    assert meter.peak_bytes == once


def test_frozen_parameters_get_no_gradients():
    model, x, y = cnn()
    model.features.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.head.parameters())
    training_step(model, optimizer, x, y, None)
    with MemoryMeter(model, optimizer) as meter:
        training_step(model, optimizer, x, y, None)
    assert meter.largest["gradients"] == sum(p.numel() * 4 for p in model.head.parameters())


def test_autocast_halves_activations_and_adds_weight_copies():
    model, x, y = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    seen = {}
    for dtype in (None, torch.bfloat16):
        training_step(model, optimizer, x, y, dtype)
        with MemoryMeter(model, optimizer) as meter:
            training_step(model, optimizer, x, y, dtype)
        seen[dtype] = meter.largest
    assert seen[None]["weight copies"] == 0
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    biases = sum(m.bias.numel() for m in model.modules() if isinstance(m, nn.Linear) and m.bias is not None)
    assert seen[torch.bfloat16]["weight copies"] == pytest.approx(2 * (linear + biases), rel=0.02)
    assert seen[torch.bfloat16]["activations"] < 0.7 * seen[None]["activations"]
    assert seen[torch.bfloat16]["parameters"] == seen[None]["parameters"]
    assert seen[torch.bfloat16]["optimizer state"] == seen[None]["optimizer state"]


def test_checkpointing_keeps_fewer_activations():
    blocks = nn.Sequential(
        *(nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()) for _ in range(8))
    )
    x = torch.randn(128, 256, requires_grad=True)

    def held(run):
        with MemoryMeter(blocks) as meter:
            run().sum().backward()
        blocks.zero_grad()
        return meter.largest["activations"]

    def checkpointed():
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False)
        return y

    assert held(checkpointed) <= 0.6 * held(lambda: blocks(x))


def test_phase_and_operation_of_the_peak_are_named():
    model, x, y = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    training_step(model, optimizer, x, y, None)
    with MemoryMeter(model, optimizer) as meter:
        training_step(model, optimizer, x, y, None)
    assert meter.peak_at.split(":")[0] in ("forward", "backward", "optimizer step")
    assert "aten." in meter.peak_at
    assert meter.peak_at in str(meter)


def test_counted_where_a_profiler_is_already_running():
    with profile(activities=[ProfilerActivity.CPU]) as outer, MemoryMeter(device=CPU) as meter:
        a = torch.empty(MiB, dtype=torch.uint8)
        b = torch.empty(MiB, dtype=torch.uint8)
        del a
    assert meter.method == "counted"
    assert meter.peak_bytes == 2 * MiB
    assert any(event.name == "aten::empty" for event in outer.events())  # its recording is whole
    del b


def test_an_exception_leaves_the_meter_usable():
    class Boom(Exception):
        pass

    with pytest.raises(Boom), MemoryMeter(device=CPU) as meter:
        keep = torch.empty(MiB, dtype=torch.uint8)
        raise Boom
    assert meter.peak_bytes == keep.nbytes
    with MemoryMeter(device=CPU) as again:
        torch.empty(2 * MiB, dtype=torch.uint8)
    assert again.peak_bytes == 2 * MiB


def test_meters_nest():
    model, x, y = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    training_step(model, optimizer, x, y, None)
    with MemoryMeter(model, optimizer) as whole:
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        with MemoryMeter() as step:
            optimizer.step()
        optimizer.zero_grad()
        with MemoryMeter(device=CPU) as empty:
            pass
    assert whole.method == step.method == empty.method == "allocator"
    assert "optimizer step" in step.peak_at
    assert "optimizer step" not in whole.peak_at
    assert step.peak_bytes < whole.peak_bytes
    weights = sum(p.nbytes for p in model.parameters())
    assert step.at_peak["gradients"] == step.at_peak["parameters"] == weights
    assert empty.peak_bytes == pytest.approx(3 * weights, rel=0.05)  # parameters and two moments, and no gradients


def test_a_nested_meter_leaves_the_outer_one_whole():
    def run(nested):
        model, x, y = cnn()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with MemoryMeter(model, optimizer) as meter:
            for _ in range(2):
                if nested:
                    with MemoryMeter(model, optimizer):
                        training_step(model, optimizer, x, y, None)
                else:
                    training_step(model, optimizer, x, y, None)
        return meter.peak_bytes, meter.at_peak

    assert run(nested=True) == run(nested=False)


def test_stages_of_a_step():
    model, x, y = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    training_step(model, optimizer, x, y, None)
    optimizer.zero_grad()
    with MemoryMeter(model, optimizer) as meter:
        training_step(model, optimizer, x, y, None)
    assert [stage.name for stage in meter.stages] == ["forward", "backward", "optimizer step"]
    forward, backward, step = meter.stages
    assert forward.held_after["activations"] > 0
    assert forward.held_after["gradients"] == 0
    assert backward.held_after["activations"] == 0
    assert backward.held_after["gradients"] == step.held_after["gradients"] > 0
    assert max(stage.peak_bytes for stage in meter.stages) == meter.peak_bytes


def test_the_module_of_the_peak_is_named():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4096))
    with MemoryMeter(model) as meter:
        model(torch.randn(64, 8))
    assert meter.peak_at == "forward: aten.addmm.default in 1 (Linear)"
    loss = model(torch.randn(64, 8)).sum()
    with MemoryMeter(model) as meter:
        loss = model(torch.randn(64, 8)).sigmoid().sum()
        loss.backward()
    assert meter.peak_at.startswith("backward: ")
    modules = {op.module for op in meter._ops if op.phase == "backward"}
    assert "0 (Linear)" in modules
    assert "1 (Linear)" in modules


def test_recomputed_activations_are_named():
    model, x, y = gpt()
    checkpointed(model)
    with MemoryMeter(model) as meter:
        F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
    one_block = 4 * 64 * 128 * 4  # bytes of (B, T, W) in FP32
    assert meter.largest["recomputed activations"] > 8 * one_block  # of one block: at least qkv, out, and the MLP's 4x
    assert meter.largest["recomputed activations"] < 25 * one_block  # and of one block at a time
    assert meter.stages[0].held_after["recomputed activations"] == 0
    assert any(op.phase == "backward (recomputing)" for op in meter._ops)


def test_a_compiled_model_is_measured_compiled_and_says_what_is_hidden():
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
    model.compile(backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 256)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    optimizer.zero_grad()
    truth = rebuilt_peak(step, storages(*model.parameters()))
    optimizer.zero_grad()
    with MemoryMeter(model, optimizer) as meter:
        step()
    assert meter.peak_bytes == pytest.approx(truth, rel=1e-3)
    assert meter.at_peak["activations"] == 0
    assert "compiled" in str(meter)
    assert meter.largest["gradients"] == sum(p.nbytes for p in model.parameters())


def test_a_compiled_function_is_measured_quietly(capfd):
    compiled = torch.compile(lambda x: (x.sin() + 1).cos(), backend="aot_eager")
    x = torch.randn(2**16)
    compiled(x)
    for by_tenant in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with MemoryMeter(by_tenant=by_tenant) as meter:
                compiled(x)
        assert meter.peak_bytes >= 2 * x.nbytes
        assert bool(meter.at_peak["inputs and other"]) is by_tenant
    assert capfd.readouterr().err == ""


def test_peak_only_agrees_and_tells_no_tenants_apart():
    model, x, y = cnn()
    optimizer = torch.optim.AdamW(model.parameters())
    step = lambda: training_step(model, optimizer, x, y, None)  # noqa: E731
    step()
    with MemoryMeter(model, optimizer) as full:
        step()
    with MemoryMeter(model, optimizer, by_tenant=False) as peak:
        step()
    known = storages(x, y)  # nobody told it of the inputs
    assert peak.peak_bytes == pytest.approx(full.peak_bytes - known, rel=1e-3)
    assert peak.at_peak["activations"] == 0
    assert peak.at_peak["parameters"] == full.at_peak["parameters"]


def test_a_snapshot_opens_in_pytorchs_viewer(tmp_path):
    from torch.cuda import _memory_viz

    model, x, y = cnn()
    with MemoryMeter(model) as meter:
        F.cross_entropy(model(x), y).backward()
    meter.save_snapshot(tmp_path / "snapshot.pickle")
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert "aten.convolution" in _memory_viz.trace(snapshot) + str(snapshot)
    alive = peak = 0
    for event in snapshot["device_traces"][0]:
        alive += event["size"] if event["action"] == "alloc" else -event["size"]
        peak = max(peak, alive)
    assert peak == pytest.approx(meter.peak_bytes, rel=0.01)  # its times are in microseconds
    assert _memory_viz.trace_plot(snapshot)
    assert meter.plot_blocks().axes[0].collections


def test_a_step_costs_less_than_half_as_much_again():
    model = SmallGPT(layers=4, width=256)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(256, (16, 128))
    step = lambda: training_step(model, optimizer, ids, ids, None)  # noqa: E731
    step()
    plain, metered = [], []
    for _ in range(7):  # alternately, so that both meet the same disturbances; the best of each
        start = time.perf_counter()
        step()
        plain.append(time.perf_counter() - start)
        with MemoryMeter(model, optimizer):
            start = time.perf_counter()
            step()
            metered.append(time.perf_counter() - start)
    assert min(metered) < 1.5 * min(plain)


def test_a_meter_changes_no_numbers():
    def weights(metered):
        torch.manual_seed(0)
        model, x, y = gpt()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            if metered:
                with MemoryMeter(model, optimizer):
                    training_step(model, optimizer, x, y, torch.bfloat16)
            else:
                training_step(model, optimizer, x, y, torch.bfloat16)
        return torch.cat([p.flatten() for p in model.parameters()])

    assert torch.equal(weights(True), weights(False))


def test_reports_read_well():
    model, x, _ = gpt()
    with MemoryMeter(model) as meter:
        model(x)
    assert str(meter).startswith("peak ")
    assert "parameters" in str(meter)
    assert "<table>" in meter._repr_html_()
    assert meter.plot().axes


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_cuda_peak_is_the_caching_allocators():
    device = pick_device()
    model = SmallGPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(256, (8, 128), device=device)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, -2), ids.flatten()).backward()
        optimizer.step()

    step()
    torch.cuda.reset_peak_memory_stats()
    with MemoryMeter(model, optimizer) as meter:
        step()
    assert meter.peak_bytes + meter.outside_bytes == pytest.approx(torch.cuda.max_memory_allocated(), rel=1e-3)


# -- found by attacking the meter


def test_forward_passes_without_backward_are_let_go():
    layer = nn.Linear(64, 64)
    x = torch.randn(1000, 64)
    with MemoryMeter(layer) as meter:
        for _ in range(10):
            torch.tanh(layer(x))  # tanh saves its own output
    one = 1000 * 64 * 4
    assert meter.largest["activations"] + meter.largest["temporaries"] <= 4 * one


def test_in_place_changes_of_saved_tensors_are_still_errors():
    a = torch.randn(8, requires_grad=True)
    with MemoryMeter(device=CPU):
        b = a.exp()
        b.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            b.sum().backward()


def test_gradients_of_gradients_are_unchanged():
    def second_derivative():
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        (first,) = torch.autograd.grad(x.tanh().pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    expected = second_derivative()
    with MemoryMeter(device=CPU):
        assert torch.equal(second_derivative(), expected)


def test_casts_of_tensors_without_memory_pass():
    with MemoryMeter(device=CPU) as meter:
        torch.empty(0).to(torch.float64)
        torch.empty(4, device="meta").to(torch.float64)
        torch.eye(4).to_sparse().to(torch.float64)
    assert meter.peak_bytes > 0


def test_memory_of_others_counts_from_when_it_is_touched_and_once():
    array = np.zeros(MiB // 4, np.float32)
    with MemoryMeter(device=CPU) as meter:
        for _ in range(10):
            torch.from_numpy(array).sum()
    assert meter.peak_bytes < 1.01 * MiB
    with MemoryMeter(device=CPU) as meter:
        for _ in range(10):
            torch.from_numpy(np.ones(MiB // 4, np.float32)).sum()  # new memory each time, freed each time
    assert meter.peak_bytes < 2.01 * MiB


def test_entering_twice_is_refused_and_harms_nothing():
    meter, model = MemoryMeter(device=CPU), nn.Linear(4, 4)
    with meter, pytest.raises(RuntimeError, match="measuring already"), meter:
        pass
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"), pytest.raises(RuntimeError), MemoryMeter(model):
        pass
    assert not model._forward_hooks
    assert not torch.autograd._profiler_enabled()
    with MemoryMeter(model) as again:
        model(torch.ones(2, 4))
    assert again.method == "allocator"
    with MemoryMeter(device=CPU), pytest.raises(RuntimeError, match="wait its turn"):
        MemoryMeter(device=torch.device("meta")).__enter__()


def test_a_meter_in_another_thread_counts_and_harms_nothing():
    seen = []

    def work():
        with MemoryMeter(device=CPU) as meter:
            keep = torch.empty(MiB, dtype=torch.uint8)
        seen.append((meter.method, meter.peak_bytes, keep.nbytes))

    with MemoryMeter(device=CPU) as meter:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        keep = torch.empty(2 * MiB, dtype=torch.uint8)
    assert seen == [("counted", MiB, MiB)]
    assert meter.method == "allocator"
    assert meter.peak_bytes >= keep.nbytes
    assert not torch.autograd._profiler_enabled()


def test_gradients_of_gradients_are_no_recomputation():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x = torch.randn(32, 64, requires_grad=True)
    with MemoryMeter(model) as meter:
        y = model(x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        (y + g.square().sum()).backward()
    assert meter.largest["recomputed activations"] == 0


def test_functions_without_modules_are_recomputed_too():
    x = torch.randn(256, 256, requires_grad=True)
    with MemoryMeter(device=CPU) as meter:
        checkpoint(lambda t: t.exp().tanh().sigmoid(), x, use_reentrant=False).sum().backward()
    assert meter.largest["recomputed activations"] >= 2 * x.nbytes


def test_a_closure_is_forward_and_a_failed_step_is_over():
    model = nn.Linear(32, 32)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(8, 32)).square().mean()
        loss.backward()
        return loss

    with MemoryMeter(model, optimizer) as meter:
        optimizer.step(closure)
    assert any(op.phase == "forward" and op.module == "Linear" for op in meter._ops)
    bad = torch.optim.SGD(model.parameters(), lr=0.1)
    bad.param_groups[0]["lr"] = "high"
    with MemoryMeter(model, bad) as meter:
        model(torch.ones(8, 32)).sum().backward()
        with contextlib.suppress(TypeError):
            bad.step()
        model(torch.ones(8, 32))
    assert meter.stages[-1].name == "forward"


def test_sparse_gradients_are_gradients():
    model = nn.Embedding(1000, 16, sparse=True)
    with MemoryMeter(model) as meter:
        model(torch.arange(50)).sum().backward()
    assert meter.largest["gradients"] == 50 * 16 * 4 + 50 * 8


def test_lazy_and_scripted_modules_pass():
    with MemoryMeter(nn.Sequential(nn.LazyLinear(4))):
        pass
    with MemoryMeter(torch.jit.trace(nn.Linear(4, 4), torch.ones(1, 4))) as meter:
        pass
    assert meter.peak_bytes == 4 * 20


def test_a_peak_inside_is_not_the_start():
    model, x, _ = cnn()
    with MemoryMeter(model, by_tenant=False) as meter:
        model(x).sum().backward()
    assert meter.peak_at == "some operation"


def test_a_meter_can_be_used_again_and_forgets():
    meter = MemoryMeter(device=CPU)
    with meter:
        torch.empty(8 * MiB, dtype=torch.uint8)
    with meter:
        torch.empty(MiB, dtype=torch.uint8)
    assert meter.peak_bytes == MiB


def test_a_profiler_inside_the_block_makes_it_counted():
    with MemoryMeter(device=CPU) as meter:
        with profile(activities=[ProfilerActivity.CPU]):
            pass
        keep = torch.empty(MiB, dtype=torch.uint8)
    assert meter.method == "counted"
    assert meter.peak_bytes == keep.nbytes


def test_weights_made_anew_are_parameters():
    model = nn.Linear(128, 128)
    with MemoryMeter(model) as meter:
        model.half()
    assert meter.timeline[-1][1]["parameters"] == 2 * (128 * 128 + 128)
    assert meter.timeline[-1][1]["weight copies"] == 0


def test_an_unused_meter_can_be_printed_and_plotted():
    meter = MemoryMeter(device=CPU)
    assert "nothing was allocated" in str(meter)
    assert meter.plot().axes


@pytest.mark.parametrize("package", ["bitsandbytes", "torchao"])
def test_state_in_few_bits_is_known_byte_by_byte(package):
    """The tensors inside torchao's are found, and code books that parameters share count once."""
    pytest.importorskip(package)
    model = nn.Sequential(nn.Linear(128, 256, bias=False), nn.Linear(256, 128, bias=False))
    n, blocks = 128 * 256, 128 * 256 // 256
    if package == "torchao":
        from torchao.optim import AdamW8bit

        expected = 2 * (4 + 2 * (n + 4 * blocks + 4 * 256))
    else:
        from bitsandbytes.optim import AdamW8bit

        expected = 2 * 2 * (n + 4 * blocks) + 2 * 4 * 256
    optimizer = AdamW8bit(model.parameters())
    assert state_bytes(optimizer) == 0
    with torch.compiler.set_stance("force_eager"):
        for _ in range(2):
            with MemoryMeter(model, optimizer) as meter:
                model(torch.randn(4, 128)).sum().backward()
                optimizer.step()
    assert state_bytes(optimizer) == expected
    # A step counter may have lived before anyone looked; torchao's learning rate is a tensor, too.
    assert meter.largest["optimizer state"] == pytest.approx(expected, abs=64)
