"""Wrong and right answers for the practice tasks of where the time goes."""

from . import Mutant

ROOFLINE, BLOCK, TRACE, CLINIC, CURE = (
    f"where_the_time_goes.{part}" for part in ("roofline", "block", "trace", "clinic", "cure")
)


def roofline(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, ROOFLINE, check, replace, raises)


def block(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, BLOCK, check, replace, raises)


def trace(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, TRACE, check, replace, raises)


def clinic(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, CLINIC, check, replace, raises)


def cure(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, CURE, check, replace, raises)


SLOWER = 'max(times["compute"], times["memory"]) + launch'
BOUND = "max(times, key=times.get)"
SQUARE = "pairs = 2 * batch * length**2 * width"
MLP = "2 * tokens * width * inner * matrices"
K, V = ('"k": 2 * tokens * width * kv_width', '"v": 2 * tokens * width * kv_width')
HALF = '    if convention == "causal half":\n        pairs //= 2\n'
ONLY_X = 'if event["ph"] == "X":'
THREAD = 'threads[event["pid"], event["tid"]]'
TIMES = 'round(1000 * event["ts"]), round(1000 * event["dur"])'
PARENT = "            if around:\n                own[around[-1][1]] += minus\n"
INSIDE = 'inside = [e for e in spans if step["ts"] <= e["ts"] < end]'
MINE = 'mine = [e for e in inside if (e["pid"], e["tid"]) == (step["pid"], step["tid"])]'
WORKING = 'working = kernels or [e for e in mine if e["name"].startswith("aten::")]'
BUSY = 'busy += max(0, until - max(event["ts"], reached))'
ITEMS = 'sum(e["name"] == "aten::item" for e in mine)'
COPIES = 'sum(e["dur"] for e in mine if e["name"] == "aten::copy_") / step["dur"]'
LOOP = "        for inputs, labels in batches:\n"
RIGHT_SO_FAR = "right = right + (model(inputs).argmax(1) == labels).sum()"

