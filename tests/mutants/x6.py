"""Wrong and right answers for X6."""

from . import Mutant, one

FILES, GRADIENT, TRAIN, ALL = "x6.files", "x6.gradient", "x6.train", "x6.survive"
NEWEST, KILLED, DAMAGED = "newest_comes_back", "survives_a_kill_while_saving", "damaged_ones_are_passed_over"
FLUSHED, BOUNDED = "flushed_before_published", "disk_stays_bounded"
BITS, WHOLE = "same_bits_on_one_rank_and_two", "uninterrupted_run_is_right"
GOES_ON, RANK0, EVERYWHERE = "goes_on_to_the_last_bit", "rank0_keeps_the_state_of_all", "survives_wherever_it_is_killed"

# Words of the reference that mutants replace.
TEMPORARY = '    unfinished = folder / "unfinished"\n'
CLEARED = "    unfinished.unlink(missing_ok=True)  # of a save that was killed\n"
FLUSH = "        file.flush()\n        os.fsync(file.fileno())\n"
PUBLISH = '    os.replace(unfinished, folder / f"step-{step}")\n'
KEPT = "    kept = sorted(n for n in paths if n <= step)[-keep:]\n"
PRUNE = "    for n in paths.keys() - kept:\n        paths[n].unlink()\n"
WRITE = "hashlib.sha256(data).digest() + data)"
WHOLE_ONE = "data[:32] == hashlib.sha256(data[32:]).digest()"
NEWEST_FIRST = "    for step in sorted(paths, reverse=True):\n"
RETURNED = 'return step, torch.load(io.BytesIO(data[32:]), map_location="cpu")'
TAKEN = f"        if {WHOLE_ONE}:\n            {RETURNED}\n"
CLEAR = "        for p in parameters:\n            p.grad = None\n"
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

