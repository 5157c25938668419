# with tools of others

from fractions import Fraction

import numpy as np
import torch


def operation_seconds(flops, nbytes, peak, bandwidth, launch):
    seconds = np.array([flops / peak, nbytes / bandwidth, launch])
    return seconds[:2].max() + seconds[2], ("compute", "memory", "launch")[int(seconds.argmax())]


def block_flops(batch, length, width, inner, kv_width, gated, convention):
    half = Fraction(1, 2) if convention == "causal half" else 1
    tokens = 2 * batch * length
    attention = int(half * tokens * length * width)
    narrow, square = tokens * width * kv_width, tokens * width**2
    mlp = tokens * width * inner * (2 + bool(gated))
    keys = ("q", "k", "v", "scores", "values", "out", "mlp")
    return dict(zip(keys, (square, narrow, narrow, attention, attention, square, mlp)))


def self_times(events):
    own, stacks = {}, {}

    def close(stack, until):
        while stack and stack[-1][1] <= until + 0.005:
            stack.pop()

    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (round(e["ts"], 3), -e["dur"])):
        stack = stacks.setdefault((event["pid"], event["tid"]), [])
        close(stack, event["ts"])
        if stack:
            own[stack[-1][0]] -= event["dur"]
        own[event["name"]] = own.get(event["name"], 0.0) + event["dur"]
        stack.append((event["name"], event["ts"] + event["dur"]))
    return own


def signs(events):
    complete = [e for e in events if e["ph"] == "X"]
    (step,) = [e for e in complete if (e["name"], e["cat"]) == ("step", "user_annotation")]
    at = np.array([e["ts"] - step["ts"] for e in complete])
    within = (at >= 0) & (at < step["dur"])
    thread = np.array([e["pid"] == step["pid"] and e["tid"] == step["tid"] for e in complete])
    name, category = (np.array([str(e[key]) for e in complete]) for key in ("name", "cat"))
    length = np.array([e["dur"] for e in complete])
    mine = within & thread
    kernels, copies = within & (category == "kernel"), mine & (name == "aten::copy_")
    reads, operations = mine & (name == "aten::item"), mine & np.char.startswith(name, "aten::")

    def time(*masks):
        some = np.logical_or.reduce(masks)
        marks = sorted([(start, 1) for start in at[some]] + [(end, -1) for end in (at + length)[some]])
        running, total, last = 0, 0.0, 0.0
        for moment, change in marks:
            total += (moment - last) * (running > 0)
            running, last = running + change, moment
        return total

    useful = time(kernels) if kernels.any() else time(operations) - time(copies, reads)
    transfers = within & (category == "gpu_memcpy")
    if kernels.any():
        waits = np.sort(at[mine & (name == "cudaStreamSynchronize")])
        reads &= np.searchsorted(waits, at) < np.searchsorted(waits, at + length)
    return {
        "items": int(reads.sum()),
        "copying": float((time(copies, transfers, kernels) - time(kernels)) / step["dur"]),
        "idle": 1 - useful / step["dur"],
    }


def diagnose(signs):
    if signs["idle"] > 0.3:
        if signs["items"] >= 11:
            return "synchronizes"
        return "copies" if signs["copying"] > 0.3 else "tiny"
    return "healthy"


def step_time(operations, launch, queued):
    if not operations:
        return 0, 0
    seconds, waits = (np.array(column) for column in zip(*operations))
    if not queued:
        total = seconds.sum() + launch * len(seconds)
        return total, 1 - seconds.sum() / total
    end, at = 0.0, 0
    for part in np.split(np.arange(len(seconds)), np.flatnonzero(waits) + 1):  # the host waits between two parts
        launched = end + launch * np.arange(1, len(part) + 1)
        before = np.concatenate([[0.0], np.cumsum(seconds[part])])
        if len(part):  # the last operation ends as late as any launch and all work after it demand
            end = (launched + before[-1] - before[:-1]).max()
    return end, 1 - seconds.sum() / end


def utilization(parameters, layers, width, length, tokens, seconds, peak, recomputed):
    per_token = np.array([6, 12 * layers]) @ np.array([parameters, width * length], dtype=float)
    could = seconds * peak
    return float(per_token * tokens / could), float((per_token * tokens + recomputed) / could)


@torch.no_grad()
def accuracy(model, batches):
    labels = torch.cat([y for _, y in batches])
    guesses = torch.cat([torch.topk(model(x), 1).indices.squeeze(1) for x, _ in batches])
    return 1 - (guesses - labels).count_nonzero().item() / labels.numel()
