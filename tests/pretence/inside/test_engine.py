"""What a pretended GPU says of tensors, of its memory, and of itself. A real one says the same."""

import copy
import io
import json
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HERE = torch.device("cuda", 0)


def test_gradients_go_back_to_where_the_weight_is():
    there = torch.ones(3, device="cuda", requires_grad=True)
    here = torch.ones(3, requires_grad=True)
    (there * here.to("cuda")).sum().backward()
    assert there.grad.device == HERE
    assert here.grad.device.type == "cpu"


def test_a_view_is_where_its_base_is_and_a_move_to_where_it_is_copies_nothing():
    x = torch.zeros(4, 4, device="cuda")
    assert x[1:].t().device == HERE
    assert x.to("cuda") is x
    assert x.cpu() is not x
    assert x.to(torch.float16).device == HERE


def test_tensors_that_cpp_makes_in_between_take_the_right_device():
    assert F.one_hot(torch.tensor([0, 1], device="cuda"), 3).device == HERE
    q = torch.randn(1, 2, 8, 4, device="cuda", requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    assert q.grad.device == HERE


def test_attention_of_gradients_on_the_cpu_takes_the_cpus_way():
    x = torch.ones(2, 1, 2, 8, 4, dtype=torch.float64, requires_grad=True)
    x.unbind()[0].sum().backward()  # C++ makes the zeros of the other half: for whom it does not say
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    assert F.scaled_dot_product_attention(*[x.grad[0]] * 3, mask).eq(1).all()


def test_memory_is_counted_and_given_back():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = torch.zeros(1000, device="cuda")  # 4,000 bytes: 8 x 512
    assert torch.cuda.memory_allocated() - before == 4096
    y = x + 1
    assert torch.cuda.max_memory_allocated() - before == 8192
    del y
    assert torch.cuda.memory_allocated() - before == 4096
    assert torch.cuda.max_memory_allocated() - before == 8192
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    x.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == before
    assert "Allocated memory" in torch.cuda.memory_summary()


def test_more_than_the_gpu_has_is_refused():
    free, total = torch.cuda.mem_get_info()
    assert free < total
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.empty(total, dtype=torch.uint8, device="cuda")


def test_a_snapshot_at_the_error_has_the_refusal_and_what_was_alive(tmp_path):
    limit = (torch.cuda.memory_reserved() + 2**27) / torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(limit)
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1000)
    try:
        x = torch.empty(2**25, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**28, dtype=torch.uint8, device="cuda")
        torch.cuda.memory._dump_snapshot(str(tmp_path / "oom.pickle"))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.set_per_process_memory_fraction(1.0)
    trace = pickle.loads((tmp_path / "oom.pickle").read_bytes())["device_traces"][0]
    (alive,) = (event for event in trace if event["action"] == "alloc" and event["addr"] == x.data_ptr())
    assert alive["size"] == 2**25
    assert next(frame["filename"] for frame in alive["frames"] if "/torch/" not in frame["filename"]) == __file__
    assert [event["size"] for event in trace if event["action"] == "oom"] == [2**28]


def test_what_is_saved_comes_back_to_where_it_was_or_is_sent():
    model = nn.Linear(2, 2).cuda()
    assert next(copy.deepcopy(model).parameters()).device == HERE
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for options, device in [({}, "cuda"), ({"map_location": "cpu"}, "cpu"), ({"map_location": "cuda:0"}, "cuda")]:
        file.seek(0)
        assert torch.load(file, **options)["weight"].device.type == device


def test_random_numbers_can_be_repeated():
    torch.manual_seed(3)
    first = torch.randn(4, device="cuda")
    state = torch.cuda.get_rng_state()
    second = F.dropout(first, 0.5)
    torch.cuda.set_rng_state(state)
    assert F.dropout(first, 0.5).equal(second)
    torch.manual_seed(3)
    assert torch.randn(4, device="cuda").equal(first)


def test_pinned_batches_reach_the_gpu():
    data = TensorDataset(torch.randn(8, 3), torch.arange(8))
    for x, y in DataLoader(data, batch_size=4, pin_memory=True):
        assert x.is_pinned()
        assert y.to("cuda", non_blocking=True).device == HERE


def test_threads_and_device_contexts_pretend_too():
    devices = []
    thread = threading.Thread(target=lambda: devices.append((torch.ones(2, device="cuda") + 1).device))
    thread.start()
    thread.join()
    with torch.device("cuda"):
        devices += [torch.ones(2).device, torch.tensor(1.0).device, nn.Linear(2, 2).weight.device]
    assert devices == [HERE] * 4


def test_autocast_follows_the_lists_of_where_a_tensor_is():
    layer, x = nn.Linear(4, 4).cuda(), torch.randn(2, 4, device="cuda")
    on_cpu = nn.Linear(4, 4)
    with torch.autocast("cuda", torch.float16):
        y = layer(x)
        assert y.dtype is torch.float16
        assert {f(y).dtype for f in (torch.exp, torch.sum, lambda t: F.softmax(t, -1))} == {torch.float32}
        assert F.relu(y).dtype is torch.float16
        assert on_cpu(torch.ones(2, 4)).dtype is torch.float32
    with torch.autocast("cpu"):
        assert on_cpu(torch.ones(2, 4)).dtype is torch.bfloat16
        assert layer(x).dtype is torch.float32


def test_a_scaler_trains():
    layer, x = nn.Linear(4, 4).cuda(), torch.randn(8, 4, device="cuda")
    optimizer, scaler = torch.optim.AdamW(layer.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.mse_loss(layer(x), torch.zeros_like(x))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_a_profiler_reports_kernels():
    x = torch.randn(64, 64, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        x @ x
    assert sum(event.self_device_time_total for event in profiler.key_averages()) > 0


def test_a_trace_has_the_operations_of_a_program(tmp_path):
    x = torch.randn(64, 64, device="cuda")
    with torch.profiler.profile() as profiler, torch.profiler.record_function("step"):
        x @ x
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (step,) = (event for event in events if event["name"] == "step" and event["cat"] == "user_annotation")
    spans = [event for event in events if event["ph"] == "X" and event["tid"] == step["tid"]]
    assert "aten::mm" in {event["name"] for event in spans}
    assert min(event["ts"] for event in spans) == step["ts"]  # nothing is around it


def test_bf16_is_told_from_its_emulation():
    assert torch.cuda.is_bf16_supported()
    native = torch.cuda.get_device_capability() >= (8, 0)
    assert torch.cuda.is_bf16_supported(including_emulation=False) == native


def test_events_and_streams_order_nothing_and_time_all():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.randn(100, 100, device="cuda") @ torch.randn(100, 100, device="cuda")
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("width", [4, 8])
def test_attention_is_right_in_any_dtype_and_width(dtype, width):
    q, k, v = torch.randn(3, 2, 1, 9, width, dtype=torch.float64).unbind()
    right = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # on the CPU
    out = F.scaled_dot_product_attention(*(x.to("cuda", dtype) for x in (q, k, v)), is_causal=True)
    assert (out.double().cpu() - right).norm() <= 8 * torch.finfo(dtype).eps * right.norm()