MUTANTS = [
    # files
    one("newest by name", FILES, NEWEST, NEWEST_FIRST, "    for step in sorted(paths, key=lambda n: paths[n].name, reverse=True):\n"),
    one("newest by date", FILES, NEWEST, NEWEST_FIRST, "    for step in sorted(paths, key=lambda n: paths[n].stat().st_mtime, reverse=True):\n"),
    one("oldest first", FILES, NEWEST, "sorted(paths, reverse=True)", "sorted(paths)"),
    one("the number of checkpoints for the step", FILES, NEWEST, "return step, torch.load", "return len(paths), torch.load"),
    one("saved in half precision", FILES, NEWEST, "    torch.save(state, buffer)\n", "    torch.save(state | {'model': {k: v.bfloat16() for k, v in state['model'].items()}}, buffer)\n"),
    one("the optimizer's numbers rounded in place", FILES, NEWEST, "    torch.save(state, buffer)\n", "    for each in state['optimizer']['state'].values():\n        each['exp_avg'].mul_(0.5)\n    torch.save(state, buffer)\n"),
    one("words left out", FILES, NEWEST, "    torch.save(state, buffer)\n", "    torch.save({k: v for k, v in state.items() if not isinstance(v, str)}, buffer)\n"),
    one("step 0 for nothing", FILES, NEWEST, "    return None\n", "    return 0, {}\n"),
    one("raises for a new folder", FILES, NEWEST, NEWEST_FIRST, "    sorted(folder.iterdir())\n" + NEWEST_FIRST),
    Mutant("in place, without a new name", FILES, KILLED, ((TEMPORARY, '    unfinished = folder / f"step-{step}"\n'), (PUBLISH, ""))),
    one("a name that looks finished", FILES, KILLED, TEMPORARY, '    unfinished = folder / f"step-{step}.unfinished"\n'),
    Mutant("copied to its name", FILES, KILLED, ((PUBLISH, '    (folder / f"step-{step}").write_bytes(unfinished.read_bytes())\n    unfinished.unlink()\n'),)),
    Mutant("older ones deleted first", FILES, KILLED, ((TEMPORARY, "    for path in folder.glob('step-*'):\n        if keep == 1:\n            path.unlink()\n" + TEMPORARY),)),
    Mutant("older ones deleted before the new name", FILES, KILLED, ((PUBLISH, "    for path in folder.glob('step-*'):\n        if keep == 1:\n            path.unlink()\n" + PUBLISH),)),
    Mutant("the checksum beside it", FILES, KILLED, (
        (WRITE, "data)"), (PUBLISH, PUBLISH + '    (folder / f"sum-{step}").write_bytes(hashlib.sha256(data).digest())\n'),
        ("        data = paths[step].read_bytes()\n", '        data = folder.joinpath(f"sum-{step}").read_bytes() + paths[step].read_bytes()\n'))),
    one("no checksum looked at", FILES, DAMAGED, TAKEN, f"        try:\n            {RETURNED}\n        except Exception:\n            continue\n"),
    one("raises for a damaged one", FILES, DAMAGED, f"        if {WHOLE_ONE}:\n            {RETURNED}\n", f"        assert {WHOLE_ONE}\n        {RETURNED}\n"),
    one("gives up at a damaged one", FILES, DAMAGED, TAKEN, TAKEN + "        return None\n"),
    one("the length for a checksum", FILES, DAMAGED, TAKEN, f"        try:\n            if len(data) % 64 != (32 + len(data[32:])) % 64:\n                continue\n            {RETURNED}\n        except Exception:\n            continue\n"),
    Mutant("a checksum of the beginning", FILES, DAMAGED, (
        (WRITE, "hashlib.sha256(data[:4000]).digest() + data)"),
        (TAKEN, f"        try:\n            if data[:32] == hashlib.sha256(data[32:4032]).digest():\n                {RETURNED}\n        except Exception:\n            continue\n"))),
    one("not flushed to the disk", FILES, FLUSHED, FLUSH, ""),
    one("flushed from Python only", FILES, FLUSHED, FLUSH, "        file.flush()\n"),
    one("fsync before Python's own buffer", FILES, FLUSHED, "        file.write(hashlib.sha256(data).digest() + data)\n" + FLUSH, "        file.write(hashlib.sha256(data).digest() + data[:-9])\n        os.fsync(file.fileno())\n        file.write(data[-9:])\n"),
    Mutant("fsync after the name", FILES, FLUSHED, ((FLUSH, ""), (PUBLISH, PUBLISH + '    with (folder / f"step-{step}").open("rb+") as file:\n        os.fsync(file.fileno())\n'))),
    Mutant("fsync of the folder only", FILES, FLUSHED, ((FLUSH, ""), (PUBLISH, "    directory = os.open(folder, os.O_RDONLY)\n    os.fsync(directory)\n    os.close(directory)\n" + PUBLISH))),
    one("never prunes", FILES, BOUNDED, PRUNE, ""),
    one("one too many", FILES, BOUNDED, "[-keep:]", "[-keep - 1 :]"),
    one("always the last one alone", FILES, BOUNDED, "[-keep:]", "[-1:]"),
    one("the oldest kept", FILES, BOUNDED, "sorted(n for n in paths if n <= step)[-keep:]", "[*sorted(n for n in paths if n <= step)[: keep - 1], step]"),
    one("those with more steps stay", FILES, BOUNDED, "for n in paths.keys() - kept:", "for n in [n for n in paths if n < min(kept)]:"),
    one("the newest numbers stay, whatever was saved", FILES, BOUNDED, "sorted(n for n in paths if n <= step)[-keep:]", "sorted(paths)[-keep:]"),
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
    # the run, uninterrupted
    one("schedule left standing", TRAIN, WHOLE, "        schedule.step()\n", ""),
    one("schedule before the optimizer", TRAIN, WHOLE, "        optimizer.step()\n        schedule.step()\n", "        schedule.step()\n        optimizer.step()\n"),
    one("the same random state in both lanes", TRAIN, WHOLE, SEEDED, SEEDED.replace("job.seed + lane", "job.seed")),
    one("the same rows on both ranks", TRAIN, WHOLE, f"job.make_stream(lane) {LANES}", f"job.make_stream(0) {LANES}"),
    one("one step too few", TRAIN, WHOLE, "while done < job.steps:", "while done < job.steps - 1:"),
    one("a copy comes back", TRAIN, WHOLE, "    return model", "    import copy\n\n    return copy.deepcopy(model)"),
    one("biases are not trained", TRAIN, WHOLE, "job.make_optimizer(model.parameters())", "job.make_optimizer(p for p in model.parameters() if p.dim() > 1)"),
    one("one micro-batch a step", TRAIN, WHOLE, "random, job.micro_batches)", "random, 1)"),
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
    # whose disk, and when
    one("each rank loads from its own disk", TRAIN, RANK0, LOAD, "[job.load(job.folder)]\n"),
    one("each rank loads, rank 0's counts", TRAIN, RANK0, "if rank == 0 else None]", "]"),
    one("each rank saves", TRAIN, RANK0, "            if rank == 0:\n", "            if True:\n"),
    one("rank 1 saves", TRAIN, RANK0, "            if rank == 0:\n", "            if rank == world - 1:\n"),
    one("the last step is not saved", TRAIN, RANK0, WHEN, "if done % job.every == 0:"),
    one("saved after each step", TRAIN, RANK0, WHEN, "if done:"),
    one("saved one step late", TRAIN, RANK0, WHEN, "if done % job.every == 1 or done == job.steps:"),
    one("only the last is kept", TRAIN, RANK0, SAVE, SAVE.replace("job.keep", "1")),
    one("nobody waits for the last", TRAIN, RANK0, "    dist.barrier()\n", ""),
    # all of it
    one("the random states are not in the file", ALL, EVERYWHERE, RANDOM, ""),
    one("one rank adds in its own order", ALL, EVERYWHERE, CLEAR, "        if not sums:\n            for p in parameters:\n                p.grad = None\n"),
    one("each process leaves its own", ALL, EVERYWHERE, TEMPORARY, '    unfinished = folder / f"unfinished-{os.getpid()}"\n'),
    one("begins again when a save was killed", ALL, EVERYWHERE, NEWEST_FIRST, "    if (folder / 'unfinished').exists():\n        return None\n" + NEWEST_FIRST),
]  # fmt: skip

RIGHT = {}
