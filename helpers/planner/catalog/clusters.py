"""Clusters: how fast GPUs talk to each other within a node and between nodes. Their figures stand in the GPU's file."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import RecipeError
from .gpus import GIGA, SHEETS, Gpu, find_gpu, gpu_of, read_sheet


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


_FIELDS = {"name", "gpus_per_node", "node_gb_s", "network_gb_s", "source"}


def clusters_of(sheet: Mapping[str, Any]) -> list[Cluster]:
    """Return the clusters in the file of a GPU. Vendors print NVLink's rate for both directions; here it is for one.

    Raises:
        RecipeError: something is missing or unknown in it.
    """
    gpu, result = gpu_of(sheet), []
    for table in sheet.get("clusters", []):
        if set(table) != _FIELDS:
            raise RecipeError(f"{gpu.name}: a cluster has {', '.join(sorted(_FIELDS))}.")
        links = table["node_gb_s"] * GIGA, table["network_gb_s"] * GIGA
        result.append(Cluster(table["name"], gpu, table["gpus_per_node"], *links, table["source"]))
    return result


CLUSTERS: dict[str, Cluster] = {
    cluster.name: cluster
    for cluster in sorted(
        (each for sheet in SHEETS for each in clusters_of(sheet)), key=lambda each: (each.gpu.total, each.name)
    )
}
_PCIE = "PCIe, shared with the network port of 24 Gb/s a GPU"
_PCIE_SHARE, _NETWORK = 25 / 32, 3 * GIGA  # of the host's link, and of a GPU for which no file has a cluster


def find_cluster(gpu: str, node: int | None = None) -> Cluster:
    """Return the cluster called `gpu`, or that of the GPU of this name; `node` changes the GPUs in a node.

    Raises:
        RecipeError: there is no such GPU or cluster.
    """
    query = gpu.lower().replace(" ", "-")
    found = CLUSTERS.get(query) or next((c for c in CLUSTERS.values() if query in (f"dgx-{c.name}", c.gpu.name)), None)
    if found is None:
        kind = find_gpu(gpu)
        own = clusters_of(read_sheet(Path(gpu))) if gpu.endswith(".toml") else list(CLUSTERS.values())
        known = next((cluster for cluster in own if cluster.gpu == kind), None)
        found = known or Cluster(kind.name, kind, 8, _PCIE_SHARE * kind.link, _NETWORK, _PCIE)
    return replace(found, node=node) if node else found
