# step by step


def operation_seconds(flops, nbytes, peak, bandwidth, launch):
    arithmetic, traffic = flops / peak, nbytes / bandwidth
    slower = arithmetic if arithmetic > traffic else traffic
    if launch > slower:
        bound = "launch"
    elif arithmetic > traffic:
        bound = "compute"
    else:
        bound = "memory"
    return [slower + launch, bound]


def block_flops(batch, length, width, inner, kv_width, gated, convention):
    def product(m, k, n):
        return 2 * m * k * n

    rows = batch * length
    answer = {name: product(rows, width, columns) for name, columns in (("q", width), ("k", kv_width), ("v", kv_width))}
    answer["out"] = product(rows, width, width)
    share = 1 if convention == "full square" else 2
    answer["scores"] = batch * product(length, width, length) // share
    answer["values"] = batch * product(length, length, width) // share
    answer["mlp"] = product(rows, width, inner) + product(rows, inner, width)
    if gated:
        answer["mlp"] += product(rows, width, inner)
    return answer


def step_time(operations, launch, queued):
    spans, free = [], 0.0  # spans of work; when the host may launch again
    for seconds, waits in operations:
        launched = free + launch
        start = launched if not spans else max(launched, spans[-1][1])
        spans.append((start, start + seconds))
        if not queued or waits:
            free = start + seconds
        else:
            free = launched
    if not spans:
        return [0.0, 0.0]
    end = spans[-1][1]
    gaps = spans[0][0] + sum(b[0] - a[1] for a, b in zip(spans, spans[1:]))
    return [end, gaps / end if end else 0.0]


def utilization(parameters, layers, width, length, tokens, seconds, peak, recomputed):
    sequences = tokens / length
    attention = 3 * layers * sequences * 2 * (2 * length * length * width)
    mfu = (3 * 2 * parameters * tokens + attention) / seconds / peak
    return mfu, mfu + recomputed / seconds / peak