MUTANTS = [
    # the roofline
    *(roofline("takes_the_slower_of_the_two", *mutant) for mutant in (
        ("one after the other", (SLOWER, 'times["compute"] + times["memory"] + launch')),
        ("the quicker of the two", (SLOWER, 'min(times["compute"], times["memory"]) + launch')),
        ("arithmetic alone", (SLOWER, 'times["compute"] + launch')),
        ("bytes alone", (SLOWER, 'times["memory"] + launch')),
        ("bits", ('nbytes / bandwidth', '8 * nbytes / bandwidth')),
        ("milliseconds", (SLOWER, '1e3 * max(times["compute"], times["memory"]) + launch')),
        ("square root of the squares", (SLOWER, 'math.hypot(times["compute"], times["memory"]) + launch')),
    )),
    *(roofline("adds_the_launch", *mutant) for mutant in (
        ("no launch", (SLOWER, 'max(times["compute"], times["memory"])')),
        ("launch hidden behind the work", (SLOWER, "max(times.values())")),
        ("launch twice", (SLOWER, SLOWER + " + launch")),
        ("launch only where memory binds", (SLOWER, 'max(times["compute"], times["memory"] + launch)')),
        ("launch only where arithmetic binds", (SLOWER, 'max(times["compute"] + launch, times["memory"])')),
        ("launch only where it is longest", (SLOWER, 'max(times["compute"], times["memory"]) + (launch if max(times, key=times.get) == "launch" else 0)')),
    )),
    *(roofline("names_what_bounds_it", *mutant) for mutant in (
        ("never launch", (BOUND, '"compute" if times["compute"] > times["memory"] else "memory"')),
        ("the shortest", (BOUND, "min(times, key=times.get)")),
        ("words the wrong way round", (BOUND, '{"compute": "memory", "memory": "compute", "launch": "launch"}[max(times, key=times.get)]')),
        ("launch against the sum", (BOUND, '"launch" if launch > flops / peak + nbytes / bandwidth else "compute" if flops / peak > nbytes / bandwidth else "memory"')),
        ("work with its launch against the launch", (BOUND, '"launch" if launch > 1.2 * max(flops / peak, nbytes / bandwidth) else "compute" if flops / peak > nbytes / bandwidth else "memory"')),
        ("launch where it is half", (BOUND, '"launch" if 2 * launch > max(flops / peak, nbytes / bandwidth) else "compute" if flops / peak > nbytes / bandwidth else "memory"')),
        ("other words", (BOUND, 'max(times, key=times.get) + "-bound"')),
    )),
    *(roofline("works_without_arithmetic", *mutant) for mutant in (
        ("a copy is free", (SLOWER, SLOWER + ' if flops else launch')),
        ("no arithmetic, no bound", (BOUND, 'max(times, key=times.get) if flops else "compute"')),
        ("nothing to do takes nothing", (SLOWER, f"{SLOWER} if flops or nbytes else 0.0")),
    )),
    roofline("works_without_arithmetic", "bytes for each FLOP", ("    times = {", "    bytes_a_flop = nbytes / flops\n    times = {"), raises="ZeroDivisionError"),
    # the block
    *(block("names_every_part", *mutant) for mutant in (
        ("fractions", ("pairs //= 2", "pairs /= 2")),
        ("a total among them", ('    return {\n        "q"', '    return {\n        "total": 0,\n        "q"')),
        ("no values", ('        "values": pairs,\n', "")),
        ("MLP in two parts", (f'"mlp": {MLP}', f'"up": {MLP}, "down": 0')),
        ("k and v in one", (f"        {K},\n        {V},\n", '        "kv": 4 * tokens * width * kv_width,\n')),
    )),
    *(block("counts_projections", *mutant) for mutant in (
        ("one sequence", ("tokens = batch * length", "tokens = length")),
        ("multiplications only", ('"q": 2 * tokens', '"q": tokens')),
        ("keys as wide as queries", (K, '"k": 2 * tokens * width * width')),
        ("values as wide as queries", (V, '"v": 2 * tokens * width * width')),
        ("out as narrow as the values", ('"out": 2 * tokens * width * width', '"out": 2 * tokens * width * kv_width')),
        ("forward and backward", ('"out": 2 * tokens', '"out": 6 * tokens')),
    )),
    *(block("counts_attention", *mutant) for mutant in (
        ("linear in the length", (SQUARE, "pairs = 2 * batch * length * width")),
        ("across sequences", (SQUARE, "pairs = 2 * (batch * length) ** 2 * width")),
        ("narrow keys", (SQUARE, "pairs = 2 * batch * length**2 * kv_width")),
        ("both in each", (SQUARE, "pairs = 4 * batch * length**2 * width")),
        ("no values to weigh", ('"values": pairs', '"values": 2 * batch * length**2')),
        ("always causal", (HALF, "    pairs //= 2\n")),
    )),
    *(block("halves_causal_attention", *mutant) for mutant in (
        ("never half", (HALF, "")),
        ("with the diagonal", ("pairs //= 2", "pairs = batch * length * (length + 1) * width")),
        ("scores alone", ('"values": pairs', '"values": 2 * batch * length**2 * width')),
        ("a quarter", ("pairs //= 2", "pairs //= 4")),
        ("projections, too", ("        pairs //= 2\n", "        pairs //= 2\n        tokens //= 2\n")),
    )),
    *(block("counts_the_mlp", *mutant) for mutant in (
        ("the gate forgotten", ("3 if gated else 2", "2")),
        ("always a gate", ("3 if gated else 2", "3")),
        ("four times the width", (MLP, "2 * tokens * width * 4 * width * matrices")),
        ("up alone", (MLP, "2 * tokens * width * inner * (matrices - 1)")),
        ("a gate of its own size", (MLP, "2 * tokens * width * (inner * 2 + (width if gated else 0))")),
    )),
    # the reader
    *(trace("sums_what_each_spends_itself", *mutant) for mutant in (
        ("with all that runs inside", (PARENT, "")),
        ("all levels inside taken off", (PARENT, "            for _, outer in around:\n                own[outer] += minus\n")),
        ("the innermost alone", (PARENT, "            if around:\n                own[around[-1][1]] = 0\n")),
        ("the last of each name", ("            own[name] -= minus", "            own[name] = -minus")),
        ("one of a name inside its like is left in", ("            if around:\n", "            if around and around[-1][1] != name:\n")),
        ("taken off the outermost", ("own[around[-1][1]] += minus", "own[around[0][1]] += minus")),
        ("milliseconds", ("nanoseconds / 1000", "nanoseconds / 1e6")),
        ("shorter ones first", ("sorted(spans)", "sorted(spans, key=lambda span: (span[0], -span[1]))")),
        ("by the end", ("sorted(spans)", "sorted(spans, key=lambda span: span[0] - span[1])")),
        ("beside is inside", ("around[-1][0] <= start", "around[-1][0] < start")),
        ("the mean of a name", ("nanoseconds / 1000 for", "nanoseconds / 1000 / sum(e.get('name') == name for e in events) for")),
    )),
    trace("counts_complete_events_only", "all that last", (ONLY_X, 'if "dur" in event:')),
    trace("counts_complete_events_only", "everything", (ONLY_X, "if True:"), raises="KeyError"),
    trace("counts_complete_events_only", "all that begin", (ONLY_X, 'if "ts" in event:'), raises="KeyError"),
    trace("counts_complete_events_only", "marks last no time", (ONLY_X, 'if "ts" in event:'), ('round(1000 * event["dur"])', 'round(1000 * event.get("dur", 0))')),
    *(trace("keeps_threads_apart", *mutant) for mutant in (
        ("all on one", (THREAD, "threads[0]")),
        ("by process", (THREAD, 'threads[event["pid"]]')),
        ("by number of the thread", (THREAD, 'threads[event["tid"]]')),
    )),
    *(trace("takes_any_order", *mutant) for mutant in (
        ("as they come", ("sorted(spans)", "spans")),
        ("by the beginning alone", ("sorted(spans)", "sorted(spans, key=lambda span: span[0])")),
    )),
    *(trace("minds_the_clock", *mutant) for mutant in (
        ("fractions", (TIMES, 'event["ts"], event["dur"]'), ("nanoseconds / 1000", "nanoseconds")),
        ("whole microseconds", (TIMES, '1000 * round(event["ts"]), 1000 * round(event["dur"])')),
    )),
    *(trace("changes_nothing", *mutant) for mutant in (
        ("sorted in place", ("    own = Counter()", "    events.sort(key=lambda event: event['ts'])\n    own = Counter()")),
        ("durations taken off in place", ("    own = Counter()", "    for event in events:\n        event['dur'] = event['dur'] / 1000\n    own = Counter()")),
        ("emptied", ("    own = Counter()", "    events.clear()\n    own = Counter()")),
    )),
    # the clinic
    *(clinic("counts_values_read", *mutant) for mutant in (
        ("every level of a read", (ITEMS, 'sum("item" in e["name"] or "scalar" in e["name"] for e in mine)')),
        ("comparisons", (ITEMS, 'sum(e["name"] == "aten::eq" for e in mine) + 1')),
        ("whether, not how often", (ITEMS, 'any(e["name"] == "aten::item" for e in mine)')),
        ("a share", (ITEMS, ITEMS + " / len(mine)")),
    )),
    *(clinic("measures_copies", *mutant) for mutant in (
        ("every level of a copy", (COPIES, 'sum(e["dur"] for e in mine if "copy" in e["name"]) / step["dur"]')),
        ("the outermost", (COPIES, 'sum(e["dur"] for e in mine if e["name"] == "aten::to") / step["dur"]')),
        ("microseconds", (COPIES, 'sum(e["dur"] for e in mine if e["name"] == "aten::copy_")')),
        ("share of the events", (COPIES, 'sum(e["name"] == "aten::copy_" for e in mine) / len(mine)')),
        ("share of the busy time", (COPIES, 'sum(e["dur"] for e in mine if e["name"] == "aten::copy_") / busy')),
        ("the longest alone", (COPIES, 'max((e["dur"] for e in mine if e["name"] == "aten::copy_"), default=0) / step["dur"]')),
    )),
    *(clinic("measures_idle_time_on_cpu", *mutant) for mutant in (
        ("busy", ('1 - busy / step["dur"]', 'busy / step["dur"]')),
        ("Python works, too", (' if e["name"].startswith("aten::")]', "]")),
        ("inside counts again", (BUSY, 'busy += event["dur"]')),
        ("the innermost alone", (WORKING, 'working = kernels or [e for e in mine if e["name"] == "aten::addmm"]')),
        ("aten anywhere in a name", (WORKING, 'working = kernels or [e for e in mine if "aten::" in e["name"]]')),
        ("kernels or nothing", (WORKING, "working = kernels")),
        ("the first operation alone", (WORKING, 'working = kernels or [e for e in mine if e["name"].startswith("aten::")][:2]')),
    )),
    *(clinic("measures_idle_time_on_gpu", *mutant) for mutant in (
        ("the host's operations", ("working = kernels or [", "working = [")),
        ("both at once", ("working = kernels or [", "working = kernels + [")),
        ("two streams count twice", (BUSY, 'busy += event["dur"] if kernels else max(0, until - max(event["ts"], reached))')),
        ("copies work, too", ('e.get("cat") == "kernel"', 'e.get("cat") in ("kernel", "gpu_memcpy")')),
        ("one stream", ('e.get("cat") == "kernel"', 'e.get("cat") == "kernel" and e["tid"] == 7')),
        ("from the first kernel on", ('1 - busy / step["dur"]', '1 - busy / (end - min(e["ts"] for e in working))')),
    )),
    *(clinic("looks_at_the_step_alone", *mutant) for mutant in (
        ("what comes after it, too", (INSIDE, 'inside = [e for e in spans if step["ts"] <= e["ts"]]')),
        ("threads by their number alone", (MINE, 'mine = [e for e in inside if e["tid"] == step["tid"]]')),
        ("a GPU wherever there are kernels", (WORKING, 'working = kernels if any(e.get("cat") == "kernel" for e in spans) else [e for e in mine if e["name"].startswith("aten::")]')),
        ("the warm-up, too", (MINE, 'mine = [e for e in spans if (e["pid"], e["tid"]) == (step["pid"], step["tid"])]')),
        ("all threads", (MINE, "mine = inside")),
        ("all threads of the process", (MINE, 'mine = [e for e in inside if e["pid"] == step["pid"]]')),
        ("kernels of the warm-up", ("kernels = [e for e in inside", "kernels = [e for e in spans")),
        ("whichever step comes first", (' and e.get("cat") == "user_annotation"', "")),
        ("until the step's end", (INSIDE, 'inside = [e for e in spans if e["ts"] < end]')),
    )),
    clinic("reads_spans_alone", "marks last no time", ('spans = [event for event in events if event["ph"] == "X"]', 'spans = [{"dur": 0, **event} for event in events if "ts" in event]')),
    clinic("reads_spans_alone", "all that last", ('spans = [event for event in events if event["ph"] == "X"]', 'spans = [event for event in events if "dur" in event]')),
    clinic("reads_spans_alone", "everything", ('spans = [event for event in events if event["ph"] == "X"]', "spans = events"), raises="KeyError"),
    clinic("changes_no_trace", "sorted in place", ("    end = step", "    events.sort(key=lambda e: e['ts'])\n    end = step")),
    clinic("changes_no_trace", "events marked", ("    end = step", "    for e in spans:\n        e['end'] = e['ts'] + e['dur']\n    end = step")),
    *(clinic("names_the_illness", *mutant) for mutant in (
        ("ten are too many", ('signs["items"] > 10', 'signs["items"] >= 10')),
        ("eleven are fine", ('signs["items"] > 10', 'signs["items"] > 11')),
        ("reads do not matter", ('signs["items"] > 10', "False")),
        ("a third copied is healthy", ('signs["copying"] > 0.3', 'signs["copying"] > 0.36')),
        ("0.3 copied is sick", ('signs["copying"] > 0.3', 'signs["copying"] >= 0.3')),
        ("copies do not matter", ('signs["copying"] > 0.3', "False")),
        ("idle first", ('    if signs["items"] > 10:', '    if signs["idle"] > 0.3:\n        return "tiny"\n    if signs["items"] > 10:')),
        ("copies before reads", ('    if signs["items"] > 10:', '    if signs["copying"] > 0.3:\n        return "copies"\n    if signs["items"] > 10:')),
        ("idle before copies", ('    if signs["copying"] > 0.3:', '    if signs["idle"] > 0.3:\n        return "tiny"\n    if signs["copying"] > 0.3:')),
        ("0.3 idle is sick", ('signs["idle"] > 0.3', 'signs["idle"] >= 0.3')),
        ("idle does not matter", ('"tiny" if signs["idle"] > 0.3 else "healthy"', '"healthy"')),
        ("nobody is healthy", ('"tiny" if signs["idle"] > 0.3 else "healthy"', '"tiny"')),
        ("the larger share", ('    if signs["copying"] > 0.3:', '    if signs["copying"] > max(0.3, signs["idle"]):')),
    )),
    *(clinic("diagnoses_patients", *mutant) for mutant in (
        ("everybody is healthy", ('"items": sum', '"items": 0 * sum'), ('"copying": sum', '"copying": 0 * sum'), ('1 - busy', '0 * busy')),
        ("a GPU judged by its host", ("working = kernels or [", "working = [")),
        ("reads looked for on the GPU", (ITEMS, "len(kernels)")),
        ("copies looked for on the GPU", (COPIES, 'sum(e["dur"] for e in inside if e.get("cat") == "gpu_memcpy") / step["dur"]')),
        ("idle time by kernels alone", (WORKING, "working = kernels")),
        ("reads by their time", (ITEMS, 'sum(e["dur"] for e in mine if e["name"] == "aten::item") / step["dur"]')),
    )),
    # the cure
    *(cure("counts_the_share", *mutant) for mutant in (
        ("the number of right ones", ("right.item() / samples", "right.item()")),
        ("percent", ("right.item() / samples", "100 * right.item() / samples")),
        ("batches of one size", ("right.item() / samples", "right.item() / (len(batches) * len(batches[0][1]))")),
        ("mean of the batches", (".sum()  # stays", ".float().mean()  # stays"), ("samples += len(labels)", "samples += 1")),
        ("the wrong ones", ("== labels", "!= labels")),
        ("the smallest logit", ("argmax(1)", "argmin(1)")),
        ("a tensor", ("right.item() / samples", "right / samples")),
        ("the last batch alone", (RIGHT_SO_FAR, "right = (model(inputs).argmax(1) == labels).sum()")),
    )),
    *(cure("runs_whole_batches", *mutant) for mutant in (
        ("sample by sample", ("model(inputs).argmax(1)", "torch.cat([model(one[None]) for one in inputs]).argmax(1)")),
        ("all batches at once", (LOOP, "        for inputs, labels in [tuple(map(torch.cat, zip(*batches)))]:\n")),
        ("in halves", ("model(inputs)", "torch.cat([model(part) for part in inputs.chunk(2)])")),
        ("twice", ("model(inputs).argmax(1)", "(model(inputs) + model(inputs)).argmax(1)")),
        ("a batch too many", (LOOP, "        model(batches[0][0])\n" + LOOP)),
        ("samples without a batch", ("model(inputs).argmax(1)", "torch.stack([model(one) for one in inputs]).argmax(1)")),
    )),
    *(cure("reads_one_value", *mutant) for mutant in (
        ("item for each batch", (".sum()  # stays", ".sum().item()  # stays"), ("right.item()", "right")),
        ("float for each batch", (RIGHT_SO_FAR, "right = right + float((model(inputs).argmax(1) == labels).sum())"), ("right.item()", "right")),
        ("lists", (RIGHT_SO_FAR, "right = right + sum(map(int.__eq__, model(inputs).argmax(1).tolist(), labels.tolist()))"), ("right.item()", "right")),
        ("NumPy", (RIGHT_SO_FAR, "right = right + int((model(inputs).argmax(1).cpu().numpy() == labels.cpu().numpy()).sum())"), ("right.item()", "right")),
        ("an if for each sample", (RIGHT_SO_FAR, "right = right + torch.tensor(sum(1 for a, b in zip(model(inputs).argmax(1), labels) if a == b))")),
        ("moved to the host for each batch", (".sum()  # stays", ".sum().cpu()  # stays")),
        ("to the host for each batch", (".sum()  # stays", ".sum().to('cpu')  # stays")),
        ("found with nonzero", (RIGHT_SO_FAR, "right = right + torch.tensor(len((model(inputs).argmax(1) == labels).nonzero()))")),
        ("chosen by a mask", (RIGHT_SO_FAR, "right = right + torch.tensor(len(labels[model(inputs).argmax(1) == labels]))")),
        ("a tensor printed", ("samples += len(labels)", "samples += len(labels)\n            repr(right)")),
        ("progress printed", ("samples += len(labels)", "samples += len(labels)\n            print(f'{right}', end='\\r')")),
    )),
    *(cure("leaves_things_as_they_are", *mutant) for mutant in (
        ("training mode afterwards", ("    return right.item() / samples", "    model.train()\n    return right.item() / samples")),
        ("training mode meanwhile", ("    right = samples = 0\n", "    right = samples = 0\n    model.train()\n"), ("    return right.item() / samples", "    model.eval()\n    return right.item() / samples")),
        ("autograd off for ever", ("with torch.no_grad():", "if torch.set_grad_enabled(False) or True:")),
        ("labels compared in place", ("(model(inputs).argmax(1) == labels)", "labels.sub_(model(inputs).argmax(1)).eq(0)")),
    )),
    *(cure("records_nothing", *mutant) for mutant in (
        ("autograd records", ("with torch.no_grad():", "with torch.enable_grad():")),
        ("detached afterwards", ("with torch.no_grad():", "if True:"), ("model(inputs).argmax", "model(inputs).detach().argmax")),
        ("training mode off, which is another thing", ("with torch.no_grad():", "if model.eval():")),
        ("recorded from the second batch on", ("samples += len(labels)", "samples += len(labels)\n            torch.set_grad_enabled(True)")),
    )),
]  # fmt: skip

