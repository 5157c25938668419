"""A GPU that is not there: run CUDA programs without one, and hear what CUDA would have said.

Every tensor stays in the CPU's memory. What changes is what PyTorch says: the storage of a tensor "on the GPU" carries
a home, so `.device` says cuda:0, its bytes count in `torch.cuda.memory_allocated`, and it raises CUDA's own error where
it meets a tensor of another device. Allocated bytes are those of the tensors; the allocator is the planner's.

    machine.py     which GPUs the machine has
    homes.py       which storage is on which GPU: the tag on a storage
    memory.py      each GPU's allocator, fed with the homes
    dispatch.py    sees every operation: places results, refuses mixtures
    refusals.py    CUDA's errors, in its own words
    tensors.py     what a tensor says of itself: `.device`, `.numpy`, pinning
    moves.py       `.to`, with its gradient going the other way
    factories.py   where new tensors are made
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
"""
