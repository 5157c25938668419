# category by category


def resident_bytes(model, scheme):
    half = scheme in ("classic", "bf16")
    total = 0
    for parameter in set(model.parameters()):
        n = parameter.numel()
        total += n * (2 if half else 4)
        if parameter.requires_grad:
            total += n * (2 if half else 4)
            total += n * (4 if scheme == "classic" else 0)
            total += 2 * n * (2 if scheme == "bf16" else 4)
    return total


def gpt_peak(vocabulary, context, layers, width, batch):
    rows = batch * context
    block = 3 * width * width + 3 * width + width * width + width + 8 * width * width + 5 * width + 4 * width
    weights = 4 * (vocabulary * width + context * width + layers * block + 2 * width)
    norms_and_residuals, qkv, attention, mlp = 4, 3, 1, 8
    a_block_keeps = (norms_and_residuals + qkv + attention + mlp) * rows * width * 4
    a_score_table = rows * vocabulary * 4
    forward_done = 3 * weights + layers * a_block_keeps + 2 * rows * width * 4 + 4 * a_score_table
    stepping = 5 * weights + a_score_table
    return forward_done if forward_done > stepping else stepping
