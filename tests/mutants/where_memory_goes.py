"""Wrong and right answers for the practice tasks of where memory goes."""

from . import one

STAYS, COUNTS = "where_memory_goes.stays", "counts_what_stays"
PEAK, PREDICTS = "where_memory_goes.peak", "predicts_the_peak"


MUTANTS = [
    one("no master weights", STAYS, COUNTS, "2 + 4 + 8", "2 + 8"),
    one("autocast halves the gradients", STAYS, COUNTS, '"autocast": 4 + 8', '"autocast": 2 + 8'),
    one("autocast halves the weights", STAYS, COUNTS, '"autocast": 4, ', '"autocast": 2, '),
    one("one moment", STAYS, COUNTS, '"fp32": 4 + 8', '"fp32": 4 + 4'),
    one("moments of BF16 training in FP32", STAYS, COUNTS, '"bf16": 2 + 4', '"bf16": 2 + 8'),
    one("frozen parameters trained", STAYS, COUNTS, " * p.requires_grad", ""),
    one("frozen parameters left out", STAYS, COUNTS, "(weight + trained_too * p.requires_grad)",
        "(weight + trained_too) * p.requires_grad"),
    one("shared parameters twice", STAYS, COUNTS, "model.parameters()",
        "[p for m in model.modules() for p in m.parameters(recurse=False)]"),
    one("bytes as they are stored", STAYS, COUNTS, "(weight +", "(weight * p.element_size() / 4 +"),
    one("makes the model 16 bits wide", STAYS, COUNTS, "    weight = {",
        '    model.to(torch.bfloat16 if scheme == "bf16" else torch.float32)\n    weight = {'),
    one("thaws what is frozen", STAYS, COUNTS, "for p in model.parameters())",
        "for p in model.parameters()) + 0 * len(list(model.requires_grad_(True).parameters()))"),
    one("buffers too", STAYS, COUNTS, "for p in model.parameters())",
        "for p in model.parameters()) + sum(b.nbytes for b in model.buffers())"),
    one("no activations", PEAK, PREDICTS, "12 * parameters + kept + 4 * logits", "12 * parameters + 4 * logits"),
    one("no logits", PEAK, PREDICTS, " + 4 * logits", ""),
    one("logits once", PEAK, PREDICTS, "+ 4 * logits", "+ logits"),
    one("no optimizer state", PEAK, PREDICTS, "12 * parameters + kept", "4 * parameters + kept"),
    one("everything at once", PEAK, PREDICTS, "max(summit, step)", "summit + 8 * parameters"),
    one("only the summit", PEAK, PREDICTS, "max(summit, step)", "summit"),
    one("only the step", PEAK, PREDICTS, "max(summit, step)", "step"),
    one("sixteen bytes and no more", PEAK, PREDICTS, "(12 + 4 + 4)", "(12 + 4)"),
    one("batch forgotten", PEAK, PREDICTS, "tokens = batch * context", "tokens = context"),
    one("activations of one layer", PEAK, PREDICTS, "16 * width * layers", "16 * width"),
    one("scores in memory", PEAK, PREDICTS, "    logits = ", "    layers += layers * context / 64\n    logits = "),
    one("twelve a block", PEAK, PREDICTS, "16 * width * layers", "12 * width * layers"),
    one("untied output layer", PEAK, PREDICTS, "(vocabulary + context)", "(2 * vocabulary + context)"),
    one("16-bit activations", PEAK, PREDICTS, "kept = 4 * tokens", "kept = 2 * tokens"),
    one("builds the model", PEAK, PREDICTS, "    parameters = (",
        "    assert SmallGPT(vocabulary, context, layers, width)\n    parameters = (", "operations on tensors"),
    one("builds it on the meta device", PEAK, PREDICTS, "    parameters = (",
        '    with torch.device("meta"):\n        SmallGPT(vocabulary, context, layers, width)\n    parameters = (',
        "operations on tensors"),
    one("MiB for bytes", PEAK, PREDICTS, "return max(summit, step)", "return max(summit, step) / 2**20"),
]  # fmt: skip

RIGHT = {
    "tenant by tenant": """
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
""",
    "by lists of shapes": """
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
    numbers = batch * context * (16.06 * layers * width + 2 * width + 4 * vocabulary)
    return 4 * max(3 * n + numbers, 5 * n)
""",
}
