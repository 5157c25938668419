"""How fast a ring of ranks is, by where they lie on the nodes.

Neighboring ranks share a node. A ring over several nodes leaves each of them through as many network ports as it has
ranks there: the same rule as in `planner/layout/links.py`, at the data sheets' rates.
"""

from ...planner.catalog.clusters import Cluster


def ring_bandwidth(cluster: Cluster, ranks: int, stride: int = 1) -> float:
    """Return the bytes/s that each rank passes on along a ring.

    Args:
        cluster: whose links.
        ranks: of the ring.
        stride: how far apart they lie: 1 for neighbors, 8 where every eighth rank belongs to the ring.
    """
    in_node = max(1, min(ranks, cluster.node // stride))
    return cluster.inside if in_node == ranks else min(cluster.inside, cluster.outside * in_node)
