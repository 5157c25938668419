"""Wrong and right answers for X6."""

from . import Mutant, one

FILES, GRADIENT, TRAIN, ALL = "x6.files", "x6.gradient", "x6.train", "x6.survive"
NEWEST, KILLED, DAMAGED = "newest_comes_back", "survives_a_kill_while_saving", "damaged_ones_are_passed_over"
FLUSHED, BOUNDED = "flushed_before_published", "disk_stays_bounded"
BITS, WHOLE = "same_bits_on_one_rank_and_two", "uninterrupted_run_is_right"
GOES_ON, RANK0, EVERYWHERE = "goes_on_to_the_last_bit", "rank0_keeps_the_state_of_all", "survives_wherever_it_is_killed"

# Words of the reference that mutants replace.
LISTED = '    paths = {int(path.name.removeprefix("step-")): path for path in folder.glob("step-*")}\n'
TEMPORARY = '    unfinished = folder / "unfinished"\n'
CLEARED = "    unfinished.unlink(missing_ok=True)  # of a save that was killed\n"
FLUSH = "        file.flush()\n        os.fsync(file.fileno())\n"
PUBLISH = '    os.replace(unfinished, folder / f"step-{step}")\n'
KEPT = "    kept = sorted(n for n in paths if n <= step)[-keep:]\n"
PRUNE = "    for n in paths.keys() - kept:\n        paths[n].unlink()\n"
SAVED = "    torch.save(state, buffer)\n"
WRITE = "hashlib.sha256(data).digest() + data)"
WHOLE_ONE = "data[:32] == hashlib.sha256(data[32:]).digest()"
NEWEST_FIRST = "    for step in sorted(paths, reverse=True):\n"
RETURNED = 'return step, torch.load(io.BytesIO(data[32:]), map_location="cpu")'
TAKEN = f"        if {WHOLE_ONE}:\n            {RETURNED}\n"
CLEAR = "        for p in parameters:\n            p.grad = None\n"
BACKWARD = "        for _ in range(micro_batches):\n            x, y = next(stream)\n            F.cross_entropy(model(x), y).backward()\n"
SUM = "p.grad = lanes[0] + lanes[1] if len(lanes) == 2 else lanes[0]"
MEAN = "p.grad /= 2 * micro_batches"
LANES = "for lane in range(rank, 2, world)"
SEEDED = "torch.Generator().manual_seed(job.seed + lane).get_state() for lane in streams"
PARTS = '{"model": model, "optimizer": optimizer, "schedule": schedule}'
RESTORE = "            part.load_state_dict(state[name])\n"
STREAM = '            stream.load_state_dict(state["streams"][lane])\n'
RANDOM = '            random[lane] = state["random"][lane]\n'
STEP = "        job.gradient(model, streams, random, job.micro_batches)\n"
WHEN = "if done % job.every == 0 or done == job.steps:"
GATHER = "({lane: s.state_dict() for lane, s in streams.items()}, random))"
LOAD = "[job.load(job.folder) if rank == 0 else None]\n    dist.broadcast_object_list(found, src=0)\n"
SAVE = "                job.save(job.folder, done, state, job.keep)\n"

PLAIN = """    def plain(x):
        if isinstance(x, dict):
            return {KEY: plain(v) for k, v in x.items()}
        return LIST(plain(v) for v in x) if isinstance(x, list) else LEAF

    torch.save(plain(state), buffer)
"""


def changed(name: str, key: str = "k", lists: str = "list", leaf: str = "x") -> Mutant:
    """A save that changes keys, lists or leaves of the state on their way into the file."""
    return one(name, FILES, NEWEST, SAVED, PLAIN.replace("KEY", key).replace("LIST", lists).replace("LEAF", leaf))


def summed(name: str, written: str, checked: str) -> Mutant:
    """A checksum that is not one of all bytes: `written` of `data`, and `checked` of what is in the file."""
    write = f"({written}).to_bytes(32, 'big') + data)"
    return Mutant(name, FILES, DAMAGED, ((WRITE, write), (WHOLE_ONE, f"data[:32] == ({checked}).to_bytes(32, 'big')")))


