"""Clusters: how fast GPUs talk to each other within a node and between nodes."""

from dataclasses import dataclass, replace

from ...core.units import GiB
from ..recipe import RecipeError
from .gpus import GIGA, GPUS, TERA, Gpu, find_gpu

# Sources: NVLink generations by NVIDIA's data sheets (half of what they print, which counts both directions); one
# network port a GPU in DGX A100 (200 Gb/s), H100, H200 and B200 (400 Gb/s); PCIe 4.0 x16, and 100 Gb/s a node of PCIe.
_DGX_A100 = "NVIDIA DGX A100 data sheet: 12 NVLinks of 25 GB/s each way, 8 ports of 200 Gb/s"
_DGX_H100 = "NVIDIA DGX H100/H200 data sheet: 18 NVLinks of 25 GB/s each way, 8 ports of 400 Gb/s"
_DGX_B200 = "NVIDIA DGX B200 data sheet: 18 NVLinks of 50 GB/s each way, 8 ports of 400 Gb/s"
_PCIE = "PCIe 4.0 x16, shared with the network port"
_A800 = "A100 with 8 of 12 NVLinks"
_NVL72 = "NVIDIA GB200 and GB300 NVL72 data sheets: 72 GPUs on one NVLink switch, 18 links of 50 GB/s each way"
_GRAND_TETON = "Grand Teton: H100 with 96 GB of HBM2e, 2.4 TB/s (pytorch/torchtitan, benchmarks)"


def _kin(gpu: str, name: str, **changes: float) -> Gpu:
    """Return a GPU that differs from one of the catalog in some figures of its sheet."""
    return replace(GPUS[gpu], name=name, **changes)


_BLACKWELL = {"flops16": 2500 * TERA, "flops8": 5000 * TERA}
_GB200 = _kin("b200-192gb", "gb200-186gb", **_BLACKWELL)
_B300 = _kin("b200-192gb", "b300-288gb", total=int(268 * GiB), **_BLACKWELL)
_H100_96 = _kin("h100-80gb", "h100-96gb", total=int(95 * GiB), bandwidth=2400 * GIGA)


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


def _cluster(name: str, gpu: str | Gpu, node: int, links: tuple[float, float], source: str) -> Cluster:
    """Return a cluster; links in GB/s a GPU: inside a node, outside."""
    kind = GPUS[gpu] if isinstance(gpu, str) else gpu
    return Cluster(name, kind, node, links[0] * GIGA, links[1] * GIGA, source)


CLUSTERS = {
    cluster.name: cluster
    for cluster in (
        _cluster("dgx-a100-40gb", "a100-40gb", 8, (300, 25), _DGX_A100),
        _cluster("dgx-a100", "a100-80gb", 8, (300, 25), _DGX_A100),
        _cluster("dgx-h100", "h100-80gb", 8, (450, 50), _DGX_H100),
        _cluster("dgx-h200", "h200-141gb", 8, (450, 50), _DGX_H100),
        _cluster("dgx-b200", "b200-192gb", 8, (900, 50), _DGX_B200),
        _cluster("a800", "a100-80gb", 8, (200, 25), _A800),
        _cluster("h100-96gb", _H100_96, 8, (450, 50), _GRAND_TETON),
        _cluster("dgx-b300", _B300, 8, (900, 100), _DGX_B200.replace("400", "800")),
        _cluster("gb200", _GB200, 72, (900, 50), _NVL72),
        _cluster("gb300", replace(_B300, name="gb300-288gb"), 72, (900, 100), _NVL72),
        _cluster("8x-4090", "rtx-4090-24gb", 8, (25, 1.5), _PCIE),
    )
}
_PCIE_LINKS = (25 * GIGA, 3 * GIGA)  # of a GPU for which the catalog has no cluster


def find_cluster(gpu: str, node: int | None = None) -> Cluster:
    """Return the cluster called `gpu`, or that of the GPU of this name; `node` changes the GPUs in a node.

    Raises:
        RecipeError: there is no such GPU or cluster.
    """
    query = gpu.lower().replace(" ", "-")
    found = CLUSTERS.get(query) or next((c for c in CLUSTERS.values() if query in (f"dgx-{c.name}", c.gpu.name)), None)
    if found is None:
        kind = find_gpu(gpu)
        known = next((cluster for cluster in CLUSTERS.values() if cluster.gpu == kind), None)
        found = known or Cluster(kind.name, kind, 8, *_PCIE_LINKS, _PCIE)
    return replace(found, node=node) if node else found
