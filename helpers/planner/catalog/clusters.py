"""Clusters: how fast GPUs talk to each other within a node and between nodes."""

from dataclasses import dataclass, replace

from ..recipe import RecipeError
from .gpus import GIGA, GPUS, Gpu, find_gpu

# Sources: NVLink generations by NVIDIA's data sheets (half of what they print, which counts both directions); one
# network port a GPU in DGX A100 (200 Gb/s), H100, H200 and B200 (400 Gb/s); PCIe 4.0 x16, and 100 Gb/s a node of PCIe.
_DGX_A100 = "NVIDIA DGX A100 data sheet: 12 NVLinks of 25 GB/s each way, 8 ports of 200 Gb/s"
_DGX_H100 = "NVIDIA DGX H100/H200 data sheet: 18 NVLinks of 25 GB/s each way, 8 ports of 400 Gb/s"
_DGX_B200 = "NVIDIA DGX B200 data sheet: 18 NVLinks of 50 GB/s each way, 8 ports of 400 Gb/s"
_PCIE = "PCIe 4.0 x16, shared with the network port"


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal GPUs.

    Attributes:
        gpu: which.
        node: GPUs in a node.
        inside: bytes/s that a GPU sends to others of its node, each way.
        outside: bytes/s of network that a GPU has, each way.
        source: where these come from.
    """

    name: str
    gpu: Gpu
    node: int
    inside: float
    outside: float
    source: str

    def __post_init__(self) -> None:
        if self.node < 1 or not (self.inside > 0 and self.outside > 0):
            raise RecipeError(f"{self.name}: a node has at least one GPU, and links have more than 0 bytes/s.")


def _cluster(name: str, gpu: str, node: int, links: tuple[float, float], source: str) -> Cluster:
    """Return a cluster; links in GB/s a GPU: inside a node, outside."""
    return Cluster(name, GPUS[gpu], node, links[0] * GIGA, links[1] * GIGA, source)


CLUSTERS = {
    cluster.name: cluster
    for cluster in (
        _cluster("dgx-a100-40gb", "a100-40gb", 8, (300, 25), _DGX_A100),
        _cluster("dgx-a100", "a100-80gb", 8, (300, 25), _DGX_A100),
        _cluster("dgx-h100", "h100-80gb", 8, (450, 50), _DGX_H100),
        _cluster("dgx-h200", "h200-141gb", 8, (450, 50), _DGX_H100),
        _cluster("dgx-b200", "b200-192gb", 8, (900, 50), _DGX_B200),
        _cluster("8x-4090", "rtx-4090-24gb", 8, (25, 1.5), _PCIE),
    )
}
_PCIE_LINKS = (25 * GIGA, 3 * GIGA)  # of a GPU for which the catalog has no cluster


def find_cluster(gpu: str, node: int | None = None) -> Cluster:
    """Return the cluster called `gpu`, or that of the GPU of this name; `node` changes the GPUs in a node.

    Raises:
        RecipeError: there is no such GPU or cluster.
    """
    found = CLUSTERS.get(gpu.lower())
    if found is None:
        kind = find_gpu(gpu)
        known = next((cluster for cluster in CLUSTERS.values() if cluster.gpu == kind), None)
        found = known or Cluster(kind.name, kind, 8, *_PCIE_LINKS, _PCIE)
    return replace(found, node=node) if node else found
