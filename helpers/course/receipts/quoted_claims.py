"""What is claimed about the techniques of this course: the C rows of its syllabus, with their sources.

"Tutorials" are articles for practitioners, which copy such figures from each other without measuring. The figures go
back to papers, which often claim less than what tutorials make of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class QuotedClaim:
    """A claim in words, and a source in Markdown."""

    words: str
    source: str


_ZERO = "[ZeRO](https://arxiv.org/abs/1910.02054)"

QUOTED_CLAIMS = {
    "C1": QuotedClaim(
        "In FP32, the weights of a 7B model take 28 GB, and those of a 70B model 280 GB", "arithmetic; tutorials"
    ),
    "C2": QuotedClaim("Adam in mixed precision takes 16 bytes per parameter", f"{_ZERO}, section 3.1"),
    "C3": QuotedClaim(
        "Adam's state for 7B takes 84 GB with the FP32 copy of the weights, 56 GB without", f"after {_ZERO}"
    ),
    "C4": QuotedClaim(
        "Activations grow with batch, width and layers, and with the square of the sequence if attention scores are "
        "kept; they can exceed the parameters",
        "[Korthikanti et al.](https://arxiv.org/abs/2205.05198), [FlashAttention](https://arxiv.org/abs/2205.14135)",
    ),
    "C5": QuotedClaim(
        "Temporaries, the allocator's reserve and fragmentation add 20 to 30%", f"tutorials; cf. {_ZERO}, 3.2"
    ),
    "C6": QuotedClaim(
        "FP16, BF16, E4M3 and E5M2 have their published ranges",
        "[FP8 formats for deep learning](https://arxiv.org/abs/2209.05433)",
    ),
    "C7": QuotedClaim(
        "Mixed precision halves the memory and doubles the speed, at the same accuracy",
        "tutorials, after [Micikevicius et al.](https://arxiv.org/abs/1710.03740)",
    ),
    "C8": QuotedClaim(
        "Accumulated gradients equal those of the whole batch, at the peak of a micro-batch", "tutorials"
    ),
    "C9": QuotedClaim(
        "Checkpointing: 2 to 3 times less memory (or 40 to 50% less for activations), 30 to 33% slower; every second "
        "or third block: 60 to 70% of the saving at a cost of 10 to 15% more time; with sqrt(n) segments, O(sqrt n) "
        "activations",
        "tutorials, after [Chen et al.](https://arxiv.org/abs/1604.06174)",
    ),
    "C10": QuotedClaim(
        "Pinned memory: copies 2 to 3 times faster and asynchronous; 4 to 8 workers per GPU", "tutorials"
    ),
    "C11": QuotedClaim("SGD instead of Adam saves two thirds of the optimizer's memory", "tutorials"),
    "C12": QuotedClaim(
        "All together: up to 20 times less peak memory at the same accuracy",
        "[pytorch-memory-optim](https://github.com/rasbt/pytorch-memory-optim) and the article it belongs to",
    ),
    "C13": QuotedClaim(
        "DDP needs as much memory on each GPU as training on one GPU does, is N times as fast, and all-reduces each "
        "gradient once",
        "[PyTorch Distributed](https://arxiv.org/abs/2006.15704); tutorials",
    ),
    "C14": QuotedClaim(
        "FSDP and ZeRO-3: N times less memory for parameters, gradients and state; all-gather and reduce-scatter",
        f"{_ZERO}, [PyTorch FSDP](https://arxiv.org/abs/2304.11277)",
    ),
    "C15": QuotedClaim("FP8 is up to twice as fast as 16 bits on Hopper", "tutorials; data sheets of the GPUs"),
    "C16": QuotedClaim(
        "LoRA of rank 16 on q, k, v, o of a 7B model trains about 20M parameters, 0.1 to 1% of the model",
        "tutorials, after [LoRA](https://arxiv.org/abs/2106.09685)",
    ),
    "C17": QuotedClaim(
        "With ring attention, each rank needs 1/N of attention's memory, and the messages hide behind arithmetic",
        "[Ring Attention](https://arxiv.org/abs/2310.01889)",
    ),
    "C18": QuotedClaim(
        "All-to-all between heads and tokens sends less than a ring",
        "[DeepSpeed Ulysses](https://arxiv.org/abs/2309.14509)",
    ),
    "C19": QuotedClaim(
        "A mixture of experts gives the loss of a larger dense model at the FLOPs of its active part: k times cheaper",
        "[Switch Transformers](https://arxiv.org/abs/2101.03961), [DeepSeekMoE](https://arxiv.org/abs/2401.06066)",
    ),
    "C20": QuotedClaim(
        "Tensor parallelism across nodes is slow, so use tensor ranks inside a node and pipelines between nodes; shard "
        "until communication becomes the bottleneck, and give each GPU enough tokens to hide it",
        "[Narayanan et al.](https://arxiv.org/abs/2104.04473), "
        "[The Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook); tutorials",
    ),
    "C22": QuotedClaim(
        "Asynchronous checkpoints cost (almost) no time; Young's interval is close to the best",
        "tutorials; [Young](https://doi.org/10.1145/361147.361115), "
        "[Daly](https://doi.org/10.1016/j.future.2004.11.016)",
    ),
    "C24": QuotedClaim(
        "A training step takes 6 FLOPs per parameter and token",
        "[Kaplan et al.](https://arxiv.org/abs/2001.08361), section 2.1; tutorials",
    ),
    "C26": QuotedClaim(
        "A batch larger than the critical size gains nothing; small batches need no accumulation",
        "[McCandlish et al.](https://arxiv.org/abs/1812.06162), [Marek et al.](https://arxiv.org/abs/2507.07101)",
    ),
}
