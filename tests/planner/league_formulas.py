"""What others' formulas have for the bytes of a rank: short, and their own.

- EleutherAI's `calc_mem` (calc/calc_transformer_mem.py of EleutherAI/cookbook);
- DeepSpeed's `estimate_zero2_model_states_mem_needs` and `estimate_zero3_model_states_mem_needs`
  (runtime/zero/stage_1_and_2.py and stage3.py), without offloading;
- `accelerate estimate-memory`: `estimate_training_usage` (commands/estimate.py);
- Megatron-LM's `report_theoretical_memory` (training/theoretical_memory_usage.py);
- the papers that people add up by hand: ZeRO (arXiv 1910.02054, section 3.1 and figure 1) for weights, gradients and
  optimizer state, and Korthikanti et al. (arXiv 2205.05198, equations 1 to 5 and table 2) for activations.
"""

from dataclasses import dataclass

from helpers.planner.layout.arch import Arch

_LOW, _HIGH, _STATES, _BUCKET, _LIVE = 2, 4, 12, 5e8, 1e9  # the defaults of EleutherAI's script


@dataclass(frozen=True)
class Job:
    """A run, as a formula of bytes wants to know it."""

    source: str
    arch: Arch
    gpus: int
    tensor: int
    pipeline: int
    context: int
    stage: int  # of ZeRO
    micro_batch_size: int
    seq: int
    recomputes: bool
    precision: str
    name: str = ""  # by which files of forecasts know it
    scattered: bool = False  # sequence parallelism
    virtual_stages: int = 1
    micro_batches: int = 1
    keeps_scores: bool = False  # attention's scores, for the backward pass

    @property
    def splits(self) -> bool:
        """Whether ranks split the model or its tokens."""
        return max(self.tensor, self.pipeline, self.context) > 1

    @property
    def mixed(self) -> bool:
        """Whether there is an FP32 copy of 16-bit weights."""
        return self.precision.endswith("-amp")

    @property
    def data(self) -> int:
        """How many ranks share the batch alone."""
        return self.gpus // (self.tensor * self.pipeline * self.context)

    @property
    def in_flight(self) -> float:
        """Micro-batches of all blocks that the first stage keeps, with those that virtual stages add."""
        if self.virtual_stages > 1:
            return 1 + (self.pipeline - 1) / (self.pipeline * self.virtual_stages)
        return min(1, self.micro_batches / self.pipeline)


def eleuther(job: Job) -> float | None:
    """Return the bytes that EleutherAI's script has for a rank; None with experts or context ranks."""
    arch = job.arch
    if arch.experts or job.context > 1:
        return None
    hidden, layers, heads = arch.hidden, arch.layers, arch.heads
    attention = 2 * (1 + arch.kv_heads / heads) * layers * hidden * hidden
    perceptron = (3 if arch.gated else 2) * layers * hidden * arch.ffn
    rest = 2 * arch.vocab * hidden + hidden * job.seq + 8 * hidden * layers + 2 * hidden
    parameters = rest + attention + perceptron
    width = _HIGH if job.precision == "fp32" else _LOW
    held = parameters * width / (job.tensor * job.pipeline) / (job.gpus if job.stage == 3 else 1)
    gradients = parameters * _HIGH / (job.gpus if job.stage >= 2 else 1)
    states = parameters * _STATES / (job.gpus if job.stage >= 1 else 1)
    sent = ((_BUCKET if job.stage >= 1 else 0) + (_LIVE if job.stage == 3 else 0)) * width if job.gpus > 1 else 0
    scores = 0 if job.recomputes else (2 * _LOW + 1) * heads * job.seq / hidden
    kept = job.seq * job.micro_batch_size * hidden * layers * (16 * _LOW + 2 + scores)
    return held + gradients + states + sent + kept / job.tensor


def deepspeed(job: Job) -> float | None:
    """Return the bytes that DeepSpeed's estimators have for a rank; None but for ZeRO-2 and 3 of a whole model."""
    if job.splits or job.stage < 2:
        return None
    parameters = job.arch.count()
    if job.stage == 2:
        return 4 * parameters + 16 * parameters / job.gpus
    return 4 * job.arch.vocab * job.arch.hidden + 18 * parameters / job.gpus


def accelerate(job: Job) -> float | None:
    """Return the bytes that accelerate's command has for training with Adam; None where ranks split anything."""
    if job.splits or (job.stage and job.gpus > 1):
        return None
    return (16 if job.precision == "fp32" else 8) * job.arch.count()


def megatron(job: Job) -> float | None:
    """Return the bytes that Megatron-LM's script has for the first stage; None for what Megatron's ranks do not do.

    It has two formulas of activations. The one with sequence parallelism leaves the scores out, as fused attention
    does, so it is taken wherever tokens are scattered.
    """
    arch = job.arch
    if arch.experts or job.context > 1 or job.stage > 1 or not job.mixed:
        return None
    norm, embedding = (2 if arch.layer_norm else 1), arch.hidden * arch.vocab
    projected = arch.head_dim * arch.heads / arch.hidden * (1 + arch.kv_heads / arch.heads)
    block = 2 * arch.hidden * arch.ffn * (1.5 if arch.gated else 1) + 2 * arch.hidden**2 * projected
    split = block * arch.layers / job.pipeline + embedding * (1 if arch.tied or job.pipeline > 1 else 2)
    whole = arch.hidden * norm * (2 * arch.layers + 1) / job.pipeline
    states = (split / job.tensor + whole) * (6 + 12 / job.data if job.stage else 18)
    tokens = job.seq * job.micro_batch_size
    kept = 18 + 4 * arch.ffn / arch.hidden if job.scattered else 10 + 24 / job.tensor
    kept = (tokens * arch.hidden * (kept * arch.layers + job.pipeline) + 8 * tokens * job.pipeline) * job.in_flight
    last = job.pipeline == 1
    if job.scattered:
        return states + (kept + last * 4 * tokens * (arch.hidden + arch.vocab)) / job.tensor
    return states + 1.05 * (kept + last * 2 * tokens * (arch.hidden + arch.vocab / job.tensor))


def papers(job: Job) -> float | None:
    """Return the bytes of a rank by the formulas of two papers; None with experts or context ranks."""
    arch, tensor = job.arch, job.tensor
    if arch.experts or job.context > 1:
        return None
    weights, gradients, states = (2, 2, 12) if job.mixed else (4, 4, 8) if job.precision == "fp32" else (2, 2, 4)
    shares = [job.data if job.stage >= stage else 1 for stage in (3, 2, 1)]
    each = weights / shares[0] + gradients / shares[1] + states / shares[2]
    layer = 2.0 if job.recomputes else 34 / tensor if job.scattered else 10 + 24 / tensor
    if job.keeps_scores and not job.recomputes:
        layer += 5 * arch.heads * job.seq / (arch.hidden * tensor)
    ends = job.pipeline + (4 * (1 + arch.vocab / arch.hidden) if job.pipeline == 1 else 0)
    tokens = job.seq * job.micro_batch_size * arch.hidden
    kept = tokens * (layer * arch.layers * job.in_flight + ends / tensor)
    return each * arch.count() / (tensor * job.pipeline) + kept
