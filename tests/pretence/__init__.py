"""The course on a pretended machine: its labs and helpers run with GPUs that are not there.

    python -m tests.pretence --gpu h100 solutions/05_activation_checkpointing.py

The pretence itself is `helpers.virtual_gpu`. Here: which machines the labs run on, which lines that depend on CUDA
were executed, and the mistakes that are planted to see that the pretended GPU finds them.
"""
