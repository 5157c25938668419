"""A receipt: what one machine has measured, in a file that only a run writes.

`receipts/DEVICE.json` says on which device, with which versions and on which day each figure was measured. The file
ends with a digest of all the rest, so that a figure changed by hand is noticed. This is not a lock: anybody can compute
a digest, but nobody does so by mistake.
"""

import contextlib
import functools
import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.device import device_name, pick_device
from ..core.files import ROOT
from .measurement import Measurement

_NUMBERS = ("measured", "low", "high")
# Words in which older labs stated a claim, and those of today's. A receipt keeps its own words under its digest.
_REWORDED = (
    (re.compile(r"(?<=\d) %"), "%"),
    (re.compile(r"\b(bytes|B|workers|tokens) a (parameter|GPU)\b"), r"\1 per \2"),
    (re.compile(r"^weighing by rows\b"), "weighting by rows"),
)
_NEW_UNITS = (  # the same for units
    (re.compile(r"^x the law$"), "x the formula"),
)
FOLDER = ROOT / "receipts"


class ReceiptError(ValueError):
    """A file that is not a receipt, or no longer as the run wrote it."""


@dataclass
class Receipt:
    """What one machine has measured.

    Attributes:
        device: name of the device that computed.
        kind: "cpu", "cuda" or "mps".
        steps: what was run, by name: its status ("done", "failed", "skipped"), date, versions, seconds, a `reason` if
            it is not done, and the `rows` that it measured.
    """

    device: str
    kind: str
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file's name: the device's, in lower case and with dashes."""
        return Path(re.sub(r"[^a-z0-9]+", "-", self.device.lower()).strip("-") + ".json")

    def rows(self) -> list[tuple[str, Measurement]]:
        """Return all measurements, each with the name of its step; claims and units have today's wording."""
        return [
            (name, replace(row, said=reworded(row.said), unit=reworded(row.unit, _NEW_UNITS)))
            for name, step in self.steps.items()
            for row in step["rows"]
        ]

    def find(self, like: Measurement) -> Measurement | None:
        """Return what this machine measured last for the same claim on the same subject, in the same unit."""
        key = (like.claim, reworded(like.said), like.subject, reworded(like.unit, _NEW_UNITS))
        found = [
            (str(self.steps[name].get("date", "")), row)
            for name, row in self.rows()
            if (row.claim, row.said, row.subject, row.unit) == key
        ]
        return max(found, key=lambda dated: dated[0])[1] if found else None

    def text(self) -> str:
        """Return the file: JSON with the digest of all else at its end."""
        steps = {name: {**step, "rows": [plain(row) for row in step["rows"]]} for name, step in self.steps.items()}
        body = {"device": self.device, "kind": self.kind, "steps": steps}
        return json.dumps({**body, "digest": _digest(body)}, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Receipt":
        """Read a file that `text` made.

        Raises:
            ReceiptError: it is not a receipt, or its digest does not match its figures.
        """
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            digest = body.pop("digest")
            steps = {
                name: {**step, "rows": [measurement(row, body["device"]) for row in step["rows"]]}
                for name, step in body["steps"].items()
            }
            receipt = cls(body["device"], body["kind"], steps)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReceiptError(f"{path.name} is not a receipt: {error}") from error
        if digest != _digest(body):
            raise ReceiptError(f"{path.name} was changed by hand: its digest does not match. Run: make receipts")
        return receipt


def reworded(words: str, pairs: tuple[tuple[re.Pattern[str], str], ...] = _REWORDED) -> str:
    """Return a claim of an older receipt in today's wording, in which bytes are per parameter or per GPU."""
    for old, new in pairs:
        words = old.sub(new, words)
    return words


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def plain(row: Measurement) -> dict[str, Any]:
    """Return a row for JSON, which has no infinity and no NaN: they become text. The device is the receipt's."""
    values = asdict(row)
    del values["device"]
    for key in _NUMBERS:
        if values[key] is not None:  # `measured` is None where a machine cannot
            number = float(values[key])
            values[key] = number if math.isfinite(number) else str(number)
    return values


def measurement(values: dict[str, Any], device: str) -> Measurement:
    """Return the row that `plain` wrote, measured on `device`."""
    numbers = {key: float(values[key]) for key in _NUMBERS if values[key] is not None}
    return Measurement(**{**values, **numbers}, device=device)


def receipts(folder: Path = FOLDER) -> list[Receipt]:
    """Return the receipts in a folder; none if only the package is installed. Other files are skipped."""
    result = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(ReceiptError):  # a test reports it; a lab goes on
            result.append(Receipt.read(path))
    return result


@functools.cache
def receipts_elsewhere() -> list[Receipt]:
    """Return the receipts of devices other than the one that labs compute on here."""
    own = device_name(pick_device())
    return [receipt for receipt in receipts() if receipt.device != own]
