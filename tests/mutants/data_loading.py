"""Wrong and right answers for the practice tasks of data loading."""

from . import Mutant

PREFETCH, LOADER, PACK, RESUME = (f"data_loading.{part}" for part in ("prefetch", "loader", "pack", "resume"))
PACE, SAME, FRESH = "keeps_pace", "same_samples", "fresh_numbers"
CALL = "    return DataLoader(\n        dataset,\n        batch_size,\n"
KEPT = '    dataset.__class__ = type("Kept", (type(dataset),), {{"__getitem__": lambda self, i: {}}})\n'
WORKERS = "workers = math.ceil(batch_size * statistics.median(reads) / step_seconds)"


def one(name: str, rejected_by: str, old: str, new: str) -> Mutant:
    return Mutant(name, LOADER, rejected_by, ((old, new),))


def prefetch(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, PREFETCH, check, replace)


def pack(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, PACK, check, replace)


def resume(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, RESUME, check, replace)


# prefetch
READY = "    ready, room, over = queue.SimpleQueue(), threading.Semaphore(depth), threading.Event()\n"
SEND = 'return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)'
SOURCE = "            source = iter(batches)\n"
LOOP = "while room.acquire() and not over.is_set():  # room for one batch more"
PUT = "ready.put((tuple(send(tensor) for tensor in next(source)), None))"
TOLD = "            ready.put((None, error))\n"
TAKEN = "            room.release()  # the loop takes this one\n"
YIELD = "            yield batch\n        if not"
BEGUN = (
    "    thread.start()\n    try:\n",
    "    thread.start()\n    return loop(ready, room, over, thread)\n\n\ndef loop(ready, room, over, thread):\n    try:\n",
)
END = "        over.set()\n        room.release()\n        thread.join()\n"
WAITS = """class Waits:
    def __init__(self, function):
        self.function = function

    def __call__(self, *given):
        over = Waits(self.function)
        over.inner = self.function(*given)
        return over

    def __iter__(self):
        return self

    def __next__(self):
        for batch in self.inner or iter(threading.Event().wait, None):
            return batch
        self.inner = None
        raise StopIteration

    def close(self):
        self.inner.close()


"""
# pack
NO_TARGET = "    targets[ends - 1] = -100\n"
POSITIONS = "place - torch.maximum((ends - lengths)[document], place // length * length)"
PAD = "F.pad(tensor, (0, -len(tensor) % length), value=filler).view(-1, length)"
MASK = "same.tril()[:, None]"
# resume
DRAWN = "np.random.default_rng([self.seed, self.epoch]).permutation(len(self.dataset)).tolist()"
REST = "range(self.had * self.batch_size, len(order), self.batch_size)"
LEFT = "        left = [order[start : start + self.batch_size] for start in rest]\n"
RUN = "        for batch in DataLoader(self.dataset, batch_sampler=left, num_workers=self.workers):\n"
HAD = "            self.had += 1  # the loop has it now, and may save\n"
STATE = 'return {"seed": self.seed, "epoch": self.epoch, "had": self.had}'
LOAD = 'self.seed, self.epoch, self.had = state["seed"], state["epoch"], state["had"]'

LIVING = """class Living:
    seed, epoch, had = (
        property(lambda self, k=k: self.state[k], lambda self, value, k=k: self.state.update({k: value}))
        for k in ("seed", "epoch", "had")
    )


class ResumableLoader(Living):
"""

