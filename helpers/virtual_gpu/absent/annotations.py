"""COCO's annotation files without a file, and torchvision's data sets of pictures with boxes and masks.

Pictures are as large as most of COCO's, and have as many objects as those have on average. Which classes there are,
and how the numbers of classes go, is as in COCO: 80 of them, with ids up to 90.
"""

from typing import Any

from ..patches import Patches
from ..waits import Waits

ROWS, FEW, OBJECTS = 512, 64, 7  # pictures in the training split, in the others; objects in each
_SIDES = (640, 480)
_UNUSED = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # of the ids up to 90
_POINTS = 17  # of a person
_VOC_CLASSES = 21


def size_of(name: str) -> tuple[int, int] | None:
    """Return (width, height) of the made-up picture of this file name; None for files that are not COCO's."""
    stem = name.partition(".")[0]
    if len(stem) != 12 or not stem.isdigit():
        return None
    return _SIDES if int(stem) % 4 else _SIDES[::-1]


def coco(name: str) -> dict[str, Any]:
    """Return what an annotation file of COCO's has in it.

    Args:
        name: of the file, e.g. "instances_train2017.json".
    """
    count = ROWS if "train" in name else FEW
    categories = [{"id": i, "name": f"class {i}", "supercategory": "thing"} for i in range(1, 91) if i not in _UNUSED]
    images, annotations = [], []
    for number in range(1, count + 1):
        file_name = f"{number:012d}.jpg"
        width, height = size_of(file_name) or _SIDES
        images.append({"id": number, "file_name": file_name, "width": width, "height": height})
        for i in range(OBJECTS):
            kind = 1 if "person" in name else categories[(number + i) % len(categories)]["id"]
            annotations.append(_annotation(len(annotations) + 1, number, i, kind))
    if "captions" in name:
        annotations = [{"id": a["id"], "image_id": a["image_id"], "caption": "A gray picture."} for a in annotations]
    return {"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": categories}


def _annotation(number: int, image: int, i: int, kind: int) -> dict[str, Any]:
    """Return one object: a box that grows with `i`, at a place of its own."""
    x, y, side = 10.0 + 20 * i, 10.0 + 15 * i, 60.0 + 40 * i
    corners = [x, y, x + side, y, x + side, y + side, x, y + side]
    points = [value for j in range(_POINTS) for value in (x + side * j / _POINTS, y + side / 2, 2)]
    return {
        **{"id": number, "image_id": image, "category_id": kind, "iscrowd": 0, "area": side**2},
        **{"bbox": [x, y, side, side], "segmentation": [corners], "keypoints": points, "num_keypoints": _POINTS},
    }


def install(patches: Patches, waits: Waits) -> None:
    """Teach pycocotools and torchvision as soon as they are imported."""
    patches.after_import("pycocotools.coco", lambda p, module: _teach_coco(p, module, waits))
    patches.after_import("torchvision.datasets", lambda p, module: _teach_voc(p, module, waits))


def _teach_coco(patches: Patches, module: Any, waits: Waits) -> None:
    base = module.COCO.__init__

    def __init__(self: Any, annotation_file: Any = None) -> None:
        try:
            base(self, annotation_file)
        except FileNotFoundError:
            waits.leave_out("data set", f"{annotation_file}: gray pictures with made-up objects")
            base(self)
            self.dataset = coco(str(annotation_file))
            self.createIndex()

    patches.put(module.COCO, "__init__", __init__)


def _teach_voc(patches: Patches, module: Any, waits: Waits) -> None:
    """Put lists of files that are not there in place of missing ones; the pictures and masks are gray."""
    for name in ("VOCSegmentation", "VOCDetection"):
        patches.put(module, name, _voc(getattr(module, name), name, waits))


def _voc(base: Any, name: str, waits: Waits) -> Any:
    class Replaced(base):  # `isinstance` and subclasses go on
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            try:
                super().__init__(*args, **kwargs)
                return
            except (OSError, RuntimeError):
                waits.leave_out("data set", f"{name}: gray pictures with made-up objects")
            for option in ("transform", "target_transform", "transforms"):
                setattr(self, option, kwargs.get(option))
            if self.transforms is None and (self.transform or self.target_transform):
                from torchvision.datasets.vision import StandardTransform

                self.transforms = StandardTransform(self.transform, self.target_transform)
            self.images = [f"{number:012d}.jpg" for number in range(1, ROWS + 1)]
            self.targets = self.images

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            if self.targets is not self.images:
                return super().__getitem__(index)
            from PIL import Image

            size = size_of(self.images[index])
            picture = Image.new("RGB", size)
            target = Image.new("L", size, index % _VOC_CLASSES) if name == "VOCSegmentation" else _voc_objects(size)
            return (picture, target) if self.transforms is None else self.transforms(picture, target)

    Replaced.__name__ = Replaced.__qualname__ = name
    return Replaced


def _voc_objects(size: tuple[int, int]) -> dict[str, Any]:
    """Return the annotation of one picture, as parsed from VOC's XML: numbers are strings."""
    box = {"xmin": "10", "ymin": "10", "xmax": str(size[0] // 2), "ymax": str(size[1] // 2)}
    objects = [{"name": "dog", "pose": "Left", "truncated": "0", "difficult": "0", "bndbox": box}]
    shape = {"width": str(size[0]), "height": str(size[1]), "depth": "3"}
    return {"annotation": {"folder": "VOC", "filename": "picture.jpg", "size": shape, "object": objects}}
