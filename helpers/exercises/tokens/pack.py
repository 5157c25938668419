"""Check of packing: documents end to end in rows, and a mask that keeps them apart."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence

Pack = Callable[[list[Tensor], int], Any]
DocumentMask = Callable[[Tensor], Tensor]
NAMES = ("ids", "targets", "positions", "document")


def _documents(seed: int, lengths: list[int]) -> list[Tensor]:
    """Return documents of the `lengths`, all tokens of which differ."""
    return list(torch.randperm(sum(lengths), generator=torch.Generator().manual_seed(seed)).split(lengths))


def _cases(seed: int) -> dict[str, tuple[list[Tensor], int]]:
    """Return documents and a row's length, by name: what is left over, nothing left over, long and short ones."""
    rng, length = random.Random(seed), 8
    drawn = [rng.randint(2, 7) for _ in range(5)]
    drawn.append(length - sum(drawn) % length + rng.randint(1, length - 1))  # so that the last row is not full
    lengths = {
        "documents of many lengths": drawn,
        "one document of three rows": [3 * length - rng.randint(1, 5)],
        "documents of one token": [1] * rng.randint(3, 7),
        "documents that fill two rows": [length - 3, 3, length],
        "a document that ends with a row": [length, rng.randint(2, 6)],
    }
    alike = [torch.tensor(tokens) for tokens in ([0, 5, 0, 0], [0, 5, 0, 0], [6, 0], [0], [0, 0])]
    return {name: (_documents(seed, of), length) for name, of in lengths.items()} | {
        "documents that repeat a token, and one another": (alike, length),
        "rows of one token": (_documents(seed, [2, 1]), 1),
    }


def _plain(tensor: Any) -> Evidence:
    """Describe what came back for a tensor."""
    if not isinstance(tensor, Tensor):
        return {"kind": type(tensor).__name__}
    return {"kind": f"{tensor.dtype}".removeprefix("torch."), "shape": list(tensor.shape), "values": tensor.tolist()}


def _packed(seed: int, pack: Pack, document_mask: DocumentMask) -> Evidence:
    """Pack all cases; return what came back, and the documents as they are afterwards."""
    seen = {}
    for case, (documents, length) in _cases(seed).items():
        packed = tuple(pack(documents, length))
        left = [document.tolist() for document in documents]
        seen[case] = {"count": len(packed), "documents": left} | dict(zip(NAMES, map(_plain, packed), strict=False))
    return seen


def _wrong(seen: Evidence, expected: Evidence, name: str, why: Callable[[int, int, bool], str]) -> str | None:
    """Say where the tensor `name` differs; `why(got, due, at the end of a row)` adds what it may come from."""
    for case, right in expected.items():
        if seen[case]["count"] != 4:
            return f"{case}: `pack` returns {seen[case]['count']} values; expected four: {', '.join(NAMES)}."
        got, want = seen[case][name], right[name]
        if got["kind"] != want["kind"]:
            return f"{case}: {name} is of type {got['kind']}; expected {want['kind']}."
        if got["shape"] != want["shape"]:
            return f"{case}: {name} has the shape {got['shape']}; expected {want['shape']}."
        for r, (mine, right) in enumerate(zip(got["values"], want["values"], strict=True)):
            for i, (a, b) in enumerate(zip(mine, right, strict=True)):
                if a != b:
                    return f"{case}: {name}[{r}, {i}] is {a}; expected {b}. {why(a, b, i + 1 == len(right))}".rstrip()
    return None