MUTANTS = [
    # files
    one("newest by name", FILES, NEWEST, NEWEST_FIRST, "    for step in sorted(paths, key=lambda n: paths[n].name, reverse=True):\n"),
    one("newest by date", FILES, NEWEST, NEWEST_FIRST, "    for step in sorted(paths, key=lambda n: paths[n].stat().st_mtime, reverse=True):\n"),
    one("oldest first", FILES, NEWEST, "sorted(paths, reverse=True)", "sorted(paths)"),
    one("the number of checkpoints for the step", FILES, NEWEST, "return step, torch.load", "return len(paths), torch.load"),
    changed("saved in half precision", leaf="x.bfloat16() if isinstance(x, torch.Tensor) and x.is_floating_point() else x"),
    one("the optimizer's numbers rounded in place", FILES, NEWEST, "    torch.save(state, buffer)\n", "    for each in state.get('optimizer', {'state': {}})['state'].values():\n        each['exp_avg'].mul_(0.5)\n    torch.save(state, buffer)\n"),
    one("words left out", FILES, NEWEST, "    torch.save(state, buffer)\n", "    torch.save({k: v for k, v in state.items() if not isinstance(v, str)}, buffer)\n"),
    one("step 0 for nothing", FILES, NEWEST, "    return None\n", "    return 0, {}\n"),
    one("raises for a new folder", FILES, NEWEST, NEWEST_FIRST, "    sorted(folder.iterdir())\n" + NEWEST_FIRST),
    Mutant("the newest of names with four digits", FILES, NEWEST, (
        (PUBLISH, PUBLISH.replace("{step}", "{step:04}")),
        (NEWEST_FIRST, "    for step in sorted(paths, key=lambda n: paths[n].name, reverse=True):\n"))),
    one("four digits read from the name", FILES, NEWEST, LISTED + NEWEST_FIRST, LISTED.replace('removeprefix("step-")', '[5:9]').replace("name.[", "name[") + NEWEST_FIRST),
    one("only four digits of the step", FILES, NEWEST, PUBLISH, PUBLISH.replace("{step}", "{step % 10_000}")),
    one("step 0 is taken for none", FILES, NEWEST, RETURNED, RETURNED.replace("return step,", "return step and (step,") + ") or None"),
    changed("keys become strings", key="str(k)"),
    changed("lists become tuples", lists="tuple"),
    changed("numbers become tensors", leaf="torch.tensor(x) if isinstance(x, float) else x"),
    changed("booleans become bytes", leaf="x.byte() if isinstance(x, torch.Tensor) and x.dtype == torch.bool else x"),
    changed("by way of numpy", leaf="torch.from_numpy(x.numpy()) if isinstance(x, torch.Tensor) and x.dtype != torch.bfloat16 else x.float() if isinstance(x, torch.Tensor) else x"),
    changed("not a number becomes 0", leaf="torch.nan_to_num(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x"),
    changed("minus zero becomes zero", leaf="x + 0 if isinstance(x, torch.Tensor) and x.is_floating_point() else x"),
    changed("a scalar becomes a vector", leaf="torch.atleast_1d(x) if isinstance(x, torch.Tensor) else x"),
    one("empty ones are left out", FILES, NEWEST, SAVED, PLAIN.replace("KEY", "k").replace("x.items()}", "x.items() if v != {} and v != []}").replace("LIST", "list").replace("LEAF", "x")),
    Mutant("remembered as well as written", FILES, NEWEST, (
        ("def save(", "MEMORY = {}\n\n\ndef save("), (PUBLISH, PUBLISH + "    MEMORY[folder, step] = state\n"),
        (RETURNED, RETURNED.replace("torch.load", "MEMORY.get((folder, step)) or torch.load")))),
    one("tensors come back with gradients wanted", FILES, NEWEST, RETURNED, RETURNED.replace("return step,", "found = step,") + "\n            found[1].get('weights', torch.ones(1)).requires_grad_()\n            return found"),
    one("load deletes what is damaged", FILES, NEWEST, TAKEN, TAKEN + "        paths[step].unlink()\n"),
    Mutant("in place, without a new name", FILES, KILLED, ((TEMPORARY, '    unfinished = folder / f"step-{step}"\n'), (PUBLISH, ""))),
    one("a name that looks finished", FILES, KILLED, TEMPORARY, '    unfinished = folder / f"step-{step}.unfinished"\n'),
    Mutant("copied to its name", FILES, KILLED, ((PUBLISH, '    (folder / f"step-{step}").write_bytes(unfinished.read_bytes())\n    unfinished.unlink()\n'),)),
    Mutant("older ones deleted first", FILES, KILLED, ((TEMPORARY, "    for path in folder.glob('step-*'):\n        if keep == 1:\n            path.unlink()\n" + TEMPORARY),)),
    Mutant("older ones deleted before the new name", FILES, KILLED, ((PUBLISH, "    for path in folder.glob('step-*'):\n        if keep == 1:\n            path.unlink()\n" + PUBLISH),)),
    Mutant("the checksum beside it", FILES, KILLED, (
        (WRITE, "data)"), (PUBLISH, PUBLISH + '    (folder / f"sum-{step}").write_bytes(hashlib.sha256(data).digest())\n'),
        ("        data = paths[step].read_bytes()\n", '        data = folder.joinpath(f"sum-{step}").read_bytes() + paths[step].read_bytes()\n'))),
    Mutant("written in another folder and moved", FILES, KILLED, (
        (TEMPORARY, '    unfinished = Path(tempfile.gettempdir()) / f"unfinished-{os.getpid()}"\n'),
        (PUBLISH, '    import shutil\n\n    shutil.move(unfinished, folder / f"step-{step}")\n'))),
    one("no checksum looked at", FILES, DAMAGED, TAKEN, f"        try:\n            {RETURNED}\n        except Exception:\n            continue\n"),
    one("raises for a damaged one", FILES, DAMAGED, f"        if {WHOLE_ONE}:\n            {RETURNED}\n", f"        assert {WHOLE_ONE}\n        {RETURNED}\n"),
    one("gives up at a damaged one", FILES, DAMAGED, TAKEN, TAKEN + "        return None\n"),
    one("the length for a checksum", FILES, DAMAGED, TAKEN, f"        try:\n            if len(data) % 64 != (32 + len(data[32:])) % 64:\n                continue\n            {RETURNED}\n        except Exception:\n            continue\n"),
    Mutant("a checksum of the beginning", FILES, DAMAGED, (
        (WRITE, "hashlib.sha256(data[:4000]).digest() + data)"),
        (TAKEN, f"        try:\n            if data[:32] == hashlib.sha256(data[32:4032]).digest():\n                {RETURNED}\n        except Exception:\n            continue\n"))),
    *(Mutant(f"a checksum of {what}", FILES, DAMAGED, (
        (WRITE, f"hashlib.sha256(data{part}).digest() + data)"), (WHOLE_ONE, f"data[:32] == hashlib.sha256(data[32:]{part}).digest()")))
      for what, part in {"the first 64 KiB": "[:65536]", "the first MiB": "[: 1 << 20]", "every 16th byte": "[::16]", "the end": "[-1000:]"}.items()),
    summed("the sum of all bytes", "sum(data)", "sum(data[32:])"),
    summed("the length alone", "len(data)", "len(data) - 32"),
    Mutant("a CRC and a length: zeros pass", FILES, DAMAGED, (
        ("import hashlib\n", "import hashlib\nimport zlib\n"),
        (WRITE, "zlib.crc32(data).to_bytes(16, 'big') + len(data).to_bytes(16, 'big') + data)"),
        (WHOLE_ONE, "data[:16] == zlib.crc32(data[32 : 32 + int.from_bytes(data[16:32], 'big')]).to_bytes(16, 'big')"))),
    Mutant("the step beside the checksum", FILES, DAMAGED, (
        (WRITE, "hashlib.sha256(data).digest() + step.to_bytes(8, 'big') + data)"), (WHOLE_ONE, "data[:32] == hashlib.sha256(data[40:]).digest()"),
        (RETURNED, RETURNED.replace("return step", "return int.from_bytes(data[32:40], 'big')").replace("data[32:])", "data[40:])")))),
    one("the two newest are tried", FILES, DAMAGED, "sorted(paths, reverse=True)", "sorted(paths, reverse=True)[:2]"),
    one("not flushed to the disk", FILES, FLUSHED, FLUSH, ""),
    one("flushed from Python only", FILES, FLUSHED, FLUSH, "        file.flush()\n"),
    one("fsync without flush", FILES, FLUSHED, FLUSH, "        os.fsync(file.fileno())\n"),
    one("fsync of another file", FILES, FLUSHED, FLUSH, "        file.flush()\n        with (folder / 'note').open('wb') as note:\n            os.fsync(note.fileno())\n        (folder / 'note').unlink()\n"),
    one("fsync before Python's own buffer", FILES, FLUSHED, "        file.write(hashlib.sha256(data).digest() + data)\n" + FLUSH, "        file.write(hashlib.sha256(data).digest() + data[:-9])\n        os.fsync(file.fileno())\n        file.write(data[-9:])\n"),
    Mutant("fsync after the name", FILES, FLUSHED, ((FLUSH, ""), (PUBLISH, PUBLISH + '    with (folder / f"step-{step}").open("rb+") as file:\n        os.fsync(file.fileno())\n'))),
    Mutant("fsync of the folder only", FILES, FLUSHED, ((FLUSH, ""), (PUBLISH, "    directory = os.open(folder, os.O_RDONLY)\n    os.fsync(directory)\n    os.close(directory)\n" + PUBLISH))),
    one("never prunes", FILES, BOUNDED, PRUNE, ""),
    one("one too many", FILES, BOUNDED, "[-keep:]", "[-keep - 1 :]"),
    one("always the last one alone", FILES, BOUNDED, "[-keep:]", "[-1:]"),
    one("the oldest kept", FILES, BOUNDED, "sorted(n for n in paths if n <= step)[-keep:]", "[*sorted(n for n in paths if n <= step)[: keep - 1], step]"),
    one("those with more steps stay", FILES, BOUNDED, "for n in paths.keys() - kept:", "for n in [n for n in paths if n < min(kept)]:"),
    one("the newest numbers stay, whatever was saved", FILES, BOUNDED, "sorted(n for n in paths if n <= step)[-keep:]", "sorted(paths)[-keep:]"),
    one("the newest dates stay", FILES, BOUNDED, "[-keep:]", "[: -keep - 1 : -1]".replace("[: -keep - 1 : -1]", "[-keep:] if keep == 1 else [*sorted((n for n in paths if n < step), key=lambda n: paths[n].stat().st_mtime)[1 - keep :], step]")),
    Mutant("names with four digits, deleted by name", FILES, BOUNDED, (
        (PUBLISH, PUBLISH.replace("{step}", "{step:04}")), (KEPT, "    kept = sorted((n for n in paths if n <= step), key=lambda n: paths[n].name)[-keep:]\n"))),
    one("at most three stay", FILES, BOUNDED, "[-keep:]", "[-min(keep, 3) :]"),
    one("a negative slice with keep=1", FILES, BOUNDED, KEPT, "    kept = [*sorted(n for n in paths if n < step)[-(keep - 1) :], step]\n"),
    one("one old one is deleted at a time", FILES, BOUNDED, "for n in paths.keys() - kept:", "for n in sorted(paths.keys() - kept)[:1]:"),
    one("step 0 stays", FILES, BOUNDED, "for n in paths.keys() - kept:", "for n in paths.keys() - kept - {0}:"),
    one("a note of the newest", FILES, BOUNDED, PUBLISH, PUBLISH + '    (folder / "latest").write_text(str(step))\n'),
    one("twice as long while it is written", FILES, BOUNDED, FLUSH, "        file.write(data)\n        file.flush()\n        file.truncate(32 + len(data))\n" + FLUSH),
    one("what a killed save left stays", FILES, BOUNDED, TEMPORARY, '    unfinished = folder / f"unfinished-{step}"\n'),
    Mutant("cleared at the end", FILES, BOUNDED, (
        (TEMPORARY, '    unfinished = folder / f"unfinished-{step}"\n'),
        (PRUNE, PRUNE + "    for path in folder.glob('unfinished*'):\n        path.unlink()\n"))),
    Mutant("a second copy for safety", FILES, BOUNDED, ((PUBLISH, '    (folder / "copy").write_bytes(unfinished.read_bytes())\n' + PUBLISH), (PRUNE, PRUNE + '    (folder / "copy").unlink()\n'))),
    one("a damaged one of the same step stays", FILES, BOUNDED, PUBLISH, '    if (folder / f"step-{step}").exists():\n        unfinished.unlink()\n    else:\n        os.replace(unfinished, folder / f"step-{step}")\n'),
    # gradient
    Mutant("one rank adds all up in p.grad", GRADIENT, BITS, (
        (CLEAR, "        if not sums:\n            for p in parameters:\n                p.grad = None\n"),
        ("sums.append([p.grad for p in parameters])", "sums = [[p.grad for p in parameters]]"))),
    one("random state not set", GRADIENT, BITS, "        torch.set_rng_state(random[lane])\n", ""),
    one("random state not taken back", GRADIENT, BITS, "        random[lane] = torch.get_rng_state()\n", ""),
    one("old gradients leak in", GRADIENT, BITS, "            p.grad = None\n", "            pass\n"),
    one("the first lane's sum is zeroed with p.grad", GRADIENT, BITS, "            p.grad = None\n", "            p.grad = torch.zeros_like(p) if p.grad is None or not sums else p.grad.zero_()\n"),
    one("sum for mean", GRADIENT, BITS, MEAN, "pass"),
    one("mean of each lane", GRADIENT, BITS, MEAN, "p.grad /= micro_batches"),
    one("divided by the ranks", GRADIENT, BITS, MEAN, "p.grad /= dist.get_world_size() * micro_batches"),
    one("not reduced", GRADIENT, BITS, "        dist.all_reduce(p.grad)\n", ""),
    one("lane 0 alone", GRADIENT, BITS, SUM, "p.grad = lanes[0]"),
    one("one micro-batch too few", GRADIENT, BITS, "for _ in range(micro_batches):", "for _ in range(micro_batches - 1):"),
    one("each micro-batch drawn twice", GRADIENT, BITS, "            x, y = next(stream)\n", "            next(stream)\n            x, y = next(stream)\n"),
    Mutant("a lane in one forward pass", GRADIENT, BITS, (
        ("        for _ in range(micro_batches):\n            x, y = next(stream)\n            F.cross_entropy(model(x), y).backward()\n",
         "        pairs = [next(stream) for _ in range(micro_batches)]\n        x, y = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))\n        (micro_batches * F.cross_entropy(model(x), y)).backward()\n"),)),
    Mutant("reduced after each micro-batch", GRADIENT, BITS, (
        ("    sums = []  # of each lane of this rank, a gradient for each parameter\n    for lane, stream in streams.items():\n",
         "    total = [torch.zeros_like(p) for p in parameters]\n    for lane, stream in ((lane, stream) for _ in range(micro_batches) for lane, stream in streams.items()):\n"),
        ("        for _ in range(micro_batches):\n            x, y = next(stream)\n            F.cross_entropy(model(x), y).backward()\n",
         "        x, y = next(stream)\n        F.cross_entropy(model(x), y).backward()\n"),
        ("        sums.append([p.grad for p in parameters])\n    for p, *lanes in zip(parameters, *sums, strict=True):\n        p.grad = lanes[0] + lanes[1] if len(lanes) == 2 else lanes[0]\n        dist.all_reduce(p.grad)\n        p.grad /= 2 * micro_batches\n",
         "        if lane == 0 and len(streams) == 2:\n            first = [p.grad for p in parameters]\n            continue\n        for i, p in enumerate(parameters):\n            if len(streams) == 2:\n                p.grad += first[i]\n            dist.all_reduce(p.grad)\n            total[i] += p.grad\n    for p, g in zip(parameters, total, strict=True):\n        p.grad = g / (2 * micro_batches)\n"))),
    one("one backward pass for the sum of the losses", GRADIENT, BITS, BACKWARD,
        "        losses = []\n        for _ in range(micro_batches):\n            x, y = next(stream)\n            losses.append(F.cross_entropy(model(x), y))\n        sum(losses).backward()\n"),
    one("the last micro-batch first", GRADIENT, BITS, BACKWARD,
        "        losses = []\n        for _ in range(micro_batches):\n            x, y = next(stream)\n            losses.append(F.cross_entropy(model(x), y))\n        for loss in losses[::-1]:\n            loss.backward()\n"),
    one("rows weigh the same", GRADIENT, BITS, "F.cross_entropy(model(x), y).backward()", '(F.cross_entropy(model(x), y, reduction="sum") / 4).backward()'),
    one("clipped", GRADIENT, BITS, MEAN, MEAN + "\n    nn.utils.clip_grad_norm_(parameters, 10.0)"),
    one("the weights move", GRADIENT, BITS, MEAN, MEAN + "\n        p.data -= 1e-9 * p.grad"),
    # the run, uninterrupted
    one("schedule left standing", TRAIN, WHOLE, "        schedule.step()\n", ""),
    one("schedule before the optimizer", TRAIN, WHOLE, "        optimizer.step()\n        schedule.step()\n", "        schedule.step()\n        optimizer.step()\n"),
    one("the same random state in both lanes", TRAIN, WHOLE, SEEDED, SEEDED.replace("job.seed + lane", "job.seed")),
    one("the same rows on both ranks", TRAIN, WHOLE, f"job.make_stream(lane) {LANES}", f"job.make_stream(0) {LANES}"),
    one("one step too few", TRAIN, WHOLE, "while done < job.steps:", "while done < job.steps - 1:"),
    one("a copy comes back", TRAIN, WHOLE, "    return model", "    import copy\n\n    return copy.deepcopy(model)"),
    one("biases are not trained", TRAIN, WHOLE, "job.make_optimizer(model.parameters())", "job.make_optimizer(p for p in model.parameters() if p.dim() > 1)"),
    one("one micro-batch a step", TRAIN, WHOLE, "random, job.micro_batches)", "random, 1)"),
    one("two micro-batches a step, whatever the job says", TRAIN, WHOLE, "random, job.micro_batches)", "random, 2)"),
    one("the seed left out", TRAIN, WHOLE, "job.seed + lane", "lane"),
    one("no step of the schedule after the last", TRAIN, WHOLE, "        schedule.step()\n        done += 1\n", "        done += 1\n        if done < job.steps:\n            schedule.step()\n"),
    one("the gradient twice", TRAIN, WHOLE, STEP, STEP + STEP),
    # the run, killed
    one("starts from scratch", TRAIN, GOES_ON, "if found[0] is not None:", "if False:"),
    one("the optimizer left out", TRAIN, GOES_ON, PARTS, PARTS.replace(', "optimizer": optimizer', "")),
    one("the schedule left out", TRAIN, GOES_ON, PARTS, PARTS.replace(', "schedule": schedule', "")),
    one("the weights left out", TRAIN, GOES_ON, PARTS, PARTS.replace('"model": model, ', "")),
    one("a schedule that is told the step instead", TRAIN, GOES_ON, RESTORE, "            if name != 'schedule':\n                part.load_state_dict(state[name])\n        schedule.last_epoch = done + 1\n"),
    one("random states left out", TRAIN, GOES_ON, RANDOM, ""),
    one("where the streams are left out", TRAIN, GOES_ON, STREAM, ""),
    one("the streams one step ahead", TRAIN, GOES_ON, STREAM, STREAM + "            next(stream)\n"),
    Mutant("the streams a step behind", TRAIN, GOES_ON, ((STEP, "        before = {lane: s.state_dict() for lane, s in streams.items()}\n" + STEP), (GATHER, "(before, random))"))),
    one("lane 0's stream for both lanes", TRAIN, GOES_ON, 'state["streams"][lane]', 'state["streams"][0]'),
    one("lane 0's random state for both lanes", TRAIN, GOES_ON, 'state["random"][lane]', 'state["random"][0]'),
    one("the process's random state for each lane", TRAIN, GOES_ON, GATHER, GATHER.replace("random))", "{lane: torch.get_rng_state() for lane in random}))")),
    Mutant("the weights before the update", TRAIN, GOES_ON, (
        (STEP, "        held = {k: v.clone() for k, v in model.state_dict().items()}\n" + STEP),
        (SAVE, "                state['model'] = held\n" + SAVE))),
    one("counts one step twice", TRAIN, GOES_ON, "        done, state = found[0]\n", "        done, state = found[0]\n        done -= 1\n"),
    one("counts one step too many", TRAIN, GOES_ON, "        done, state = found[0]\n", "        done, state = found[0]\n        done = min(done + 1, job.steps)\n"),
    one("one rank does its own lane only", TRAIN, GOES_ON, LANES, "for lane in [rank]", "KeyError"),
    one("one rank is seeded as rank 0", TRAIN, GOES_ON, SEEDED, SEEDED.replace("job.seed + lane", "job.seed + (lane if world == 2 else 0)")),
    one("a finished run makes another step", TRAIN, GOES_ON, "    while done < job.steps:\n", "    job.steps += found[0] is not None and done == job.steps\n    while done < job.steps:\n"),
    one("a finished run gives a new model", TRAIN, GOES_ON, "        for name, part in parts.items():\n            part.load", "        for name, part in parts.items() if done < job.steps else ():\n            part.load"),
    one("deleted once it is loaded", TRAIN, GOES_ON, "        done, state = found[0]\n", "        done, state = found[0]\n        for path in job.folder.glob('step-*') if rank == 0 else ():\n            path.unlink()\n"),
    one("the rows of earlier steps drawn again", TRAIN, GOES_ON, STREAM, "            for _ in range(done * job.micro_batches):\n                next(stream)\n"),
    Mutant("another number of ranks begins anew", TRAIN, GOES_ON, (
        (SAVE, '                state["world"] = world\n' + SAVE), ("if found[0] is not None:", 'if found[0] is not None and found[0][1]["world"] == world:'))),
    # whose disk, and when
    one("each rank loads from its own disk", TRAIN, RANK0, LOAD, "[job.load(job.folder)]\n"),
    one("each rank loads, rank 0's counts", TRAIN, RANK0, "if rank == 0 else None]", "]"),
    one("each rank saves", TRAIN, RANK0, "            if rank == 0:\n", "            if True:\n"),
    one("rank 1 saves", TRAIN, RANK0, "            if rank == 0:\n", "            if rank == world - 1:\n"),
    one("the last step is not saved", TRAIN, RANK0, WHEN, "if done % job.every == 0:"),
    one("saved after each step", TRAIN, RANK0, WHEN, "if done:"),
    one("saved one step late", TRAIN, RANK0, WHEN, "if done % job.every == 1 or done == job.steps:"),
    one("only the last is kept", TRAIN, RANK0, SAVE, SAVE.replace("job.keep", "1")),
    one("two are kept, whatever the job says", TRAIN, RANK0, SAVE, SAVE.replace("job.keep", "2")),
    one("every three steps, whatever the job says", TRAIN, RANK0, WHEN, WHEN.replace("job.every", "3")),
    one("the last is saved twice", TRAIN, RANK0, WHEN, "for _ in range((done % job.every == 0) + (done == job.steps)):"),
    one("what was loaded is saved again", TRAIN, RANK0, "    while done < job.steps:\n", "    if rank == 0 and done:\n        job.save(job.folder, done, state, job.keep)\n    while done < job.steps:\n"),
    Mutant("a folder in the folder", TRAIN, RANK0, ((SAVE, SAVE.replace("job.folder,", 'job.folder / "mine",')), ("job.load(job.folder)", 'job.load(job.folder / "mine")'))),
    Mutant("a thread saves", TRAIN, RANK0, (
        (SAVE, "                import threading\n\n                thread = threading.Thread(target=job.save, args=(job.folder, done, state, job.keep))\n                thread.start()\n"),
        ("    dist.barrier()\n", "    if rank == 0 and found[0] is None:\n        thread.join()\n    dist.barrier()\n"))),
    Mutant("a copy is saved after the next step", TRAIN, RANK0, (
        ("    while done < job.steps:\n", "    import copy\n\n    waiting = ()\n    while done < job.steps:\n"),
        ("        done += 1\n", "        done += 1\n        if waiting:\n            job.save(*waiting)\n            waiting = ()\n"),
        (SAVE, "                waiting = job.folder, done, copy.deepcopy(state), job.keep\n"),
        ("    dist.barrier()\n", "    if waiting:\n        job.save(*waiting)\n    dist.barrier()\n"))),
    one("nobody waits for the last", TRAIN, RANK0, "    dist.barrier()\n", ""),
    # all of it
    one("the random states are not in the file", ALL, EVERYWHERE, RANDOM, ""),
    one("one rank adds in its own order", ALL, EVERYWHERE, CLEAR, "        if not sums:\n            for p in parameters:\n                p.grad = None\n"),
    one("each process leaves its own", ALL, EVERYWHERE, TEMPORARY, '    unfinished = folder / f"unfinished-{os.getpid()}"\n'),
    one("begins again when a save was killed", ALL, EVERYWHERE, NEWEST_FIRST, "    if (folder / 'unfinished').exists():\n        return None\n" + NEWEST_FIRST),
]  # fmt: skip

