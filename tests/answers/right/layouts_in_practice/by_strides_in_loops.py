# by strides, in loops


from helpers.planner.layout.layout import Layout


def decide(question):
    if question.sequences < 8:
        layout = {"context": question.gpus, "micro_batches": question.sequences, "recompute": "full"}
        return Layout(question.arch, seq=question.seq, zero="zero1", engine="megatron", **layout)
    split = question.gpus // question.sequences
    return Layout(
        question.arch, seq=question.seq, tensor=split, shard=question.sequences, zero="zero1", engine="megatron"
    )


def bill(found, tokens, price, goodput):
    steps = -(-tokens // found.layout.tokens)
    pairs = (found.low, max(goodput)), (found.seconds, sum(goodput) / 2), (found.high, min(goodput))
    rows = {"days": [], "gpu_hours": [], "dollars": []}
    for step, share in pairs:
        hours = steps * step / share / 3600
        rows["days"].append(hours / 24)
        rows["gpu_hours"].append(hours * found.layout.ranks)
        rows["dollars"].append(hours * found.layout.ranks * price)
    return rows