MUTANTS = [
    # the prefetcher
    *(prefetch("delivers_all_in_order", *mutant) for mutant in (
        ("lists", ("tuple(send(tensor)", "list(send(tensor)")),
        ("labels first", ("for tensor in next(source))", "for tensor in reversed(next(source)))")),
        ("labels alone", ("for tensor in next(source))", "for tensor in next(source)[1:])")),
        ("the first one lost", (SOURCE, SOURCE + "            next(source)\n")),
        ("each one twice", (YIELD, "            yield batch\n" + YIELD)),
        ("the last one lost", ("    try:\n        while True:\n", "    held = None\n    try:\n        while True:\n"), (YIELD, "            if held is not None:\n                yield held\n            held = batch\n        if not")),
        ("as the batch came", (PUT, "batch = next(source)\n                ready.put((type(batch)(send(tensor) for tensor in batch), None))")),
        ("one queue for all", ("def prefetched(", "ALL = queue.SimpleQueue()\n\n\ndef prefetched("), (READY, READY.replace("queue.SimpleQueue()", "ALL"))),
        ("waits after the end", ("def prefetched(", WAITS + "@Waits\ndef prefetched(")),
        ("never says that these were all", (TOLD, "            if not isinstance(error, StopIteration):\n                ready.put((None, error))\n")),
    )),
    *(prefetch("draws_in_one_thread", *mutant) for mutant in (
        ("no thread", (READY, "    for batch in batches:\n        yield tuple(tensor.to(device) for tensor in batch)\n    return\n" + READY)),
        ("all drawn beforehand", (READY, "    batches = list(batches)\n" + READY)),
        ("a thread for each batch", (SOURCE, SOURCE + "            drawn = []\n"), (PUT, "one = threading.Thread(target=lambda: drawn.append(next(source, None)))\n                one.start()\n                one.join()\n                ready.put((tuple(send(tensor) for tensor in next(iter([drawn[-1]] if drawn[-1] else []))), None))")),
    )),
    *(prefetch("keeps_depth_waiting", *mutant) for mutant in (
        ("one more in its hands", (READY, READY.replace("queue.SimpleQueue(), threading.Semaphore(depth)", "queue.Queue(depth), threading.Semaphore(10**6)"))),
        ("without a limit", (LOOP, "while not over.is_set():")),
        ("one fewer", (READY, READY.replace("(depth)", "(max(1, depth - 1))"))),
        ("one always", (READY, READY.replace("(depth)", "(1)"))),
        ("two at least", (READY, READY.replace("(depth)", "(max(2, depth))"))),
        ("only when asked", (READY, READY.replace("(depth)", "(0)")), ("            batch, error = ready.get()\n", "            room.release()\n            batch, error = ready.get()\n"), (TAKEN, "")),
        ("one more before the first", (READY, READY.replace("(depth)", "(depth + 1)")), BEGUN, (TAKEN, "            room.release() if taken else None\n            taken = True\n"), ("        while True:\n", "        taken = False\n        while True:\n")),
        ("room too late", (TAKEN + "            yield batch\n", "            yield batch\n" + TAKEN)),
    )),
    *(prefetch("sends_from_pinned_memory", *mutant) for mutant in (
        ("not pinned", (SEND, "return tensor.to(device, non_blocking=True)")),
        ("blocking", ("to(device, non_blocking=True)", "to(device)")),
        ("the pageable one sent", (SEND, 'return (tensor.pin_memory() is None or tensor).to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)')),
        ("pinned everywhere", (SEND, "return tensor.pin_memory().to(device, non_blocking=True)")),
        ("pinned and left there", (SEND, 'return tensor.pin_memory() if device.type == "cuda" else tensor.to(device)')),
        ("other devices get nothing", (SEND, SEND.replace("else tensor.to(device)", "else tensor"))),
        ("pinned for all but the CPU", (SEND, SEND.replace('== "cuda"', '!= "cpu"'))),
        ("to the current GPU", (SEND, SEND.replace(".to(device, non_blocking=True) if", ".cuda(non_blocking=True) if"))),
        ("sent by the loop", ("tuple(send(tensor) for tensor in next(source))", "next(source)"), (YIELD, "            yield tuple(send(tensor) for tensor in batch)\n        if not")),
        ("the first tensor alone", ("tuple(send(tensor) for tensor in next(source))", "(lambda batch: (send(batch[0]), *batch[1:]))(next(source))")),
    )),
    *(prefetch("passes_errors_on", *mutant) for mutant in (
        ("lost", (TOLD, "            ready.put((None, StopIteration()))\n")),
        ("not caught", ("except Exception as error:", "except StopIteration as error:")),
        ("wrapped", ("            raise error\n", '            raise RuntimeError("loading failed") from error\n')),
        ("before what was drawn", (READY, READY + "    failed = []\n"), (TOLD, "            failed.append(error)\n" + TOLD), (TAKEN, "            if failed and not isinstance(failed[0], StopIteration):\n                raise failed[0]\n" + TAKEN)),
        ("the batch before it lost", (SOURCE, SOURCE + "            held = []\n"), (PUT, "held.append(next(source))\n                if len(held) > 1:\n                    ready.put((tuple(send(tensor) for tensor in held.pop(0)), None))")),
        ("lost in sending", (PUT, "batch = next(source)\n                try:\n                    ready.put((tuple(send(tensor) for tensor in batch), None))\n                except Exception:\n                    return")),
        ("iter outside of the try", ("        try:\n" + SOURCE, SOURCE[4:] + "        try:\n")),
    )),
    *(prefetch("ends_its_thread", *mutant) for mutant in (
        ("not woken", (END, "        over.set()\n")),
        ("not told", (END, "        room.release()\n"), (" and not over.is_set()", "")),
        ("draws the rest", (END, "        room.release(50)\n"), (" and not over.is_set()", "")),
        ("looks too early", (LOOP, "while not over.is_set() and room.acquire():  # room for one batch more")),
        ("looks only after it has waited", (LOOP, "while room.acquire(blocking=False) or (room.acquire() and not over.is_set()):"), (END, "        over.set()\n        room.release()\n")),
        ("begun before the generator", BEGUN),
        ("no close", ("def prefetched(", "def without_close(function):\n    return lambda *given: iter(function(*given).__next__, None)\n\n\n@without_close\ndef prefetched(")),
        ("stays when all is done", (TOLD, TOLD + "            threading.Event().wait()\n"), ("        thread.join()\n", "")),
        ("stays after an error", (TOLD, TOLD + "            if not isinstance(error, StopIteration):\n                threading.Event().wait()\n"), ("        thread.join()\n", "")),
    )),
    # the slow loader
    Mutant("the slow loader", LOADER, PACE, (("        num_workers=workers,\n        persistent_workers=True,\n", ""),)),
    one("one worker", PACE, WORKERS, "workers = 1"),
    one("rounded down", PACE, WORKERS, WORKERS.replace("math.ceil(", "max(1, int(") + ")"),
    one("always three", PACE, WORKERS, "workers = 3"),
    one("always four", PACE, WORKERS, "workers = 4"),
    one("always eight", PACE, WORKERS, "workers = 8"),
    one("twice the workers", PACE, WORKERS, WORKERS.replace("math.ceil(", "2 * math.ceil(")),
    one("capped at two cores", PACE, WORKERS, WORKERS.replace("math.ceil(", "min(2, math.ceil(") + ")"),
    one("batch forgotten in the rule", PACE, "batch_size * statistics", "statistics"),
    one("the rule upside down", PACE, WORKERS, "workers = math.ceil(step_seconds / (batch_size * statistics.median(reads)))"),
    one("workers anew in each epoch", PACE, "persistent_workers=True", "persistent_workers=False"),
    one("sixteen batches in hand", PACE, "shuffle=True", "shuffle=True, prefetch_factor=16"),
    one("larger batches", PACE, CALL, "    return DataLoader(dataset, 2 * batch_size,\n"),
    one("the store made quick", PACE, "    reads = []\n", "    reads = []\n    dataset.latency = 0.001\n"),
    one("measures with half of the files", PACE, "range(5)", "range(len(dataset) // 2)"),
    one("all files read beforehand", PACE, CALL,
        "    files = [dataset[i] for i in range(len(dataset))]\n" + KEPT.format("files[i]") + CALL),
    one("each worker keeps what it has read", PACE, CALL,
        "    read, known = type(dataset).__getitem__, {}\n"
        + KEPT.format("known[i] if i in known else known.setdefault(i, read(self, i))") + CALL),
    one("augmentation kept with the image", FRESH, CALL,
        "    read, known = type(dataset).__getitem__, {}\n"
        + KEPT.format("known[i] if i in known else known.setdefault(i, read(self, i))") + CALL),
    Mutant("an epoch kept in memory", LOADER, PACE, (("    return DataLoader(", "    return list(DataLoader("),
        ("PickledByValue(own_numbers),\n    )", "PickledByValue(own_numbers),\n    ))"))),
    one("nothing shuffled", SAME, "        shuffle=True,\n", ""),
    one("the last batch dropped", SAME, "shuffle=True", "shuffle=True, drop_last=True"),
    one("one order for all epochs", SAME, "shuffle=True", "sampler=torch.randperm(len(dataset)).tolist()"),
    Mutant("two orders in turn", LOADER, SAME, (("    reads = []\n", "    reads = []\n    orders = [torch.randperm(len(dataset)).tolist() for _ in range(2)]\n"
        '    turns = type("Turns", (), {"__iter__": lambda self: iter(orders.reverse() or orders[0])})()\n'), ("shuffle=True", "sampler=turns"))),
    Mutant("two seeds in turn", LOADER, FRESH, (("    reads = []\n", "    reads, epochs = [], []\n"),
        ("reseed(info.seed)", "reseed(worker_id + 100 * (len(epochs) % 2))"), ("persistent_workers=True", "persistent_workers=False"),
        ("shuffle=True", 'sampler=type("Turns", (), {"__iter__": lambda self: iter(epochs.append(1) or torch.randperm(len(dataset)).tolist())})()'))),
    one("drawn with replacement", SAME, "shuffle=True", "sampler=torch.utils.data.RandomSampler(dataset, replacement=True)"),
    one("smaller batches", SAME, CALL, "    return DataLoader(dataset, max(1, batch_size // 2),\n"),
    one("half of the files", SAME, "shuffle=True",
        "sampler=torch.utils.data.SubsetRandomSampler(range(len(dataset) // 2))"),
    one("the generator copied", FRESH, "worker_init_fn=PickledByValue(own_numbers)", "worker_init_fn=None"),
    one("the same seed in each worker", FRESH, "reseed(info.seed)", "reseed(1234)"),
    one("the seed of the main process", FRESH, "reseed(info.seed)", "reseed(info.seed - info.id)"),
    one("numpy's global generator", FRESH, "info.dataset.reseed(info.seed)", "np.random.seed(info.seed % 2**32)"),
    one("augmentation off", FRESH, "    reads = []\n", "    reads = []\n    dataset.augmented = False\n"),
    Mutant("own seeds, the same in each epoch", LOADER, FRESH, (("reseed(info.seed)", "reseed(worker_id)"),
        ("persistent_workers=True", "persistent_workers=False"))),
    # packing
    *(pack("fills_rows", *mutant) for mutant in (
        ("the rest left out", (PAD, "tensor[: max(length, len(tensor) // length * length)].view(-1, min(length, len(tensor)))")),
        ("a row too many", ("-len(tensor) % length", "length - len(tensor) % length")),
        ("filled up with 1", ("rows(ids, 0)", "rows(ids, 1)")),
        ("shortest first", ("    ids = torch.cat(documents)\n", "    ids = torch.cat(sorted(documents, key=len))\n")),
        ("32 bits", ("rows(ids, 0)", "rows(ids.int(), 0)")),
        ("columns", (PAD, PAD.replace(".view(-1, length)", ".view(length, -1).T"))),
        ("documents end with -100 afterwards", ("    targets = ids.roll(-1)\n", "    targets = ids.roll(-1)\n    for d in documents:\n        d[-1] = -100\n")),
        ("a row for each of one", ("rows(ids, 0)", "rows(ids, 0).squeeze(1)")),
        ("three things", ("return rows(ids, 0), rows(targets, -100), rows(positions, 0), rows(document, -1)", "return rows(ids, 0), rows(targets, -100), rows(positions, 0)")),
    )),
    *(pack("targets_stay_in_their_document", *mutant) for mutant in (
        ("a stranger's token", (NO_TARGET, "")),
        ("a stranger's token, but for the last", (NO_TARGET, "    targets[-1] = -100\n")),
        ("none at the end of a row", ("rows(targets, -100)", "rows(targets.where(place % length < length - 1, -100), -100)")),
        ("itself", ("ids.roll(-1)", "ids.clone()")),
        ("the one before", ("ids.roll(-1)", "ids.roll(1)")),
        ("ignored at the beginning", ("targets[ends - 1]", "targets[ends - lengths]")),
        ("ends told by their token", (NO_TARGET, "    targets[torch.isin(ids, ids[ends - 1])] = -100\n")),
        ("token 0 ignored", ("rows(targets, -100)", "rows(targets.where(targets != 0, -100), -100)")),
        ("filling learnt", ("rows(targets, -100)", "rows(targets, 0)")),
        ("0 at the end", (NO_TARGET, "    targets[ends - 1] = 0\n")),
    )),
    *(pack("positions_restart", *mutant) for mutant in (
        ("run on", (POSITIONS, "place")),
        ("with each row only", (POSITIONS, "place % length")),
        ("with each document only", (POSITIONS, "place - (ends - lengths)[document]")),
        ("from 1", (POSITIONS, POSITIONS + " + 1")),
        ("filling counted", ("rows(positions, 0)", "rows(positions, -1)")),
        ("backwards", (POSITIONS, "torch.minimum(ends[document], place // length * length + length) - 1 - place")),
    )),
    *(pack("numbers_documents", *mutant) for mutant in (
        ("from 1", ("rows(document, -1)", "rows(document + 1, -1)")),
        ("filling told by token 0", ("rows(document, -1)", "rows(document.where(ids != 0, -1), -1)")),
        ("equal documents are one", ("    place = ", "    document = torch.tensor([[d.tolist() for d in documents].index(documents[k].tolist()) for k in document])\n    place = "), (POSITIONS, POSITIONS.replace("[document]", "[torch.repeat_interleave(lengths)]"))),
        ("filling is document 0", ("rows(document, -1)", "rows(document, 0)")),
        ("filling is the last document", ("rows(document, -1)", "rows(document, len(documents) - 1)")),
        ("anew in each row", ("rows(document, -1)", "rows(document - document[place // length * length], -1)")),
    )),
    *(pack("keeps_documents_apart", *mutant) for mutant in (
        ("later tokens as well", (MASK, "same[:, None]")),
        ("causal only", (MASK, "torch.ones_like(same).tril()[:, None]")),
        ("not at itself", (MASK, "same.tril(-1)[:, None]")),
        ("later tokens only", (MASK, "same.triu()[:, None]")),
        ("no heads", (MASK, "same.tril()")),
        ("heads first", (MASK, "same.tril()[None]")),
        ("numbers", (MASK, "same.tril()[:, None].float()")),
        ("the other way round", (MASK, "~same.tril()[:, None]")),
        ("nowhere from the filling", (MASK, "(same & (document >= 0)[:, :, None]).tril()[:, None]")),
        ("neighbours as well", ("document[:, :, None] == document[:, None, :]", "(document[:, :, None] - document[:, None, :]).abs() < 2")),
        ("no dimension of one", (MASK, "same.tril().squeeze()[:, None] if same.numel() > len(same) else same.squeeze()")),
        ("writes into the document", ("    same = document", "    document[document < 0] = document.max() + 1\n    same = document")),
        ("one row for all", (MASK, "same[:1].expand(len(same), -1, -1).tril()[:, None]")),
    )),
    # going on in the middle of an epoch
    *(resume("runs_through_epochs", *mutant) for mutant in (
        ("the last batch dropped", ("for start in rest]", "for start in rest if start + self.batch_size <= len(order)]")),
        ("drawn with replacement", (".permutation(len(self.dataset))", ".integers(len(self.dataset), size=len(self.dataset))")),
        ("others with workers", ("[self.seed, self.epoch]", "[self.seed, self.epoch, self.workers]")),
        ("workers not passed on", (", num_workers=self.workers)", ")")),
        ("one worker at most", ("num_workers=self.workers", "num_workers=min(1, self.workers)")),
        ("the epoch ends with a smaller batch", (HAD, HAD + "            if len(batch) < self.batch_size:\n                self.epoch, self.had = self.epoch + 1, 0\n"), ("            yield batch\n        self.epoch, self.had = self.epoch + 1, 0\n", "            yield batch\n")),
        ("tensors", ("num_workers=self.workers)", "num_workers=self.workers, collate_fn=torch.tensor)")),
        ("lists", ("num_workers=self.workers)", "num_workers=self.workers, collate_fn=list)")),
        ("one epoch only", ("        self.epoch, self.had = self.epoch + 1, 0\n", "        self.epoch += 1\n")),
    )),
    *(resume("order_from_seed_and_epoch", *mutant) for mutant in (
        ("one order for all epochs", ("[self.seed, self.epoch]", "self.seed")),
        ("one order for all seeds", ("[self.seed, self.epoch]", "self.epoch")),
        ("seed plus epoch", ("[self.seed, self.epoch]", "self.seed + self.epoch")),
        ("ten seeds apart", ("[self.seed, self.epoch]", "10 * self.seed + self.epoch")),
        ("ten epochs apart", ("[self.seed, self.epoch]", "self.seed + 10 * self.epoch")),
        ("ten orders", ("[self.seed, self.epoch]", "[self.seed, self.epoch % 10]")),
        ("seeds torch", (DRAWN, "(torch.manual_seed(hash((self.seed, self.epoch))) and torch.randperm(len(self.dataset))).tolist()")),
        ("seeds NumPy", (DRAWN, "(np.random.seed([self.seed, self.epoch]), np.random.permutation(len(self.dataset)).tolist())[1]")),
        ("nothing shuffled", (DRAWN, "list(range(len(self.dataset)))")),
        ("torch's global numbers", (DRAWN, "torch.randperm(len(self.dataset)).tolist()")),
        ("torch's initial seed", ("[self.seed, self.epoch]", "[self.seed, self.epoch, torch.initial_seed()]")),
    )),
    *(resume("goes_on_with_the_next_batch", *mutant) for mutant in (
        ("counted too late", (HAD + "            yield batch\n", "            yield batch\n            self.had += 1\n")),
        ("from the beginning of the epoch", (REST, REST.replace("self.had * self.batch_size", "0"))),
        ("one batch left out", (STATE, STATE.replace("self.had}", "self.had + (self.had > 0)}"))),
        ("the epoch forgotten", (LOAD, LOAD.replace('state["epoch"]', "0"))),
        ("its own seed kept", (LOAD, LOAD.replace('state["seed"]', 'getattr(self, "seed", state["seed"])'))),
        ("later epochs shortened", (REST, REST.replace("self.had", "max(self.had, self.skipped)")), (LOAD, LOAD + '\n        self.skipped = state["had"]')),
        ("a second break forgets the first", ("        order = ", "        first, count = self.had, 0\n        order = "), (REST, REST.replace("self.had", "first")), (HAD, "            count += 1\n            self.had = count\n")),
        ("nothing had before the next batch", (STATE, STATE.replace("self.had}", "self.had if self.begun else 0}")), (LOAD, LOAD + "\n        self.begun = False"), (HAD, HAD + "            self.begun = True\n")),
        ("the living state", ("class ResumableLoader:\n", LIVING), (STATE, "return self.state"), (LOAD, "self.state = dict(state)")),
        ("the caller's dictionary", ("class ResumableLoader:\n", LIVING), (STATE, "return dict(self.state)"), (LOAD, "self.state = state")),
        ("a later order", (LOAD, LOAD + '\n        self.epoch += self.had > 0')),
    )),
    *(resume("counts_what_the_loop_had", *mutant) for mutant in (
        ("counts what was handed out", (LEFT, "\n        def left():\n            for start in rest:\n                self.had += 1\n                yield order[start : start + self.batch_size]\n\n"), ("batch_sampler=left", "batch_sampler=left()"), (HAD, "")),
        ("those in flight as well", (STATE, STATE.replace("self.had}", "self.had + 2 * self.workers}"))),
        ("those of one worker", (STATE, STATE.replace("self.had}", "self.had // max(1, self.workers)}"))),
        ("another order when it goes on with workers", ("[self.seed, self.epoch]", "[self.seed, self.epoch, self.had if self.workers else 0]")),
    )),
    *(resume("reads_nothing_again", *mutant) for mutant in (
        ("skips in the loop", (REST, REST.replace("self.had * self.batch_size", "0")), (RUN, "        skip = self.had\n        for number, batch in enumerate(DataLoader(self.dataset, batch_sampler=left, num_workers=self.workers)):\n            if number < skip:\n                continue\n")),
        ("looks at the first sample with workers", ("        order = ", "        if self.workers and self.had:\n            self.dataset[0]\n        order = ")),
        ("looks at the first sample", ("        order = ", "        self.dataset[0]\n        order = ")),
        ("looks at the last batch had", (LEFT, LEFT + "        for i in order[: self.had * self.batch_size][-self.batch_size :]:\n            self.dataset[i]\n")),
    )),
    *(resume("state_is_small", *mutant) for mutant in (
        ("the order as well", ("        rest = ", "        self.order = order\n        rest = "), (STATE, STATE.replace('"had": self.had', '"had": self.had, "order": getattr(self, "order", [])'))),
        ("all indices had", (HAD, HAD + "            self.gone = order[: self.had * self.batch_size]\n"), (STATE, STATE.replace("}", ', "gone": getattr(self, "gone", [])}'))),
        ("NumPy's numbers", (STATE, STATE.replace("self.epoch,", "np.int64(self.epoch),"))),
        ("a tensor", (STATE, STATE.replace("self.epoch,", "torch.tensor(self.epoch),")), (LOAD, LOAD.replace('state["epoch"]', 'int(state["epoch"])'))),
        ("a tuple", (STATE, "return self.seed, self.epoch, self.had"), (LOAD, "self.seed, self.epoch, self.had = state"), ('{"seed": seed, "epoch": 0, "had": 0}', "(seed, 0, 0)")),
    )),
    Mutant("numbers as keys", RESUME, "goes_on_with_the_next_batch", ((STATE, "return {0: self.seed, 1: self.epoch, 2: self.had}"),
        (LOAD, "self.seed, self.epoch, self.had = state[0], state[1], state[2]"), ('{"seed": seed, "epoch": 0, "had": 0}', "{0: seed, 1: 0, 2: 0}")),
        raises="KeyError"),
]  # fmt: skip

