"""MFU and HFU: which share of its peak rate a machine reaches in training.

Model FLOPs utilization (MFU; Chowdhery et al. 2022, PaLM) counts what the model needs: one forward and one backward
pass. Hardware FLOPs utilization (HFU) counts what was executed: recomputation, too. So checkpointing raises HFU, and
MFU falls with the speed.

Others count differently, and figures of two sources can be compared only where they count the same:

- 6·N·D for N parameters and D tokens leaves attention out; with 12·layers·width·length added per token it is in, at the
  full square (nanoGPT, torchtitan, llm-foundry). Megatron-Bridge counts half of it where attention is causal.
- N is with the embeddings here, without them there; of a mixture of experts, all parameters or the active ones.
- Megatron's tables of 2021 count the recomputed pass as well: what is called HFU here.
- The peak is that of dense products in the dtype of the run. Data sheets print twice as much, with sparsity.
"""


def model_flops(parameters: float, tokens: float) -> float:
    """Return 6·N·D, the FLOPs of a training step without attention (Kaplan et al. 2020, "Scaling Laws").

    Each parameter takes part in a multiplication and an addition for each token, and the backward pass does twice that.

    Args:
        parameters: those that take part in products; a table of embeddings that is only looked up does not.
        tokens: in the step.
    """
    return 6 * parameters * tokens


def mfu(flops: float, seconds: float, peak: float, recomputed: float = 0) -> float:
    """Return the model FLOPs utilization, 1 for all of the peak.

    Args:
        flops: executed in a step, by `count_flops` or another count.
        seconds: of a step.
        peak: FLOP/s of the machine, dense, in the dtype of the step's products.
        recomputed: those of `flops` that checkpointing did a second time.
    """
    return hfu(flops - recomputed, seconds, peak)


def hfu(flops: float, seconds: float, peak: float) -> float:
    """Return the hardware FLOPs utilization: all FLOPs executed, over what the machine could have done in that time."""
    return flops / (seconds * peak)
