"""Two machines as far as one machine goes: two network namespaces, joined by a virtual cable, a torchrun in each."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)  # other weights on each rank: DDP must copy rank 0's
model = DistributedDataParallel(nn.Linear(4, 1))
torch.manual_seed(0)
rows = torch.randn(8, 4).chunk(dist.get_world_size())[rank]
model(rows).mean().backward()
gradient = model.module.weight.grad.flatten().tolist()
words = [os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"], rank, dist.get_world_size(), *gradient]
# In one go: two ranks share a pipe, and torchrun's Python writes each piece of a print by itself.
os.write(1, (" ".join(map(str, words)) + chr(10)).encode())
dist.barrier()
os._exit(0)
"""
A, B = f"nodea{os.getpid()}", f"nodeb{os.getpid()}"
# a cable between the two; 198.18.0.0/15 is set aside for such tests (RFC 2544)
CABLE = [
    f"link add {A} netns {A} type veth peer name {B} netns {B}",
    *(
        f"-n {name} {what}"
        for name, address in ((A, "198.18.7.1/24"), (B, "198.18.7.2/24"))
        for what in (f"addr add {address} dev {name}", f"link set {name} up", "link set lo up")
    ),
]


def ip(command: str) -> subprocess.CompletedProcess:
    return subprocess.run(["ip", *command.split()], capture_output=True, text=True)


@pytest.fixture
def nodes():
    """Yield the names of two namespaces that reach each other and nothing else."""
    if not shutil.which("ip"):
        pytest.skip("needs the command `ip` (Debian: iproute2)")
    try:
        for command in (f"netns add {A}", f"netns add {B}", *CABLE):
            done = ip(command)
            if done.returncode:
                pytest.skip(f"needs the right to make network namespaces: ip {command}: {done.stderr.strip()}")
        yield A, B
    finally:
        ip(f"netns del {A}")
        ip(f"netns del {B}")


@pytest.mark.slow
def test_torchrun_joins_two_nodes(nodes, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = "torch.distributed.run --nnodes=2 --nproc-per-node=2 --master-addr=198.18.7.1 --master-port=29500"
    running = [
        subprocess.Popen(
            ["ip", "netns", "exec", node, sys.executable, "-m", *launch.split(), f"--node-rank={i}", str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"GLOO_SOCKET_IFNAME": node, "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"},
        )
        for i, node in enumerate(nodes)
    ]
    try:
        said = [process.communicate(timeout=600) for process in running]
    finally:
        for process in running:
            process.kill()
    lines = sorted(line.split() for out, _ in said for line in out.splitlines())
    who = [tuple(map(int, line[:4])) for line in lines]
    assert who == [(0, 0, 0, 4), (0, 1, 1, 4), (1, 0, 2, 4), (1, 1, 3, 4)], said
    torch.manual_seed(0)
    joint = torch.randn(8, 4).mean(0).tolist()  # the gradient of one process with all rows
    for line in lines:
        assert [float(g) for g in line[4:]] == pytest.approx(joint, rel=1e-5)
    for i, node in enumerate(nodes):
        assert not ip(f"netns pids {node}").stdout.split(), f"node {i} left processes"