class FillsRows(Check):
    """ids: the documents follow one another in rows of `length` tokens; only the end of the last row is padded."""

    hint = (
        "First one long tensor of all tokens, then rows: torch.cat, and view(-1, length).\n"
        "The last row lacks -len(ids) % length tokens; F.pad(ids, (0, lacking), value=...) appends them."
    )

    probe = staticmethod(_packed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        changed = [case for case, want in expected.items() if seen[case]["documents"] != want["documents"]]
        if changed:
            return f"{changed[0]}: `pack` changes the documents that it is given. Write into new tensors."
        return _wrong(seen, expected, "ids", lambda a, b, _: "A token is missing there." if a == 0 else "")


class TargetsStayInTheirDocument(Check):
    """targets: the next token of the same document, in the next row if necessary; -100 at its end and for padding."""

    hint = (
        "On the long tensor, before it is cut into rows, the target of token i is token i + 1.\n"
        "The last token of a document has no next one: where do the documents end? A cumulative sum of their lengths."
    )

    probe = staticmethod(_packed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        def why(got: int, due: int, at_end: bool) -> str:
            if due == -100:
                return "The document, or all text, ends there: it must not count."
            return "Its next token is in the next row." if at_end else ""

        case, made = next(iter(seen.items()))  # all its tokens differ
        rows = zip(*(made.get(name, {}).get("values", []) for name in ("ids", "targets")), strict=False)
        if any(target == token for row in rows for token, target in zip(*row, strict=False) if token > 0):
            return f"{case}: targets are the tokens themselves; a token's target is the one after it."
        return _wrong(seen, expected, "targets", why)


class PositionsRestart(Check):
    """positions: counted from 0 with each document, and with each row; 0 for padding."""

    hint = (
        "A token's position is its index in the long tensor, minus the index where its count started.\n"
        "The count starts with the document or with the row, whichever comes later: torch.maximum."
    )

    probe = staticmethod(_packed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected, "positions", lambda a, b, _: "The count restarts there." if b == 0 < a else "")


class NumbersDocuments(Check):
    """document: for each token the index of its document in the list; -1 for padding."""

    hint = "Document k is len(documents[k]) times the number k.\ntorch.repeat_interleave(lengths) does just that."

    probe = staticmethod(_packed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        def why(got: int, due: int, at_end: bool) -> str:
            if due == -1:
                return "That is padding, which belongs to no document."
            return "Documents are numbered through the full list, not from 0 in each row." if 0 <= got < due else ""

        return _wrong(seen, expected, "document", why)


class KeepsDocumentsApart(Check):
    """The mask is True where a token may attend: to itself and to earlier tokens of its own document in the row."""

    hint = (
        "document[:, :, None] == document[:, None, :] compares each token of a row with each.\n"
        "Later tokens are above the diagonal: tril(). Insert a dimension for the heads at index 1."
    )

    @staticmethod
    def probe(seed: int, pack: Pack, document_mask: DocumentMask) -> Evidence:
        rng, seen = random.Random(seed), {}
        for rows, length in ((1, 6), (3, 9), (2, 1)):
            numbers = torch.tensor([rng.choice([0, 0, 1]) for _ in range(rows * length)]).cumsum(0)
            numbers[max(1, rows * length - 2) :] = -1
            document = numbers.view(rows, length)
            given = document.clone()
            seen[f"{rows} x {length} tokens"] = _plain(document_mask(given)) | {
                "document": document.tolist(),
                "changed": not given.equal(document),
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["changed"]:
                return f"{case}: `document_mask` changes the tensor that it is given. Write into a new one."
            if got["kind"] != want["kind"]:
                return f"{case}: the mask is of type {got['kind']}; expected {want['kind']}."
            if got["shape"] != want["shape"]:
                return (
                    f"{case}: the mask has the shape {got['shape']}; expected {want['shape']}: rows, heads, from, to."
                )
            for r, (mine, right) in enumerate(zip(got["values"], want["values"], strict=True)):
                different = torch.tensor(mine[0]) != torch.tensor(right[0])
                real = torch.tensor(want["document"][r]) >= 0
                if (different & real[:, None]).any():  # before what was filled up
                    different &= real[:, None]
                if different.any():
                    i, j = different.nonzero()[0].tolist()
                    may, of = mine[0][i][j], want["document"][r]
                    says = f"{case}: in row {r}, token {i} {'may' if may else 'may not'} attend to token {j}"
                    if not may:
                        what = "itself: a row of the mask without any True makes NaN" if i == j else "one before it"
                        return f"{says}, which is {what}{' in its own document' if i != j else ''}."
                    return f"{says}, which {'comes later' if j > i else f'is of document {of[j]}, not {of[i]}'}."
        return None


PACK = (FillsRows, TargetsStayInTheirDocument, PositionsRestart, NumbersDocuments, KeepsDocumentsApart)
