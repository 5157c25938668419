"""Wrong and right answers for the practice tasks of mixed precision."""

from . import one

UNDERFLOW, COUNTS = "mixed_precision.underflow", "counts_what_fp16_loses"
MASTER, KEEPS = "mixed_precision.master", "master_keeps_small_updates"


MUTANTS = [
    one("ignores the scale", UNDERFLOW, COUNTS, "nonzero * scale", "nonzero"),
    one("divides by the scale", UNDERFLOW, COUNTS, "nonzero * scale", "nonzero / scale"),
    one("counts zeros that were zero before", UNDERFLOW, COUNTS, "gradient[gradient != 0]", "gradient.flatten()"),
    one("BF16 for FP16", UNDERFLOW, COUNTS, ".half()", ".bfloat16()"),
    one("takes subnormals for lost", UNDERFLOW, COUNTS, ".half() == 0)", ".abs() < torch.finfo(torch.float16).tiny)"),
    one("scales in place", UNDERFLOW, COUNTS, "    nonzero = gradient[gradient != 0]\n",
        "    gradient *= scale\n    scale = 1\n    nonzero = gradient[gradient != 0]\n"),
    one("stumbles over zeros", UNDERFLOW, COUNTS, "        return 0.0\n", "        return 1.0\n"),
    one("updates in BF16", MASTER, KEEPS, "    master -= lr * gradient.float()\n    weight.copy_(master)",
        "    weight -= lr * gradient\n    master.copy_(weight)"),
    one("product in BF16", MASTER, KEEPS, "gradient.float()", "gradient"),
    one("master rebound", MASTER, KEEPS, "master -= lr * gradient.float()", "master = master - lr * gradient.float()"),
    one("master forgotten", MASTER, KEEPS, "    weight.copy_(master)\n", ""),
    one("weight rebound", MASTER, KEEPS, "weight.copy_(master)", "weight = master.bfloat16()"),
    one("master made anew from the weight", MASTER, KEEPS, "    master -= ", "    master.copy_(weight)\n    master -= "),
    one("uphill", MASTER, KEEPS, "master -= ", "master += "),
    one("weight turned into FP32", MASTER, KEEPS, "weight.copy_(master)", "weight.data = master.clone()"),
    one("gradient scaled in place", MASTER, KEEPS, "lr * gradient.float()", "gradient.mul_(lr).float()"),
]  # fmt: skip

RIGHT = {
    "by threshold": """
import torch


def underflow_share(gradient, scale):
    magnitude = gradient.abs().double()
    alive = magnitude > 0
    lost = alive & (magnitude * scale <= 2.0**-25)  # half the smallest subnormal rounds to even, which is zero
    return lost.sum().item() / max(1, alive.sum().item())


def sgd_with_master(weight, master, gradient, lr):
    master.add_(gradient.to(torch.float32), alpha=-lr)
    weight.data[:] = master.to(torch.bfloat16)
""",
    "by counting": """
import torch


def underflow_share(gradient, scale):
    before = torch.count_nonzero(gradient).item()
    after = torch.count_nonzero((gradient.float() * scale).to(torch.float16)).item()
    return (before - after) / before if before else 0.0


def sgd_with_master(weight, master, gradient, lr):
    with torch.no_grad():
        torch.sub(master, gradient.float(), alpha=lr, out=master)
        weight.copy_(master.bfloat16())
""",
}