RIGHT = {
    "a class that measures": """
import threading
import time
from math import ceil

import numpy as np
import torch
from helpers import PickledByValue
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, get_worker_info


def seed_worker(number):
    worker = get_worker_info()
    worker.dataset.generator = np.random.default_rng([worker.seed, number])


class Loader:
    def __init__(self, dataset, batch_size, step_seconds):
        best = float("inf")
        for i in (0, 1, 2):
            begin = time.monotonic()
            dataset[i]
            best = min(best, time.monotonic() - begin)
        batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
        self.loader = DataLoader(
            dataset, batch_sampler=batches, num_workers=max(1, ceil(batch_size * best / step_seconds)),
            persistent_workers=True, prefetch_factor=3, worker_init_fn=PickledByValue(seed_worker),
        )

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        yield from self.loader


def make_loader(dataset, batch_size, step_seconds):
    return Loader(dataset, batch_size, step_seconds)


class Prefetcher:
    def __init__(self, batches, depth, device):
        self.shelf, self.state, self.depth = [], {"over": False, "error": None}, depth
        self.changed = threading.Condition()
        work = (batches, depth, device, self.shelf, self.state, self.changed)
        self.thread = threading.Thread(target=self.fill, args=work, daemon=True)
        self.thread.start()

    @staticmethod
    def fill(batches, depth, device, shelf, state, changed):
        try:
            iterator = iter(batches)
            while True:
                with changed:
                    changed.wait_for(lambda: len(shelf) < depth or state["over"])
                    if state["over"]:
                        return
                batch = next(iterator)
                if device.type == "cuda":
                    batch = [tensor.pin_memory() for tensor in batch]
                batch = tuple(tensor.to(device, non_blocking=True) for tensor in batch)
                with changed:
                    shelf.append(batch)
                    changed.notify_all()
        except BaseException as error:
            with changed:
                state["error"] = error
                changed.notify_all()

    def __iter__(self):
        return self

    def __next__(self):
        with self.changed:
            self.changed.wait_for(lambda: self.shelf or self.state["error"])
            if self.shelf:
                batch = self.shelf.pop(0)
                self.changed.notify_all()
                return batch
            raise self.state["error"]

    def close(self):
        with self.changed:
            self.state["over"] = True
            self.changed.notify_all()
        self.thread.join()


def prefetched(batches, depth, device):
    return Prefetcher(batches, depth, device)


def pack(documents, length):
    rows = []
    for number, document in enumerate(documents):
        position = 0
        for k, token in enumerate(document.tolist()):
            if not rows or len(rows[-1]) == length:
                rows.append([])
                position = 0
            after = int(document[k + 1]) if k + 1 < len(document) else -100
            rows[-1].append((token, after, position, number))
            position += 1
    rows[-1] += [(0, -100, 0, -1)] * (length - len(rows[-1]))
    return torch.tensor(rows).unbind(2)


def document_mask(document):
    rows, length = document.shape
    mask = torch.zeros(rows, 1, length, length, dtype=torch.bool)
    for r in range(rows):
        for i in range(length):
            mask[r, 0, i, : i + 1] = document[r, : i + 1] == document[r, i]
    return mask


class Remaining(Sampler):
    def __init__(self, size, batch_size, key, first):
        generator = torch.Generator().manual_seed(hash(key) % 2**63)
        self.order = torch.randperm(size, generator=generator)
        self.pieces = self.order.split(batch_size)[first:]

    def __len__(self):
        return len(self.pieces)

    def __iter__(self):
        return (piece.tolist() for piece in self.pieces)


class ResumableLoader:
    def __init__(self, dataset, batch_size, seed, workers=0):
        self.dataset, self.batch_size, self.seed, self.workers = dataset, batch_size, seed, workers
        self.had = 0  # batches since the beginning of time

    def state_dict(self):
        return {"seed": self.seed, "had": self.had}

    def load_state_dict(self, state):
        self.__dict__.update(state)

    def __iter__(self):
        epoch, first = divmod(self.had, ceil(len(self.dataset) / self.batch_size))
        rest = Remaining(len(self.dataset), self.batch_size, (self.seed, epoch), first)
        for self.had, batch in enumerate(DataLoader(self.dataset, batch_sampler=rest, num_workers=self.workers), self.had + 1):
            yield batch
""",
    "one more worker, seeds from torch": """
import random
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from helpers import PickledByValue
from torch.utils.data import DataLoader, Subset, get_worker_info


def make_loader(dataset, batch_size, step_seconds):
    begin = time.perf_counter()
    for i in range(8):
        dataset[-1 - i]
    a_batch = batch_size * (time.perf_counter() - begin) / 8
    workers = int(a_batch // step_seconds) + 1
    fresh = PickledByValue(lambda number: get_worker_info().dataset.reseed(torch.initial_seed() % 2**63))
    options = {"num_workers": workers, "persistent_workers": True, "prefetch_factor": 2, "worker_init_fn": fresh}
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=False, in_order=True, **options)


def prefetched(batches, depth, device):
    sent = {"non_blocking": True} if device.type == "cuda" else {}
    iterator = []

    def draw():
        if not iterator:
            iterator.append(iter(batches))
        batch = next(iterator[0], None)
        if batch is None:
            return None
        ready = map(lambda tensor: tensor.pin_memory(), batch) if sent else batch
        return tuple(tensor.to(device, **sent) for tensor in ready)

    pool = ThreadPoolExecutor(1)
    try:
        futures = deque(pool.submit(draw) for _ in range(depth))
        while (batch := futures.popleft().result()) is not None:
            futures.append(pool.submit(draw))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)


def pack(documents, length):
    sizes = np.array([len(document) for document in documents])
    filled = -(-sizes.sum() // length) * length
    columns = np.full((4, filled), [[0], [-100], [0], [-1]])
    at = 0
    for number, (document, size) in enumerate(zip(documents, sizes)):
        here = slice(at, at + size)
        columns[0, here] = document
        columns[1, at : at + size - 1] = document[1:]
        columns[3, here] = number
        at += size
    columns = columns.reshape(4, -1, length)
    for row in range(columns.shape[1]):
        for number in np.unique(columns[3, row]):
            where = columns[3, row] == number
            columns[2, row, where] = np.arange(where.sum()) if number >= 0 else 0
    return [torch.from_numpy(column.copy()) for column in columns]


def document_mask(document):
    place = torch.arange(document.shape[1])
    stranger = document.unsqueeze(2).ne(document.unsqueeze(1))
    later = place[None, :] > place[:, None]
    return torch.logical_not(stranger | later).unsqueeze(1)


class ResumableLoader:
    def __init__(self, dataset, batch_size, seed, workers=0):
        self.dataset, self.size, self.workers = dataset, batch_size, workers
        self.state = {"seed": seed, "epoch": 0, "samples": 0}

    def load_state_dict(self, state):
        self.state = dict(state)

    def state_dict(self):
        return dict(self.state)

    def __iter__(self):
        order = list(range(len(self.dataset)))
        random.Random(f"{self.state['seed']} {self.state['epoch']}").shuffle(order)
        rest = Subset(self.dataset, order[self.state["samples"] :])
        for batch in DataLoader(rest, self.size, num_workers=self.workers):
            self.state["samples"] += len(batch)
            if self.state["samples"] == len(order):  # the next epoch is next, already
                self.state |= {"epoch": self.state["epoch"] + 1, "samples": 0}
            yield batch
""",
    "functions and generators": """
import itertools
import queue
import threading
import time

import numpy as np
import torch
from helpers import PickledByValue
from torch.utils.data import DataLoader, get_worker_info

END = object()


def prefetched(batches, depth, device):
    # tickets: one for each batch that may be drawn; None calls the thread home
    tickets, results = queue.Queue(), queue.Queue()
    for _ in range(depth):
        tickets.put(True)

    def to_device(tensor):
        return tensor.pin_memory().to(device=device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

    def draw():
        try:
            for batch in itertools.chain.from_iterable([batches] if tickets.get() else []):
                results.put(tuple(map(to_device, batch)))
                if not tickets.get():
                    return
            results.put(END)
        except Exception as error:
            results.put(error)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        while (result := results.get()) is not END:
            if isinstance(result, Exception):
                raise result
            tickets.put(True)
            yield result
    finally:
        while not tickets.empty():
            try:
                tickets.get_nowait()
            except queue.Empty:
                break
        tickets.put(None)
        thread.join()


def make_loader(dataset, batch_size, step_seconds):
    def timed(i):
        begin = time.perf_counter()
        dataset[i]
        return time.perf_counter() - begin

    a_read = sorted(map(timed, range(7)))[3]
    needed = next(n for n in itertools.count(1) if n * step_seconds >= batch_size * a_read)
    reseed = PickledByValue(lambda _: get_worker_info().dataset.reseed(get_worker_info().seed))
    return DataLoader(dataset, batch_size, True, num_workers=needed, persistent_workers=True, worker_init_fn=reseed)


def runs(flags):
    place = torch.arange(len(flags))
    return place - torch.where(flags, place, 0).cummax(0).values


def pack(documents, length):
    ids = torch.cat(documents)
    begins = torch.cat([torch.arange(len(d)) == 0 for d in documents])
    missing = (length - len(ids)) % length
    document = begins.cumsum(0) - 1
    last = begins.roll(-1)
    last[-1] = True
    targets = torch.where(last, torch.tensor(-100), ids.roll(-1))
    positions = runs(begins | (torch.arange(len(ids)) % length == 0))
    fillers = ((ids, 0), (targets, -100), (positions, 0), (document, -1))
    return tuple(torch.cat([t, t.new_full((missing,), f)]).reshape(-1, length) for t, f in fillers)


def document_mask(document):
    one_hot = torch.nn.functional.one_hot(document + 1).float()
    return ((one_hot @ one_hot.transpose(1, 2)).tril() > 0.5).unsqueeze(1)


class ResumableLoader:
    def __init__(self, dataset, batch_size, seed, workers=0):
        self.make = lambda batches: DataLoader(dataset, batch_sampler=batches, num_workers=workers)
        self.count, self.batch_size, self.seed, self.epoch, self.position = len(dataset), batch_size, seed, 0, 0

    def order(self):
        keys = np.random.Generator(np.random.Philox(key=[self.seed, self.epoch])).random(self.count)
        return np.argsort(keys)

    def __iter__(self):
        cuts = range(self.batch_size, self.count, self.batch_size)
        batches = [piece.tolist() for piece in np.split(self.order(), cuts)]
        for batch in self.make(batches[self.position :]):
            self.position += 1
            yield batch
        self.epoch += 1
        self.position = 0

    def state_dict(self):
        return vars(self) | {"make": None}

    def load_state_dict(self, state):
        vars(self).update({name: value for name, value in state.items() if value is not None})
""",
}
