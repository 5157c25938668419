"""A pretended GPU: run CUDA code where there is none, and be told of each mistake that a GPU would have told.

    python -m tests.pretence --gpu h100 solutions/05_activation_checkpointing.py

Every tensor stays in the CPU's memory, and the CPU computes. What changes is what PyTorch says: the storage of a tensor
"on the GPU" carries a home, so `.device` says cuda:0, its bytes count in `torch.cuda.memory_allocated`, and it raises
CUDA's own error where it meets a tensor of another device. Bytes are those of the tensors; times, kernels and their
workspaces stay the CPU's.

    machine.py     which GPUs the machine has
    homes.py       who lives where: the tag on a storage
    memory.py      each GPU's allocator, fed with the homes
    dispatch.py    sees every operation: places results, refuses mixtures
    refusals.py    CUDA's errors, in its own words
    tensors.py     what a tensor says of itself: `.device`, `.numpy`, pinning
    moves.py       `.to`, with its gradient going the other way
    factories.py   where new tensors are made
    storages.py    the same one floor below, where saving, loading and copying happen
    generators.py  streams of random numbers, one a device
    autocast.py    CUDA's rules for 16 bits
    compiler.py    graphs, recorded by torch.compile
    driver.py      the functions below torch.cuda
    streams.py     streams and events, on which all work is done at once
    profiler.py    the allocator's log and kernels, for profilers
    kernels.py     what PyTorch has for CUDA alone: synchronised BatchNorm, DataParallel's copies
    ranks.py       NCCL, spoken over gloo
    install.py     puts all of it in place
"""