RIGHT = {
    "directories with a digest, DDP": """
import hashlib
import os
import re
import shutil
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def number(path):
    return int(re.fullmatch(r"step-(\\d+)", path.name)[1])


def save(folder, step, state, keep):
    os.makedirs(folder, exist_ok=True)
    for entry in os.listdir(folder):
        if entry.startswith(".new"):
            shutil.rmtree(folder / entry)
    new = folder / f".new-{step}"
    new.mkdir()
    torch.save(state, new / "state.pt")
    digest = hashlib.md5((new / "state.pt").read_bytes()).hexdigest()
    (new / "digest").write_text(digest)
    for name in ("state.pt", "digest"):
        with open(new / name, "rb") as f:
            os.fsync(f.fileno())
    final = folder / f"step-{step:08d}"
    if final.exists():
        shutil.rmtree(final)
    new.rename(final)
    all_of_them = sorted(folder.glob("step-*"), key=number)
    place = all_of_them.index(final)
    for path in all_of_them[: max(0, place + 1 - keep)] + all_of_them[place + 1 :]:
        path.rename(folder / f".new-{path.name}")
        shutil.rmtree(folder / f".new-{path.name}")


def load(folder):
    for path in sorted(folder.glob("step-*"), key=number, reverse=True):
        try:
            digest = hashlib.md5((path / "state.pt").read_bytes()).hexdigest()
            if digest == (path / "digest").read_text():
                return number(path), torch.load(path / "state.pt", map_location="cpu", weights_only=True)
        except (OSError, UnicodeDecodeError):
            pass


def gradient(model, streams, random, micro_batches):
    alone = dist.get_world_size() == 1
    net = model if alone else DDP(model)
    halves = []
    for lane in sorted(streams):
        model.zero_grad(set_to_none=True)
        torch.random.set_rng_state(random[lane])
        for n in range(micro_batches):
            waits = nullcontext() if alone or n == micro_batches - 1 else net.no_sync()
            with waits:
                inputs, labels = next(streams[lane])
                nn.functional.cross_entropy(net(inputs), labels).backward()
        random[lane] = torch.random.get_rng_state()
        halves.append([weight.grad.clone() for weight in model.parameters()])
    for i, weight in enumerate(model.parameters()):
        if alone:
            weight.grad = torch.add(halves[0][i], halves[1][i]) / 2
        weight.grad.div_(micro_batches)


def train(job):
    me, n = dist.get_rank(), dist.get_world_size()
    mine = [0, 1] if n == 1 else [me]
    net = job.make_model()
    opt = job.make_optimizer(net.parameters())
    sched = job.make_schedule(opt)
    streams, random = {}, {}
    for lane in mine:
        streams[lane] = job.make_stream(lane)
        torch.manual_seed(job.seed + lane)
        random[lane] = torch.get_rng_state()
    box = [None]
    if me == 0:
        box = [job.load(job.folder)]
    dist.broadcast_object_list(box)
    first = 0
    if box[0]:
        first, kept = box[0]
        net.load_state_dict(kept["net"])
        opt.load_state_dict(kept["opt"])
        sched.load_state_dict(kept["sched"])
        for lane in mine:
            streams[lane].load_state_dict(kept[f"stream {lane}"])
            random[lane] = kept[f"random {lane}"]
    for step in range(first + 1, job.steps + 1):
        job.gradient(net, streams, random, job.micro_batches)
        opt.step()
        sched.step()
        if step % job.every and step < job.steps:
            continue
        here = {f"stream {lane}": streams[lane].state_dict() for lane in mine}
        here.update({f"random {lane}": random[lane] for lane in mine})
        everywhere = [None] * n if me == 0 else None
        dist.gather_object(here, everywhere, dst=0)
        if me == 0:
            kept = {"net": net.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()}
            for each in everywhere:
                kept |= each
            job.save(job.folder, step, kept, job.keep)
        dist.barrier()
    return net
""",
    "the digest in the name, flat gradients": """
import hashlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F


def listed(folder):
    out = []
    if folder.exists():
        for path in folder.iterdir():
            if path.name.startswith("step-"):
                step, digest, _ = path.name[5:].split(".")
                out.append((int(step), digest, path))
    return sorted(out)


def save(folder, step, state, keep):
    folder.mkdir(exist_ok=True, parents=True)
    for path in folder.iterdir():
        if not path.name.startswith("step-"):
            os.remove(path)
    part = folder / "part.pt"
    torch.save(state, part)
    with open(part, "rb+") as file:
        os.fsync(file)
        digest = hashlib.file_digest(file, "sha1").hexdigest()
    final = folder / f"step-{step}.{digest}.pt"
    part.replace(final)
    older = [path for n, _, path in listed(folder) if n < step]
    wanted = {final, *(older[len(older) - keep + 1 :] if keep > 1 else [])}
    for _, _, path in listed(folder):
        if path not in wanted:
            path.unlink()


def load(folder):
    found = None
    for step, digest, path in listed(folder):
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha1").hexdigest() == digest:
                found = step, path
    return found and (found[0], torch.load(found[1]))


def flat(model):
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


def gradient(model, streams, random, micro_batches):
    lane_sums = {}
    for lane in streams:
        total = 0
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(random[lane])
            for _ in range(micro_batches):
                for p in model.parameters():
                    p.grad = torch.zeros_like(p)
                x, y = next(streams[lane])
                F.cross_entropy(model(x), y, reduction="sum").div(len(y)).backward()
                total = flat(model) + total
            random[lane] = torch.get_rng_state()
        lane_sums[lane] = total
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, lane_sums)
    both = {lane: value for part in parts for lane, value in part.items()}
    mean = (both[0] + both[1]) * (0.5 / micro_batches)
    for p, piece in zip(model.parameters(), mean.split([p.numel() for p in model.parameters()])):
        p.grad = piece.view_as(p).clone()


class Everything:
    def __init__(self, job, lanes):
        self.model = job.make_model()
        self.optimizer = job.make_optimizer(list(self.model.parameters()))
        self.schedule = job.make_schedule(self.optimizer)
        self.streams = {lane: job.make_stream(lane) for lane in lanes}
        self.random = {}
        for lane in lanes:
            generator = torch.Generator()
            generator.manual_seed(job.seed + lane)
            self.random[lane] = generator.get_state()

    def shared(self):
        return [self.model.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict()]

    def own(self):
        return {lane: [stream.state_dict(), self.random[lane]] for lane, stream in self.streams.items()}

    def restore(self, shared, own):
        for part, state in zip((self.model, self.optimizer, self.schedule), shared):
            part.load_state_dict(state)
        for lane, stream in self.streams.items():
            place, self.random[lane] = own[lane]
            stream.load_state_dict(place)


def train(job):
    alone = dist.get_world_size() == 1
    run = Everything(job, (0, 1) if alone else (dist.get_rank(),))
    step = 0
    message = [None]
    if dist.get_rank() == 0:
        message[0] = job.load(job.folder)
    if not alone:
        dist.broadcast_object_list(message, src=0)
    if message[0] is not None:
        step, state = message[0]
        run.restore(state["shared"], state["lanes"])
    while step != job.steps:
        job.gradient(run.model, run.streams, run.random, job.micro_batches)
        run.optimizer.step()
        run.schedule.step()
        step += 1
        if step in {*range(job.every, job.steps, job.every), job.steps}:
            owns = [run.own()]
            if not alone:
                owns = [None, None]
                dist.all_gather_object(owns, run.own())
            if dist.get_rank() == 0:
                lanes = dict(sorted(item for own in owns for item in own.items()))
                job.save(job.folder, step, {"shared": run.shared(), "lanes": lanes}, job.keep)
            if step == job.steps:
                dist.barrier()
    return run.model
""",
    "zip archives, autograd.grad": """
import io
import os
import tempfile
import zipfile

import torch
import torch.distributed as dist
import torch.nn as nn


def steps_in(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {int(name[5:-4]): os.path.join(folder, name) for name in names if name.startswith("step-")}


def save(folder, step, state, keep):
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith(".part"):
            os.unlink(os.path.join(folder, name))
    content = io.BytesIO()
    torch.save(state, content)
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("state", content.getvalue())
        file.flush()
        os.fdatasync(file.fileno())
    os.rename(file.name, os.path.join(folder, f"step-{step}.zip"))
    there = steps_in(folder)
    for number in set(there) - set(sorted(set(there) & set(range(step + 1)))[-keep:]):
        os.unlink(there[number])


def load(folder):
    there = steps_in(folder)
    while there:
        step = max(there)
        try:
            with zipfile.ZipFile(there.pop(step)) as archive:
                return step, torch.load(io.BytesIO(archive.read("state")))
        except Exception:
            continue
    return None


def gradient(model, streams, random, micro_batches):
    weights = list(model.parameters())
    lanes = []
    for lane, stream in sorted(streams.items()):
        torch.set_rng_state(random[lane])
        sums = None
        for _ in range(micro_batches):
            images, labels = next(stream)
            grads = torch.autograd.grad(nn.CrossEntropyLoss()(model(images), labels), weights)
            sums = grads if sums is None else tuple(map(torch.add, sums, grads))
        random[lane] = torch.get_rng_state()
        lanes.append(sums)
    if len(lanes) == 2:
        totals = [a + b for a, b in zip(*lanes)]
    else:
        totals = []
        for mine in lanes[0]:
            pair = [torch.empty_like(mine) for _ in range(2)]
            dist.all_gather(pair, mine)
            totals.append(torch.stack(pair).sum(0))
    for weight, total in zip(weights, totals):
        weight.grad = total / (micro_batches * 2.0)


def train(job):
    world = dist.get_world_size()
    chief = dist.get_rank() == 0
    lanes = list(range(2))[dist.get_rank() :: world]
    objects = [job.make_model()]
    objects += [job.make_optimizer(objects[0].parameters())]
    objects += [job.make_schedule(objects[1])]
    streams = dict(zip(lanes, map(job.make_stream, lanes)))
    random = {lane: torch.manual_seed(job.seed + lane).get_state() for lane in lanes}

    def keep_it(number):
        mine = [(lane, streams[lane].state_dict(), random[lane]) for lane in lanes]
        gathered = [None] * world
        dist.all_gather_object(gathered, mine)
        if chief:
            state = {"objects": [each.state_dict() for each in objects], "lanes": [None, None]}
            for lane, place, dice in sum(gathered, []):
                state["lanes"][lane] = {"place": place, "dice": dice}
            job.save(job.folder, number, state, job.keep)

    beginning = [(0, None)]
    if chief:
        beginning = [job.load(job.folder) or (0, None)]
    dist.broadcast_object_list(beginning, 0)
    number, state = beginning[0]
    if state:
        for each, held in zip(objects, state["objects"]):
            each.load_state_dict(held)
        for lane in lanes:
            streams[lane].load_state_dict(state["lanes"][lane]["place"])
            random[lane] = state["lanes"][lane]["dice"]
    for number in range(number, job.steps):
        job.gradient(objects[0], streams, random, job.micro_batches)
        objects[1].step()
        objects[2].step()
        if (number + 1) % job.every == 0 or number + 1 == job.steps:
            keep_it(number + 1)
    dist.barrier()
    return objects[0]
""",
    "a checksum at the end, lane by lane": """
import os
import struct
import zlib
from io import BytesIO

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def save(folder, step, state, keep):
    if not folder.exists():
        folder.mkdir(parents=True)
    (folder / "next").unlink(missing_ok=True)
    memory = BytesIO()
    torch.save(state, memory)
    memory.write(struct.pack("<II", zlib.crc32(memory.getvalue()), memory.tell()))
    descriptor = os.open(folder / "next", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        rest = memoryview(memory.getvalue())
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    (folder / "next").rename(folder / f"step-{step:07}.ckpt")
    ordered = sorted(entry.name for entry in os.scandir(folder) if entry.name.startswith("step-"))
    this = ordered.index(f"step-{step:07}.ckpt")
    for place, name in enumerate(ordered):
        if not this - keep < place <= this:
            (folder / name).unlink()


def load(folder):
    for path in sorted(folder.glob("step-*.ckpt"))[::-1]:
        raw = path.read_bytes()
        if len(raw) < 8:
            continue
        checksum, length = struct.unpack("<II", raw[-8:])
        if length == len(raw) - 8 and zlib.crc32(raw[:-8]) == checksum:
            return int(path.stem[5:]), torch.load(BytesIO(raw[:-8]), map_location=torch.device("cpu"))


def gradient(model, streams, random, micro_batches):
    def one_lane(lane):
        for p in model.parameters():
            p.grad = None
        torch.set_rng_state(random[lane])
        loss = 0.0
        for _ in range(micro_batches):
            x, y = next(streams[lane])
            loss = cross_entropy(model(x), y) / (2 * micro_batches)
            loss.backward()
        random[lane] = torch.get_rng_state()
        return [p.grad.detach() for p in model.parameters()]

    found = [one_lane(lane) for lane in streams]
    for position, p in enumerate(model.parameters()):
        total = found[0][position].clone()
        for other in found[1:]:
            total += other[position]
        if dist.get_world_size() > 1:
            dist.all_reduce(total, op=dist.ReduceOp.SUM)
        p.grad = total


def train(job):
    rank = dist.get_rank()
    both = dist.get_world_size() == 1
    net = job.make_model().train()
    adam = job.make_optimizer(net.parameters())
    plan = job.make_schedule(adam)
    lanes = {}
    for number in (0, 1) if both else (rank,):
        torch.manual_seed(job.seed + number)
        lanes[number] = {"stream": job.make_stream(number), "random": torch.get_rng_state()}
    saved = job.load(job.folder) if rank == 0 else None
    if not both:
        envelope = [saved]
        dist.broadcast_object_list(envelope, src=0)
        saved = envelope.pop()
    at = 0
    if saved is not None:
        at = saved[0]
        net.load_state_dict(saved[1]["weights"])
        adam.load_state_dict(saved[1]["adam"])
        plan.load_state_dict(saved[1]["plan"])
        for number, lane in lanes.items():
            lane["stream"].load_state_dict(saved[1][f"lane{number}"]["stream"])
            lane["random"] = saved[1][f"lane{number}"]["random"]
    streams = {number: lane["stream"] for number, lane in lanes.items()}
    random = {number: lane["random"] for number, lane in lanes.items()}
    while at < job.steps:
        at += 1
        job.gradient(net, streams, random, job.micro_batches)
        adam.step()
        plan.step()
        if at == job.steps or not at % job.every:
            content = {"weights": net.state_dict(), "adam": adam.state_dict(), "plan": plan.state_dict()}
            for number in streams:
                content[f"lane{number}"] = {"stream": streams[number].state_dict(), "random": random[number]}
            if not both:
                other = [None]
                if rank == 1:
                    other = [content["lane1"]]
                dist.broadcast_object_list(other, src=1)
                content["lane1"] = other[0]
            if rank == 0:
                job.save(job.folder, at, content, job.keep)
    dist.barrier()
    return net
""",
    "a hash tree of records, a link for the name": """
import hashlib
import io
import os
import pathlib

import torch
import torch.distributed as dist
import torch.nn.functional as F


def save(folder, step, state, keep):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for junk in set(folder.iterdir()) - set(folder.glob("step-*")):
        junk.unlink()
    scratch = folder / "scratch"
    records = []
    for name in state:
        record = io.BytesIO()
        torch.save({name: state[name]}, record)
        records.append(record.getvalue())
    with scratch.open("wb") as out:
        for record in records:
            header = f"{len(record):020d}".encode() + hashlib.blake2b(record, digest_size=32).digest()
            out.write(header + record)
        out.write(f"{len(records):020d}".encode())
        out.flush()
        os.fsync(out.fileno())
    target = folder / f"step-{step}"
    target.unlink(missing_ok=True)
    os.link(scratch, target)
    scratch.unlink()
    steps = sorted(int(path.name[5:]) for path in folder.glob("step-*"))
    below = [n for n in steps if n <= step]
    for n in steps:
        if n not in below[-keep:]:
            (folder / f"step-{n}").unlink()


def whole(path):
    raw, at, state, count = path.read_bytes(), 0, {}, 0
    while at + 20 < len(raw):
        length = int(raw[at : at + 20])
        digest, record = raw[at + 20 : at + 52], raw[at + 52 : at + 52 + length]
        if hashlib.blake2b(record, digest_size=32).digest() != digest:
            raise ValueError(path)
        state.update(torch.load(io.BytesIO(record)))
        at, count = at + 52 + length, count + 1
    if int(raw[at:]) != count:
        raise ValueError(path)
    return state


def load(folder):
    candidates = {int(path.name[5:]): path for path in pathlib.Path(folder).glob("step-*")}
    for step, path in sorted(candidates.items(), key=lambda item: -item[0]):
        try:
            return step, whole(path)
        except ValueError:
            pass
    return None


def gradient(model, streams, random, micro_batches):
    parameters = tuple(model.parameters())
    before = torch.get_rng_state()
    totals = [torch.zeros_like(p) for p in parameters]
    for number, lane in enumerate(streams):
        for p in parameters:
            p.grad = torch.zeros_like(p)
        torch.set_rng_state(random[lane])
        for _ in range(micro_batches):
            x, y = next(streams[lane])
            F.nll_loss(F.log_softmax(model(x), dim=-1), y).backward()
        random[lane] = torch.get_rng_state()
        totals = [t + p.grad if number else p.grad.clone() for t, p in zip(totals, parameters)]
    torch.set_rng_state(before)
    flat = torch.nn.utils.parameters_to_vector(totals)
    dist.all_reduce(flat)
    flat /= micro_batches + micro_batches
    start = 0
    for p in parameters:
        p.grad = flat[start : start + p.numel()].reshape(p.shape)
        start += p.numel()


def train(job):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = job.make_model()
    optimizer = job.make_optimizer([p for p in model.parameters() if p.requires_grad])
    schedule = job.make_schedule(optimizer)
    my_lanes = [lane for lane in (0, 1) if lane % size == rank]
    streams = {lane: job.make_stream(lane) for lane in my_lanes}
    seeded = [torch.Generator().manual_seed(job.seed + lane).get_state() for lane in (0, 1)]
    random = {lane: seeded[lane] for lane in my_lanes}
    news = [None, None]
    if rank == 0:
        news = list(job.load(job.folder) or (0, None))
    dist.broadcast_object_list(news, src=0)
    done, old = news
    if old is not None:
        model.load_state_dict(old["model"], assign=False)
        optimizer.load_state_dict(old["optimizer"])
        schedule.load_state_dict(old["schedule"])
        for lane in my_lanes:
            random[lane] = old["random"][lane]
            streams[lane].load_state_dict(old["streams"][lane])
    for step in range(done, job.steps):
        job.gradient(model, streams, random, job.micro_batches)
        optimizer.step()
        schedule.step()
        finished = step + 1
        due = finished % job.every == 0
        if due or finished == job.steps:
            pieces = [None] * size
            dist.all_gather_object(pieces, [(lane, streams[lane].state_dict(), random[lane]) for lane in my_lanes])
            flattened = sorted((entry for piece in pieces for entry in piece), key=lambda entry: entry[0])
            if rank == 0:
                new = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                new["schedule"] = schedule.state_dict()
                new["streams"] = [place for _, place, _ in flattened]
                new["random"] = [dice for _, _, dice in flattened]
                job.save(job.folder, finished, new, job.keep)
            dist.barrier()
    return model
""",
    "two files in a directory, tensors for the collectives": """
import hashlib
import json
import os
import shutil

import torch
import torch.distributed as dist
import torch.nn.functional as F


def as_step(name):
    return int(name.split("-")[1])


def save(folder, step, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    held = sorted((p.name for p in folder.iterdir() if p.name.startswith("step-")), key=as_step)
    for path in folder.iterdir():
        if path.name not in held:
            shutil.rmtree(path)
    building = folder / "building"
    building.mkdir()
    with open(building / "data", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    data = (building / "data").read_bytes()
    with open(building / "manifest.json", "w") as file:
        json.dump({"bytes": len(data), "sha": hashlib.sha256(data).hexdigest()}, file)
        file.flush()
        os.fsync(file.fileno())
    name = f"step-{step}"
    if name in held:
        os.rename(folder / name, folder / "damaged")
    os.rename(building, folder / name)
    names = [n for n in held if as_step(n) < step][-(keep - 1) :] if keep > 1 else []
    for path in folder.iterdir():
        if path.name not in (name, *names):
            target = folder / "leaving"
            if path != target:
                os.rename(path, target)
            shutil.rmtree(target)


def load(folder):
    if not folder.is_dir():
        return None
    for name in sorted((p.name for p in folder.glob("step-*")), key=as_step, reverse=True):
        try:
            manifest = json.loads((folder / name / "manifest.json").read_text())
            data = (folder / name / "data").read_bytes()
            if [len(data), hashlib.sha256(data).hexdigest()] == [manifest["bytes"], manifest["sha"]]:
                with open(folder / name / "data", "rb") as file:
                    return as_step(name), torch.load(file)
        except (OSError, KeyError, ValueError):
            print(f"{name} is damaged")


def gradient(model, streams, random, micro_batches):
    names = [name for name, _ in model.named_parameters()]
    by_lane = {}
    for lane, stream in streams.items():
        for p in model.parameters():
            p.grad = None
        torch.set_rng_state(random[lane])
        count = 0
        while count < micro_batches:
            batch = next(stream)
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            count += 1
        random[lane] = torch.get_rng_state()
        by_lane[lane] = {name: p.grad for name, p in model.named_parameters()}
    for name in names:
        parameter = model.get_parameter(name)
        if dist.get_world_size() == 2:
            own = by_lane[dist.get_rank()][name].contiguous()
            theirs = [torch.zeros_like(own), torch.zeros_like(own)]
            dist.all_gather(theirs, own)
        else:
            theirs = [by_lane[0][name], by_lane[1][name]]
        parameter.grad = torch.true_divide(theirs[0] + theirs[1], 2 * micro_batches)


def train(job):
    rank = dist.get_rank()
    lanes = {1: [0, 1], 2: [rank]}[dist.get_world_size()]
    model = job.make_model()
    optimizer = job.make_optimizer(model.parameters())
    schedule = job.make_schedule(optimizer)
    streams = {lane: job.make_stream(lane) for lane in lanes}
    random = {}
    for lane in lanes:
        torch.manual_seed(job.seed + lane)
        random[lane] = torch.get_rng_state()
    step = torch.zeros(1, dtype=torch.int64)
    found = None
    if rank == 0:
        found = job.load(job.folder)
        step += found[0] if found else 0
    dist.broadcast(step, 0)
    step = step.item()
    if step:
        carried = [found and found[1]]
        dist.broadcast_object_list(carried, 0)
        state = carried[0]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        for lane in lanes:
            streams[lane].load_state_dict(state["streams"][str(lane)])
            random[lane] = state["random"][lane].clone()
    while step < job.steps:
        job.gradient(model, streams, random, job.micro_batches)
        optimizer.step()
        schedule.step()
        step += 1
        if step % job.every and step != job.steps:
            continue
        dice = torch.zeros(2, len(random[lanes[0]]), dtype=torch.uint8)
        for lane in lanes:
            dice[lane] = random[lane]
        dist.all_reduce(dice)
        places = [None] * dist.get_world_size()
        dist.all_gather_object(places, {str(lane): streams[lane].state_dict() for lane in lanes})
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"schedule": schedule.state_dict(), "random": dice, "streams": {}}
            for place in places:
                state["streams"] |= place
            job.save(job.folder, step, state, job.keep)
        dist.barrier()
    return model
""",
}
