"""`with virtual_gpu(...)`: a GPU inside the block, and nothing of it afterwards."""

import contextlib
import copy
import threading
import warnings
from collections import deque
from itertools import pairwise
from typing import ClassVar

from helpers.planner import Recipe, RecipeError
from helpers.planner.plan import plan
from helpers.virtual_gpu import virtual_gpu
from helpers.virtual_gpu.homes import on_gpu
from helpers.virtual_gpu.steps import EnoughStepsError

import pytest
import torch
import torch.nn.functional as F
from IPython.core.interactiveshell import InteractiveShell
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from traitlets.config import Config

MODULES = (torch, torch._C, torch.cuda, torch.Tensor, torch.UntypedStorage, torch.cuda.streams, torch.cuda.memory)


def attributes():
    """Return what PyTorch's modules hold; what they import when first asked is no difference."""
    return {(str(owner), name): value for owner in MODULES for name, value in list(vars(owner).items())}


def train(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(4, 8, device=device)).float().square().mean()
    loss.backward()
    optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_a_weight_on_the_cpu_stays_there_after_an_update_by_zeros_that_cpp_made():
    with virtual_gpu("h100-80gb"):
        weight = nn.Parameter(torch.ones(2, 4))
        weight.unbind()[0].sum().backward()  # the other row's gradient is made in C++
        with torch.no_grad():
            weight.sub_(weight.grad)
        assert not on_gpu(weight)
        assert not on_gpu(weight.grad)
        assert F.scaled_dot_product_attention(weight, weight, weight).shape == (2, 4)


def test_nothing_is_left_behind():
    before, weights = train("cpu"), None
    with virtual_gpu("t4"):
        train("cuda")  # what PyTorch imports on the way stays
    known = attributes()
    with virtual_gpu("rtx-4090") as run:
        x = torch.ones(3, 4, device="cuda")
        assert (x.device.type, torch.cuda.is_available()) == ("cuda", True)
        train("cuda")
    left = {key: value for key, value in attributes().items() if known.get(key, key) is not value}
    assert left == {}
    assert not torch.cuda.is_available()
    assert x.device.type == "cpu"
    assert torch._C._len_torch_dispatch_stack() == 0
    weights = train("cpu")
    assert all(torch.equal(a, b) for a, b in zip(before, weights, strict=True))
    assert run.peak_allocated > 0


def test_nothing_is_left_after_an_error_either():
    with pytest.raises(ZeroDivisionError), virtual_gpu("t4"):
        torch.ones(3, device="cuda")
        1 / 0  # noqa: B018
    assert not torch.cuda.is_available()
    assert torch.ones(2).device.type == "cpu"


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["install.autocast.install", "dry_run.DryRun.close", "install.gc.collect"])
def test_nothing_is_left_after_an_interrupt_at_the_edges_of_a_block(place, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(f"helpers.virtual_gpu.{place}", interrupted)
        with pytest.raises(KeyboardInterrupt), virtual_gpu("t4"):
            torch.ones(3, device="cuda")
    assert not torch.cuda.is_available()
    assert torch._C._len_torch_dispatch_stack() == 0
    with virtual_gpu("t4") as run:
        torch.ones(2**20, device="cuda")
    assert run.peak_allocated == 2**22


def test_nothing_is_left_after_an_interrupt_of_a_backward_pass():
    with pytest.raises(KeyboardInterrupt), virtual_gpu("t4"):
        x = torch.ones(3, device="cuda", requires_grad=True)
        y = x * 2
        y.register_hook(interrupted)
        y.sum().backward()
    train("cpu")
    with virtual_gpu("t4"):
        train("cuda")


def test_lost_values_of_an_earlier_model_are_warned_of():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    with (
        pytest.warns(UserWarning, match=r"^The values of Sequential are lost: .* inside the block") as seen,
        virtual_gpu("t4"),
    ):
        model.cuda()
    assert [warning.filename for warning in seen] == [__file__]


def there_and_back(model):
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2000, 4, device="cuda")).sum().backward()
    optimizer.step()
    model.cpu()


