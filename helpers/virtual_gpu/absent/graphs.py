"""torch_geometric's data sets of graphs without files: of the sizes that the docs of their classes state."""

import contextlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..patches import Patches
from ..waits import Waits
from .models import AbsentError

_GRAPHS = 1024  # at most, of a data set of many graphs
_MANY_LABELS = ("PPI", "Yelp", "AmazonProducts")  # of each node, any number of labels
_SMALL = 20_000  # nodes below which the masks are Planetoid's: some nodes of each class, then 500, then 1,000
_PER_CLASS, _VALIDATE, _TEST = 20, 500, 1000


class Size(NamedTuple):
    """The size of a data set: of each of its graphs nodes, edges and features; classes, or numbers to predict."""

    graphs: int
    nodes: int
    edges: int
    features: int
    classes: int
    tasks: int


def install(patches: Patches, waits: Waits) -> None:
    """Teach torch_geometric as soon as it is imported."""
    made: dict[str, Any] = {}  # path of a processed file -> what it would hold
    patches.after_import("torch_geometric.data.dataset", lambda p, module: _data_sets(p, module.Dataset, made, waits))
    patches.after_import("torch_geometric.io.fs", lambda p, module: _files(p, module, made))


def _data_sets(patches: Patches, owner: Any, made: dict[str, Any], waits: Waits) -> None:
    download, process = owner._download, owner._process

    def _download(self: Any) -> None:
        if all(Path(path).exists() for path in self.processed_paths):
            return
        raw = Path(self.raw_dir)
        missing = [folder for folder in (raw, *raw.parents) if not folder.exists()]
        try:
            download(self)
        except OSError:
            for folder in missing:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            content = _content(self)
            waits.leave_out("data set", f"{_title(self)}: made-up graphs")
            made.update(dict.fromkeys(map(str, self.processed_paths), content))

    def _process(self: Any) -> None:
        if not any(str(path) in made for path in self.processed_paths):
            process(self)

    patches.put_all(owner, {"_download": _download, "_process": _process})


def _files(patches: Patches, module: Any, made: dict[str, Any]) -> None:
    base = module.torch_load

    def torch_load(path: Any, *args: Any, **kwargs: Any) -> Any:
        return made[str(path)] if str(path) in made else base(path, *args, **kwargs)

    patches.put(module, "torch_load", torch_load)


def _title(data_set: Any) -> str:
    return " ".join(filter(None, (type(data_set).__name__, getattr(data_set, "name", ""))))


def _content(data_set: Any) -> Any:
    """Return what the processed file of a data set would hold.

    Raises:
        AbsentError: the size of the data set is not known.
    """
    from torch_geometric.data import Data

    kind, name = type(data_set), str(getattr(data_set, "name", ""))
    size = next((size for size in (size_in(base.__doc__ or "", name) for base in kind.__mro__) if size), None)
    if size is None:
        raise AbsentError(f"{_title(data_set)} is not on this machine, and the size of its graphs is not known.")
    graph = Data.from_dict(_graph(size, kind.__name__ in _MANY_LABELS))
    if data_set.pre_transform is not None:
        graph = data_set.pre_transform(graph)
    data, slices = data_set.collate([graph] * min(size.graphs, _GRAPHS))
    if kind.__name__ != "TUDataset":
        return data.to_dict(), slices, Data
    sizes = {"num_node_labels": size.features, "num_node_attributes": 0, "num_edge_labels": 0, "num_edge_attributes": 0}
    return data.to_dict(), slices, sizes, Data


def size_in(doc: str, name: str) -> Size | None:
    """Return the size that the docs of a class state for the data set called `name`; None where they state none."""
    rows = [
        [cell.strip() for cell in re.split(r"\n\s*- ", "\n" + row)[1:]]
        for row in re.split(r"\n\s*\* (?=- )", doc.partition(".. list-table::")[2])[1:]
    ]
    if not rows or "#nodes" not in rows[0]:
        return None
    table = [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
    found = [row for row in table if _plain(row.get("Name", name)) == _plain(name)]
    if not found:
        return None
    numbers = {key: _number(found[0].get(key, "")) for key in rows[0]}
    return Size(
        max(1, numbers.get("#graphs", 1)),
        *(numbers.get(key, 0) for key in ("#nodes", "#edges", "#features", "#classes", "#tasks")),
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.split("\n")[0].lower())


def _number(cell: str) -> int:
    found = re.search(r"\d[\d,.]*", cell)
    return round(float(found[0].replace(",", ""))) if found else 0


def _graph(size: Size, many_labels: bool) -> dict[str, torch.Tensor]:
    """Return a graph: x (nodes, features), edge_index (2, edges), y, and of a data set of one graph, the masks."""
    nodes = torch.arange(size.nodes)
    graph = {"edge_index": torch.randint(max(1, size.nodes), (2, size.edges))}
    graph |= {"x": torch.rand(size.nodes, size.features)} if size.features else {"num_nodes": size.nodes}
    if many_labels:
        graph["y"] = torch.zeros(size.nodes, size.classes or size.tasks)
    elif size.tasks:
        graph["y"] = torch.zeros(1, size.tasks)
    elif size.graphs > 1:
        graph["y"] = torch.tensor([size.classes - 1])
    else:
        graph["y"] = nodes % max(1, size.classes)
    if size.graphs > 1:
        return graph
    train = _PER_CLASS * size.classes if size.nodes < _SMALL else size.nodes * 6 // 10
    validate, test = (_VALIDATE, _TEST) if size.nodes < _SMALL else (size.nodes * 2 // 10,) * 2
    graph["train_mask"] = nodes < train
    graph["val_mask"] = (nodes >= train) & (nodes < train + validate)
    graph["test_mask"] = (nodes >= train + validate) & (nodes < train + validate + test)
    return graph
