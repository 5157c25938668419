"""A GPU that is not there: run any PyTorch program without one, measure its memory, and get PyTorch's own errors.

    with virtual_gpu("rtx-4090") as run: ...          python -m helpers dry-run --gpu rtx-4090 train.py

Every tensor stays in the CPU's memory. What changes is what PyTorch says: the storage of a tensor "on the GPU" carries
a home, so `.device` says cuda:0, its bytes count in `torch.cuda.memory_allocated`, and it raises CUDA's own error where
it meets a tensor of another device. The bytes are those of the tensors; allocator, saved tensors, rates and data sheets
are the planner's. In a dry run operations compute nothing, and their results are storage that is never touched.

    machine.py     which GPUs the machine has
    homes.py       which storage is on which GPU: the tag on a storage
    memory.py      each GPU's allocator, fed with the homes; history.py: what it has given, for snapshots
    dispatch.py    sees every operation: places results, refuses mixtures
    refusals.py    CUDA's errors, in its own words
    tensors.py     what a tensor says of itself: `.device`, `.numpy`, pinning
    moves.py       `.to`, with its gradient going the other way
    factories.py   where new tensors are made; legacy_types.py: types that name a device
    storages.py    the same one floor below, where saving, loading and copying happen
    generators.py  streams of random numbers, one for each device
    autocast.py    CUDA's rules for 16 bits
    compiler.py    graphs, recorded by torch.compile
    driver.py      the functions below torch.cuda
    streams.py     streams and events, on which all work is done at once
    profiler.py    the allocator's log and kernels, for profilers
    kernels.py     what PyTorch has for CUDA alone: synchronized BatchNorm, DataParallel's copies
    ranks.py       NCCL, spoken over gloo
    mps.py         Apple's GPU in place of NVIDIA's
    patches.py     what is replaced in PyTorch, to be put back
    install.py     puts all of it in place, and takes it out
    process.py     the environment of a process that has the GPUs from its start

    cuda_paths.py  functions that save other tensors on CUDA than on the CPU
    recurrent.py   recurrent layers as cuDNN runs them; recurrent_sizes.py: the memory it takes; recurrent_cells.py:
                   cells as CUDA runs them
    attention.py   CUDA's fused attention, where it is computed; norm_statistics.py: what norms of 16 bits keep

Dry runs:

    dry.py         the mode that computes nothing; hollow.py: storage without data; shapes.py, schema.py: of results
    stand_ins.py   values that do not exist; value_shapes.py, dry_values.py: the operations that ask for them
    ledger.py      every allocation, with line, module and phase (user_line.py); steps.py: optimizer steps
    cuda_graphs.py graphs, whose operations run once
    waits.py       synchronizations, copies from pageable memory, values that were assumed
    world.py       one rank of many, whose world is not there; pipeline.py: its stages; traffic.py: its collectives
    spawned.py     processes that a script starts itself
    absent/        weights, tokenizers and data sets that are not on this machine; without_gpu.py: libraries' CUDA code
    paged.py       memory that GPU and host share; saved_files.py: checkpoints; flex_attention.py: its fused kernel
    owners.py      who holds the peak; left_behind.py: what no step frees; lost_values.py: what the block takes
    fits.py        what follows; step_forecast.py, batch.py; cures.py: what to change, savings.py: what that saves
    written.py     pictures, snapshots and traces; traffic_rows.py: rows of collectives
    dry_run.py     all of that in words; context.py: in a notebook; beside_gpu.py: where there is a real GPU
    cli.py         on the command line; script_file.py: which files it takes; script_run.py: runs them
    script_patches.py   what a script's run leaves out; script_end.py: how it is cut short

A GPU that was there:

    autopsy/       what it ran out of, from its memory snapshot or its last message
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import what notebooks use when it is asked for: it imports PyTorch."""
    if name == "virtual_gpu":
        from .context import virtual_gpu

        return virtual_gpu
    if name == "beside_real_gpu":
        from .beside_gpu import beside_real_gpu

        return beside_real_gpu
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
