# by lists of shapes

import math


def resident_bytes(model, scheme):
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    return {
        "fp32": 16 * trained + 4 * frozen,
        "autocast": 16 * trained + 4 * frozen,
        "classic": 16 * trained + 2 * frozen,
        "bf16": 8 * trained + 2 * frozen,
    }[scheme]


def gpt_peak(vocabulary, context, layers, width, batch):
    matrices = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    block = [*matrices, *((rows,) for rows, _ in matrices), *[(width,)] * 4]
    shapes = [(vocabulary, width), (context, width), *block * layers, *[(width,)] * 2]
    n = sum(map(math.prod, shapes))
    tokens = batch * context
    numbers = tokens * (16.06 * layers * width + 2 * width + 4 * vocabulary)
    return 4 * max(3 * n + numbers, 5 * n + tokens * vocabulary)