def test_lost_values_of_a_small_model_that_comes_back_are_warned_of():
    model = nn.Linear(4, 4)
    with (
        pytest.warns(UserWarning, match=r"^The values of Linear are lost"),
        virtual_gpu("t4"),
    ):
        there_and_back(model)


def test_values_that_an_earlier_block_has_lost_are_not_warned_of_again():
    model = nn.Linear(4, 4)
    with pytest.warns(UserWarning, match=r"^The values of Linear are lost"), virtual_gpu("t4"):
        there_and_back(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with virtual_gpu("t4"):
            nn.Linear(4, 4).cuda()


def test_values_that_are_loaded_again_are_not_lost():
    model = nn.Linear(4, 4)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with warnings.catch_warnings(), virtual_gpu("t4"):
        warnings.simplefilter("error")
        there_and_back(model)
        model.load_state_dict(kept)


class Heard(Tensor):
    """A tensor that notes what is called on it."""

    calls: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_hear_of_the_methods_that_are_replaced():
    def heard():
        Heard.calls.clear()
        x = torch.ones(3).as_subclass(Heard)
        assert [type(x.cpu()), type(x.type_as(x)), type(torch.ones(3).type_as(x))] == [Heard] * 3
        x.numpy()
        x.tolist()
        return Heard.calls == [Tensor.cpu, Tensor.type_as, Tensor.type_as, Tensor.numpy, Tensor.tolist]

    assert heard()
    with virtual_gpu("t4"):
        assert heard()
        assert type(torch.ones(3).as_subclass(Heard).cuda()) is Heard
        assert Heard.calls[-1] is Tensor.cuda
    assert heard()


def test_models_that_lose_nothing_are_not_warned_of():
    model, values = nn.Linear(64, 64), {}
    with warnings.catch_warnings(), virtual_gpu("t4"):
        warnings.simplefilter("error")
        values = {name: value.clone() for name, value in model.state_dict().items()}
        copied = copy.deepcopy(model).cuda()
        copied(torch.ones(2, 64).cuda()).sum().backward()
        inside = nn.Linear(64, 64).cuda()
        model(torch.ones(2, 64)).sum().backward()
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert not inside.weight.is_cuda


def test_a_batch_norm_that_evaluates_returns_no_statistics():
    with virtual_gpu("t4"):
        norm, x = nn.BatchNorm1d(2**20, device="cuda"), torch.ones(2, 2**20, device="cuda")
        held = []
        for training in (True, False):
            norm.train(training)
            before = torch.cuda.memory_allocated()
            kept = norm(x)
            held.append(torch.cuda.memory_allocated() - before)
            del kept
    assert held == [2**24, 2**23]  # statistics: two FP32 numbers for each of 2**20 features


def test_an_optimizer_of_an_earlier_block_is_named_by_the_error():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model.cuda()(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with virtual_gpu("t4"):
        step()
    with virtual_gpu("t4"), pytest.raises(RuntimeError, match=r"cuda:0 and cpu!.* of an earlier block"):
        step()
    with virtual_gpu("t4"), pytest.raises(RuntimeError, match=r"cuda:0 and cpu!.*[^.]$"):
        nn.Linear(8, 8).cuda()(torch.ones(2, 8))


def test_the_picture_ends_where_the_memory_ran_out():
    with virtual_gpu("rtx-3060") as run, contextlib.suppress(torch.OutOfMemoryError):
        for_now = torch.empty(2**33, dtype=torch.uint8, device="cuda")
        torch.empty(2**33, dtype=torch.uint8, device="cuda")
    del for_now
    axes = run.plot().axes[0]
    assert len(run.ledger.events) == 1
    assert max(axes.dataLim.intervalx) == 1
    assert "asks for 8.00 GiB: out of memory" in [text.get_text() for text in axes.texts]

    def holds():
        held = torch.empty(2**33, dtype=torch.uint8, device="cuda")
        return held, torch.empty(2**33, dtype=torch.uint8, device="cuda")

    with virtual_gpu("rtx-3060") as run, contextlib.suppress(torch.OutOfMemoryError):
        holds()
    assert len(run.ledger.events) == 2  # it is free again
    assert max(run.plot().axes[0].dataLim.intervalx) == 1


def test_a_second_one_inside_is_refused():
    with virtual_gpu("t4"):
        with pytest.raises(RuntimeError, match="virtual GPUs already"), virtual_gpu("l4"):
            pass
        assert torch.cuda.is_available()
    with pytest.raises(RecipeError, match="not in the catalog"), virtual_gpu("rtx-9999"):
        pass


def test_memory_that_the_machine_does_not_have_is_not_taken():
    with virtual_gpu("b200") as run:
        x = torch.empty(64, 2**30, dtype=torch.float16, device="cuda")  # 128 GiB
        y = x[0].float() + 1
        assert y.shape == (2**30,)
    assert run.peak_allocated == 132 * 2**30 + 4 * 2**30


def test_out_of_memory_and_then_less():
    with virtual_gpu("rtx-3060") as run:
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 16\.00 GiB"):
            torch.empty(2**34, dtype=torch.uint8, device="cuda")
        torch.empty(2**33, dtype=torch.uint8, device="cuda")
    assert run.ledger.refusals


def test_what_outlives_a_block_is_the_cpus_in_the_next_one():
    with virtual_gpu("t4"):
        old = torch.ones(2**20, device="cuda")
    with virtual_gpu("t4") as run:
        assert old.device.type == "cpu"
        kept = old.to("cuda")
        del old
        assert torch.cuda.memory_allocated() == 2**22
        assert kept.is_cuda
    assert [record.died for record in run.ledger.events] == [-1]


KEPT = {
    "a graph": (lambda x, loss: loss, True),
    "a number": (lambda x, loss: loss.detach(), False),
    "a batch": (lambda x, loss: x, True),
    "the last two batches": (lambda x, loss: x, False),
    "nothing": (lambda x, loss: None, False),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_each_step_leaves_behind_is_found(name):
    (keep, left), kept = KEPT[name], deque(maxlen=2 if "two" in name else None)
    with virtual_gpu("t4") as run:
        model = nn.Sequential(nn.Linear(1024, 4096), nn.Tanh(), nn.Linear(4096, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(4):
            x = torch.randn(512, 1024).cuda()
            loss = model(x).mean()
            loss.backward(retain_graph=name == "a graph")
            optimizer.step()
            optimizer.zero_grad()
            kept.append(keep(x, loss))
    assert (run.left_behind is not None) == left
    assert ("Each step leaves" in str(run)) == left
    if name == "a batch":
        assert run.left_behind.nbytes == 4 * 512 * 1024


@pytest.mark.parametrize(("batch", "frozen"), [(1, True), (1, False), (2, True)])
def test_what_saves_hardly_anything_is_not_advised(batch, frozen):
    with virtual_gpu("t4") as run:
        with torch.device("cuda"):
            model = nn.Sequential(nn.Linear(8192, 8192).requires_grad_(not frozen), nn.Linear(8192, 2048), nn.ReLU())
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        for _ in range(2):
            x = torch.empty(batch, 40_960 // batch, 8192).cuda()  # batches come from the host
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            del x
    advised = " ".join(cure.change for cure in run.cures)
    assert ("half the batch" in advised) == (batch > 1)
    assert "inside the backward pass" not in advised  # at the peak, the activations are there and hardly a gradient


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_kernel_of_attention_can_be_forbidden(dtype):
    def held(*backends):
        with virtual_gpu("a100-40gb"), sdpa_kernel(list(backends)):
            q = torch.zeros(1, 8, 1024, 64, dtype=dtype, device="cuda", requires_grad=True)
            out = nn.functional.scaled_dot_product_attention(q, q, q)
            assert out.requires_grad
            return torch.cuda.memory_allocated()

    scores = 8 * 1024 * 1024 * dtype.itemsize
    fused = held(SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    assert fused < scores
    assert held(SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH) < scores
    assert held(SDPBackend.MATH) >= fused + scores


@pytest.mark.parametrize(
    ("gpu", "dtype", "width", "kernel"),
    [
        ("a100-40gb", torch.bfloat16, 64, "flash"),
        ("a100-40gb", torch.bfloat16, 60, "flash"),  # which pads the heads
        ("a100-40gb", torch.float32, 60, "efficient"),
        ("a100-40gb", torch.float32, 62, "plain"),
        ("t4", torch.float16, 64, "efficient"),
        ("t4", torch.float16, 60, "plain"),
        ("t4", torch.bfloat16, 64, "plain"),
        ("v100-16gb", torch.float32, 62, "efficient"),
        ("a100-40gb", torch.bfloat16, (192, 128), "efficient"),  # values of another width, as in DeepSeek's models
    ],
)
def test_the_gpu_the_dtype_and_the_width_of_a_head_decide_which_kernel_attends(gpu, dtype, width, kernel):
    """`sdp_utils.cpp`: flash needs compute capability 8.0; the other fused kernel wants multiples of 16 bytes."""
    with virtual_gpu(gpu):
        wide, narrow = width if isinstance(width, tuple) else (width, width)
        q, k, v = (
            torch.zeros(2, 4, 512, n, dtype=dtype, device="cuda", requires_grad=True) for n in (wide, wide, narrow)
        )
        before = torch.cuda.memory_allocated()
        out = nn.functional.scaled_dot_product_attention(q, k, v)
        assert out.shape == (2, 4, 512, narrow)
        kept = torch.cuda.memory_allocated() - before
        reached, waiting = set(), [out.grad_fn]
        while waiting:
            node = waiting.pop()
            reached.add(node.name())
            waiting += [following for following, _ in node.next_functions if following is not None]
        fused = {name.removeprefix("ScaledDotProduct").partition("Attention")[0].lower() for name in reached}
    assert ({"flash", "efficient"} & fused or {"plain"}) == {kernel}
    assert (kept > 2 * 4 * 512 * 512 * 2) == (kernel == "plain")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(10, 16), (4, 10, 16), (2, 3, 4, 10, 16)])
def test_attention_takes_tensors_of_any_dimensions(dtype, shape):
    with virtual_gpu("rtx-4090"):
        q = torch.zeros(shape, dtype=dtype, device="cuda", requires_grad=True)
        out = F.scaled_dot_product_attention(q, q, q)
        out.float().sum().backward()
        assert (out.shape, q.grad.shape) == (shape, shape)


def test_a_tensor_inside_a_transformation_knows_its_device():
    seen = []

    def loss(weight, x):
        seen.append((weight.device.type, x.is_cuda))
        return (weight * x + torch.arange(3, device=x.device)).sum()

    with virtual_gpu("rtx-4090"):
        weight, rows = torch.ones(3, device="cuda"), torch.ones(4, 3, device="cuda")
        assert torch.vmap(torch.func.grad(loss), (None, 0))(weight, rows).device.type == "cuda"
        torch.func.jvp(lambda w: loss(w, rows[0]), (weight,), (weight,))
    assert seen == [("cuda", True)] * 2


def updates(optimizers, number):
    for _ in range(number):
        for optimizer in optimizers:
            (parameter,) = optimizer.param_groups[0]["params"]
            parameter.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("idle", [0, 1])
def test_an_optimizer_that_took_no_step_is_reported(idle):
    with contextlib.suppress(EnoughStepsError), virtual_gpu("t4", steps=3) as run:
        made = [torch.optim.Adam([nn.Parameter(torch.ones(99, device="cuda"))]) for _ in range(2)]
        updates(made[idle:], 5)
    assert ("1 of the optimizers took no step" in str(run)) == (idle == 1)


def test_the_history_of_lbfgs_is_its_state_and_no_leak():
    with virtual_gpu("t4") as run:
        weight = nn.Parameter(torch.ones(2**16, device="cuda"))
        optimizer = torch.optim.LBFGS([weight], max_iter=4)

        def closure():
            optimizer.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)
    assert run.left_behind is None
    assert run.owners.categories["optimizer state"] > 8 * weight.nbytes


def test_a_copy_of_a_model_that_never_runs_is_no_input():
    with virtual_gpu("t4") as run:
        model = nn.Linear(512, 512).cuda()
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(4, 512, device="cuda")).sum().backward()
        optimizer.step()
    assert run.owners.categories["parameters"] >= 2 * sum(p.nbytes for p in average.parameters())


def test_bf16_is_not_advised_where_the_gpu_has_none():
    advised = {}
    for gpu in ("t4", "l4-24gb"):
        with virtual_gpu(gpu) as run:
            model = nn.Linear(4096, 4096).cuda()
            model(torch.ones(64, 4096, device="cuda")).sum().backward()
            torch.optim.AdamW(model.parameters()).step()
        advised[gpu] = any("BF16" in cure.change for cure in run.cures)
    assert advised == {"t4": False, "l4-24gb": True}


def test_a_program_that_looks_for_its_batch_is_reported_at_the_one_that_runs():
    with virtual_gpu("t4") as run:
        model = nn.Sequential(*(nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(8))).cuda()
        optimizer, batch = torch.optim.SGD(model.parameters(), 0.1), 2**17
        for _ in range(3):
            while True:
                try:
                    model(torch.empty(batch, 4096).cuda()).sum().backward()
                    break
                except torch.OutOfMemoryError:
                    batch //= 2
                    torch.cuda.empty_cache()
            optimizer.step()
            optimizer.zero_grad()
    first, *_, last = run.steps
    assert first.allocated > run.peak_allocated == last.allocated
    assert run.grades == {"t4-16gb": "fits"}
    assert "From the next step on, this GPU: fits" in str(run)


def test_the_busiest_of_several_gpus_is_named():
    with virtual_gpu("t4", gpus=2) as run:
        torch.ones(2**20, device="cuda:0"), torch.ones(2**22, device="cuda:1")
    assert "GPU 1, the busiest of 2; peaks of the others: GPU 0 4.00 MiB" in str(run)


def test_stand_ins_of_one_line_are_one_row_and_all_that_is_left_out_is_listed():
    with virtual_gpu("t4") as run:
        weight = nn.Parameter(torch.ones(2**13, device="cuda"))
        optimizer = torch.optim.SGD([weight], 0.1)
        for _ in range(9):
            loss = weight.sum()
            loss.backward()
            optimizer.step()
            loss.item()
        for number in range(20):
            run.waits.leave_out("file", f"{number}.txt: made-up text")
    rows = str(run).splitlines()
    assert sum("value of one element" in row and " to " in row for row in rows) == 1
    assert sum("made-up text" in row for row in rows) == 20


def test_a_limit_is_named_by_the_error():
    with virtual_gpu("rtx-3060"):
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(2**29 / total)
        words = r"memory in use\. 512\.00 MiB allowed; Of the allocated memory 0 bytes is allocated by PyTorch"
        with pytest.raises(torch.OutOfMemoryError, match=words):
            torch.empty(2**30, dtype=torch.uint8, device="cuda")


def test_parameters_on_meta_stay_there():
    with virtual_gpu("rtx-3060"), torch.device("meta"):
        layer = nn.Linear(1024, 1024)
        nn.init.normal_(layer.weight)
        assert layer.bfloat16().weight.is_meta


def test_a_line_of_a_notebook_is_named_by_its_cell():
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    try:
        with virtual_gpu("rtx-3060") as run:
            shell.run_cell("import torch\nkept = torch.ones(2**20, device='cuda')", store_history=True)
            shell.run_cell("del kept", store_history=True)
    finally:
        InteractiveShell.clear_instance()
    assert list(run.owners.lines) == ["In[1]:2"]


def test_threads_of_the_block_have_the_gpu():
    found = []
    with virtual_gpu("t4"):
        thread = threading.Thread(target=lambda: found.append(torch.ones(2, device="cuda").device.type))
        thread.start()
        thread.join()
    assert found == ["cuda"]


@pytest.mark.slow
def test_the_planner_simulates_inside():
    recipe = Recipe("gpt2")
    with virtual_gpu("a100-80gb"):
        inside = plan(recipe, "a100-80gb").peak_allocated_bytes
    assert inside == plan(recipe, "a100-80gb").peak_allocated_bytes


def test_no_step_lists_all_objects(monkeypatch):
    """A list of all objects would hold tuples that other threads are still building, and break them."""
    with virtual_gpu("t4") as run, monkeypatch.context() as patched:
        patched.setattr("gc.get_objects", lambda *_: pytest.fail("all objects were listed"))
        train("cuda")
    assert len(run.ledger.marks) == 1


def test_a_copy_of_an_optimizer_is_a_second_one():
    with virtual_gpu("t4") as run:
        first = torch.optim.SGD([nn.Parameter(torch.ones(3, device="cuda"))], 0.1)
        second = copy.deepcopy(first)
        for optimizer in (first, second):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.ones_like(parameter)
        for _ in range(3):
            first.step()
            second.step()
        assert len(run.ledger.marks) == 3  # a step ends when both have stepped


@pytest.mark.parametrize("used", [2, 1])
def test_a_step_of_several_optimizers_ends_before_the_next_batch(used):
    """Where the second is not used, the step turns out to be over only in the next batch, and ended before it."""
    with virtual_gpu("t4", steps=3) as run, contextlib.suppress(EnoughStepsError):
        models = [nn.Linear(256, 256, device="cuda") for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
        for batch in range(8):
            inputs = torch.ones(2048 * 4**batch, 256, device="cuda")
            for model, optimizer in list(zip(models, optimizers, strict=True))[:used]:
                model(inputs).sum().backward()
                optimizer.step()
    assert len(run.steps) == 3
    for before, after in pairwise(step.allocated for step in run.steps):
        assert 3 < after / before < 4.5
    matmuls = [sum(count for (work, *_), count in works.items() if work.flops) for works in run.ledger.works[:3]]
    assert len(set(matmuls)) == 1


@pytest.mark.parametrize(("search", "least"), [(None, 24), ("strong_wolfe", 24)])
def test_lbfgs_goes_on_and_keeps_its_history(search, least):
    """What it asks of values lets it end early; with real ones it takes all of its iterations here."""
    calls = 0
    with virtual_gpu("t4") as run:
        model = nn.Linear(256, 256, device="cuda")
        optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=8, history_size=5, line_search_fn=search)

        def closure():
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = model(torch.ones(8, 256, device="cuda")).square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        history = optimizer.state[next(model.parameters())]["old_dirs"]
    assert calls >= least
    assert len(history) == 5
    assert run.peak_allocated > 10 * 256 * 257 * 4


def test_the_last_step_of_several_optimizers_counts_where_the_program_ends():
    with virtual_gpu("t4") as run:
        models = [nn.Linear(256, 256, device="cuda") for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
        models[0](torch.ones(8, 256, device="cuda")).sum().backward()
        optimizers[0].step()
    assert len(optimizers) == 2
    assert len(run.ledger.marks) == 1
