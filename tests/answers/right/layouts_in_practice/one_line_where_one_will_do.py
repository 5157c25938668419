# one line where one will do


from helpers.planner.layout.layout import Layout


def decide(question):
    cut = {"context": 2, "shard": 32}
    if question.gpus == 8:
        cut = {"tensor": 2, "context": 4, "context_method": "all-to-all", "micro_batches": 4, "recompute": "full"}
    return Layout(question.arch, **cut, engine="megatron", zero="zero1", seq=question.seq)


def bill(found, tokens, price, goodput):
    worst, top = goodput
    steps = (tokens + found.layout.tokens - 1) // found.layout.tokens
    days = [
        steps * s / g / 86400 for s, g in ((found.low, top), (found.seconds, (worst + top) / 2), (found.high, worst))
    ]
    return {
        "days": days,
        "gpu_hours": [24 * found.layout.ranks * d for d in days],
        "dollars": [24 * price * found.layout.ranks * d for d in days],
    }
