"""Who holds memory: the categories by which every figure of bytes in this course is split.

PyTorch's own memory profiler has categories for the same purpose (`torch.profiler._memory_profiler.Category`). They
map to the categories like this:

    PARAMETER        parameters (the profiler has no word for buffers, which count as parameters here)
    GRADIENT         gradients
    OPTIMIZER_STATE  optimizer state
    ACTIVATION       activations that are saved for the backward pass; those that are not are temporaries here
    AUTOGRAD_DETAIL  what the backward pass makes: temporaries and recomputed activations
    TEMPORARY        memory that lives inside one operation: kernel workspace
    INPUT            inputs and other

Copies of weights that autocast makes have no category of their own there.
"""

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer state",
    "weight copies",  # 16-bit casts of the parameters that autocast makes and keeps
    "activations",  # saved for the backward pass
    "recomputed activations",  # made again in the backward pass by activation checkpointing
    "temporaries",
    "kernel workspace",
    "inputs and other",
)