RIGHT = {
    "step by step": """
import torch


def operation_seconds(flops, nbytes, peak, bandwidth, launch):
    arithmetic, traffic = flops / peak, nbytes / bandwidth
    slower = arithmetic if arithmetic > traffic else traffic
    if launch > slower:
        bound = "launch"
    elif arithmetic > traffic:
        bound = "compute"
    else:
        bound = "memory"
    return [slower + launch, bound]


def block_flops(batch, length, width, inner, kv_width, gated, convention):
    def product(m, k, n):
        return 2 * m * k * n

    rows = batch * length
    answer = {name: product(rows, width, columns) for name, columns in (("q", width), ("k", kv_width), ("v", kv_width))}
    answer["out"] = product(rows, width, width)
    share = 1 if convention == "full square" else 2
    answer["scores"] = batch * product(length, width, length) // share
    answer["values"] = batch * product(length, length, width) // share
    answer["mlp"] = product(rows, width, inner) + product(rows, inner, width)
    if gated:
        answer["mlp"] += product(rows, width, inner)
    return answer


def self_times(events):
    spans = [dict(event) for event in events if event["ph"] == "X"]
    for span in spans:
        span["start"] = round(span["ts"] * 1000)
        span["end"] = span["start"] + round(span["dur"] * 1000)
        span["own"] = span["end"] - span["start"]
    for span in spans:
        outer = [
            other
            for other in spans
            if other is not span
            and (other["pid"], other["tid"]) == (span["pid"], span["tid"])
            and other["start"] <= span["start"]
            and span["end"] <= other["end"]
        ]
        if outer:
            parent = min(outer, key=lambda other: other["end"] - other["start"])
            parent["own"] -= span["end"] - span["start"]
    totals = {}
    for span in spans:
        totals[span["name"]] = totals.get(span["name"], 0) + span["own"] / 1000
    return totals


def signs(events):
    step = [e for e in events if e["ph"] == "X" and e["cat"] == "user_annotation" and e["name"] == "step"][0]
    first, last = step["ts"], step["ts"] + step["dur"]
    items, copying, host, kernels = 0, 0.0, [], []
    for event in events:
        if event["ph"] != "X" or event["ts"] < first or event["ts"] + event["dur"] > last + 0.01:
            continue
        span = (event["ts"], event["ts"] + event["dur"])
        if event["cat"] == "kernel":
            kernels.append(span)
        if event["pid"] != step["pid"] or event["tid"] != step["tid"]:
            continue
        if event["name"] == "aten::item":
            items += 1
        if event["name"] == "aten::copy_":
            copying += event["dur"]
        if event["name"].split("::")[0] == "aten":
            host.append(span)
    merged = []
    for start, end in sorted(kernels if kernels else host):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    idle = step["dur"] - sum(end - start for start, end in merged)
    return {"idle": idle / step["dur"], "copying": copying / step["dur"], "items": items}


def diagnose(signs):
    words = {"synchronises": signs["items"] > 10, "copies": signs["copying"] > 0.3, "tiny": signs["idle"] > 0.3}
    return next((word for word, true in words.items() if true), "healthy")


def accuracy(model, batches):
    hits = []
    with torch.inference_mode():
        for x, y in batches:
            hits.append(model(x).max(dim=-1).indices.eq(y))
    return torch.cat(hits).float().mean().item()
""",
    "with tools of others": """
from fractions import Fraction

import numpy as np
import torch


def operation_seconds(flops, nbytes, peak, bandwidth, launch):
    seconds = np.array([flops / peak, nbytes / bandwidth, launch])
    return seconds[:2].max() + seconds[2], ("compute", "memory", "launch")[int(seconds.argmax())]


def block_flops(batch, length, width, inner, kv_width, gated, convention):
    half = Fraction(1, 2) if convention == "causal half" else 1
    tokens = 2 * batch * length
    attention = int(half * tokens * length * width)
    narrow, square = tokens * width * kv_width, tokens * width**2
    mlp = tokens * width * inner * (2 + bool(gated))
    keys = ("q", "k", "v", "scores", "values", "out", "mlp")
    return dict(zip(keys, (square, narrow, narrow, attention, attention, square, mlp)))


def self_times(events):
    own, stacks = {}, {}

    def close(stack, until):
        while stack and stack[-1][1] <= until + 0.005:
            stack.pop()

    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (round(e["ts"], 3), -e["dur"])):
        stack = stacks.setdefault((event["pid"], event["tid"]), [])
        close(stack, event["ts"])
        if stack:
            own[stack[-1][0]] -= event["dur"]
        own[event["name"]] = own.get(event["name"], 0.0) + event["dur"]
        stack.append((event["name"], event["ts"] + event["dur"]))
    return own


def signs(events):
    complete = [e for e in events if e["ph"] == "X"]
    (step,) = [e for e in complete if (e["name"], e["cat"]) == ("step", "user_annotation")]
    at = np.array([e["ts"] - step["ts"] for e in complete])
    within = (at >= 0) & (at < step["dur"])
    thread = np.array([e["pid"] == step["pid"] and e["tid"] == step["tid"] for e in complete])
    name, category = (np.array([str(e[key]) for e in complete]) for key in ("name", "cat"))
    length = np.array([e["dur"] for e in complete])
    works = within & (category == "kernel")
    if not works.any():
        works = within & thread & np.char.startswith(name, "aten::")
    marks = sorted([(start, 1) for start in at[works]] + [(end, -1) for end in (at + length)[works]])
    running, idle, last = 0, 0.0, 0.0
    for moment, change in [*marks, (step["dur"], 0)]:
        idle += (moment - last) * (running == 0)
        running, last = running + change, moment
    return {
        "items": int((within & thread & (name == "aten::item")).sum()),
        "copying": float(length[within & thread & (name == "aten::copy_")].sum() / step["dur"]),
        "idle": idle / step["dur"],
    }


def diagnose(signs):
    if signs["items"] >= 11:
        return "synchronises"
    elif signs["copying"] > 0.3:
        return "copies"
    elif signs["idle"] > 0.3:
        return "tiny"
    else:
        return "healthy"


@torch.no_grad()
def accuracy(model, batches):
    labels = torch.cat([y for _, y in batches])
    guesses = torch.cat([torch.topk(model(x), 1).indices.squeeze(1) for x, _ in batches])
    return 1 - (guesses - labels).count_nonzero().item() / labels.numel()
""",
}
