"""The pictures of the sharding lab, one a file."""

from .flat_vector import flat_vector_figure
from .gpus import gpus_figure
from .mesh import mesh_figure
from .shards import shards_figure
from .static_bytes import static_bytes_figure

__all__ = [
    "flat_vector_figure",
    "gpus_figure",
    "mesh_figure",
    "shards_figure",
    "static_bytes_figure",
]
