# %% [markdown] name="title"
# # Token data: packed, sharded, and resumed
#
# **A language model reads one long file of tokens. Reading it, masking attention between documents, dividing blocks among ranks, and resuming a run can all go wrong without an error.**
#
# | | |
# |---|---|
# | After this you can | read tokens from a mapped file and count the bytes that this reads from disk; pack documents with their end-of-document tokens, and keep them apart with masks and positions; share an epoch's blocks among ranks and workers; stop in the middle of an epoch and continue with the very next batch |
# | Time | 95 to 110 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU (for worker processes) |
# | Before this | [[data_loading]] |
# | Syllabus | T33 |

# %% name="setup" setup=true
import mmap
import pickle
import tempfile
import time
import warnings
from pathlib import Path
from pydoc_data.topics import topics  # Python's own manual, as a dictionary of texts

from helpers import (
    PickledByValue,
    PickledStream,
    Prediction,
    TokenFile,
    check,
    explore,
    hint,
    human_bytes,
    padded_and_packed,
    script_as_notebook,
    show,
    show_table,
    sign_of_life,
)

# %% name="setup_torch" setup=true
import numpy as np
import psutil
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

# %% name="machine"
script_as_notebook()  # run as a plain script, this lab starts processes as a notebook does
warnings.filterwarnings("ignore", message="This DataLoader will create")  # it counts cores; these workers only read
start_method = torch.multiprocessing.get_start_method()
print(f"device: cpu, torch {torch.__version__}; workers start by {start_method!r}")

# %% [markdown] name="tokens_text"
# ## 1 · Tokens in a mapped file
#
# Tokens do not have to be decoded at load time. They are prepared once and concatenated in one file. Here a token takes two bytes, which is enough for 65,536 different tokens. (Llama 3 has 128,256, so its tokens take four bytes.) A real token file is often far larger than memory, so it is **mapped** (`np.memmap`): it looks like an array, and the system reads a page from the disk when the program accesses it.
#
# The documents here are the paragraphs of Python's own manual, with each byte as a token, repeated many times.

# %% name="tokens"
folder = tempfile.TemporaryDirectory()
paragraphs = [p.encode() for topic in topics.values() for p in topic.split("\n\n") if p.strip()]
tokens = TokenFile.write(Path(folder.name) / "manual.bin", paragraphs, copies=70)
before = psutil.Process().memory_info().rss
tokens.forget()  # none of the file is in memory now; it is mapped anew
grown = psutil.Process().memory_info().rss - before
print(f"{len(tokens):,} documents, {len(tokens.tokens):,} tokens, a file of {human_bytes(tokens.tokens.nbytes)}")
print(f"mapped, and {grown / 2**20:.1f} MiB of it resident in this process")
print(f"a document has {len(tokens.tokens) / len(tokens):.0f} tokens on average; this is one:")
print(bytes(tokens[777].tolist()).decode().rstrip())

# %% [markdown] name="resident_text"
# **Predict.** Read 512 tokens (1 KiB) from each of 256 random places: 256 KiB of data. How many MiB does the system read from the disk?

# %% name="guess_resident"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = 256 * 8 / 1024  # each touches one or two pages of 4 KiB
### END GUESS
disk_guess = Prediction("Read from the disk by 256 random reads of 1 KiB", my_guess, "MiB")


# %% name="resident"
def used():
    """Return the bytes resident in this process, and those it has read from the disk (None where not counted)."""
    process = psutil.Process()
    from_disk = process.io_counters().read_bytes if hasattr(process, "io_counters") else None
    return process.memory_info().rss, from_disk


def read(starts, length=512, advice=None):
    """Read `length` tokens from each of `starts`; return µs per read, and MiB: used, resident and from the disk."""
    tokens.forget()
    if advice is not None:
        tokens.tokens._mmap.madvise(advice)
    before, start = used(), time.perf_counter()
    for at in starts:
        tokens.tokens[at : at + length].sum()
    seconds = time.perf_counter() - start
    grown = (None if then is None else (now - then) / 2**20 for now, then in zip(used(), before, strict=True))
    return 1e6 * seconds / len(starts), len(starts) * length / 2**19, *grown


places = np.random.default_rng(0).integers(0, len(tokens.tokens) - 512, 256)
patterns = {"sequential": read(range(0, 256 * 512, 512)), "random": read(places)}
if hasattr(mmap, "MADV_RANDOM"):
    patterns["random, advised"] = read(places, advice=mmap.MADV_RANDOM)
blocks = np.random.default_rng(0).permutation(len(tokens.tokens) >> 19)[:16]
patterns["random MiB"] = read(blocks << 19, 2**19)
for name, (microseconds, need, resident, from_disk) in patterns.items():
    disk = "not counted here" if from_disk is None else f"{from_disk:6.1f} MiB"
    print(
        f"{name:16} {need:5.2f} MiB used, {resident:5.1f} resident, from the disk {disk}; {microseconds:.1f} µs per read"
    )
if patterns["random"][3]:
    disk_guess.reveal(patterns["random"][3])
else:
    print("This system does not count what a process reads from the disk.")

# %% name="read_ahead"
windows = sorted({int(file.read_text()) for file in Path("/sys/block").glob("*/queue/read_ahead_kb")})
print(f"no figure above can exceed the size of the file: {human_bytes(tokens.tokens.nbytes)}")
print(f"read-ahead of this machine's disks, in KiB: {', '.join(map(str, windows)) or 'not listed here'}")
array, file = (len(pickle.dumps(each)) for each in (tokens.tokens[: 10**6], TokenFile(tokens.path, tokens.starts[:2])))
print(f"pickled: a mapped array of a million tokens {human_bytes(array)}, a TokenFile with one document {file} bytes")

# %% [markdown] name="resident_explained"
# A mapping itself uses no memory. Accesses do, and they cost more than the bytes you read, in two ways:
#
# - **On the disk.** The system expects sequential access and, on a miss, reads a window around the missing page, usually 128 KiB, on some systems megabytes (`/sys/block/*/queue/read_ahead_kb`). On a machine with several disks, the file is on one of them, so only one of the printed sizes applies. The resident size does not show this.
# - **In the process.** Linux maps up to 16 *cached* pages, 64 KiB, around each access (fault-around). That increases the resident size, not the disk traffic.
#
# `madvise(MADV_RANDOM)` turns read-ahead off, and the disk reads only the pages that the program touches. Compare *used* with *from the disk* in each line, but keep the size of the file in mind: a figure that reaches it means that the whole file was read, and tells you nothing further about read-ahead.
#
# - With a read-ahead of megabytes, even random reads of 1 MiB make the disk read several times as many bytes as are used, because each read is followed by one somewhere else.
# - Sequential reads use everything that was read ahead, except at the end: the reads stop after 0.25 MiB, and data read ahead beyond that point counts, too. A longer sequential read would use it.
#
# Read-ahead pays off when a read continues where the last one ended, or is much longer than the read-ahead.
#
# - The pages are in the system's **page cache**. All workers that map the file share them, and the system drops them when memory is short. A monitor that adds up `RSS` counts them once per process.
# - Training needs a random order. So shuffle large parts (shards, or blocks longer than the read-ahead), read each part sequentially, and shuffle its documents in memory. Or call `madvise`: then the system reads only the pages of each training row, even if rows are read one by one in random order.
# - A mapped array is pickled with all its data (the last line above). `TokenFile` sends workers its path instead, and maps the file there.
#
# ## 2 · Documents in rows
#
# A model needs rows of equal length, but documents come in all lengths. The simplest method is **padding**: one row per document.
#
# Documents longer than a row are truncated.

# %% name="lengths"
ROW = 512
lengths = np.diff(tokens.starts[: len(paragraphs) + 1])
longer = lengths > ROW
print(f"{longer.mean():.1%} of the documents are longer than {ROW} tokens; the longest has {lengths.max():,}")

# %% [markdown] name="lost_text"
# From this line and the mean length in section 1 you can estimate the loss, but not compute it: how long are the long documents?
#
# **Predict.** What share of all tokens is lost to truncation, in rows of 512?

# %% name="guess_padding"
my_guess = None  # %
### BEGIN GUESS
my_guess = 2  # the mean is a third of a row
### END GUESS
lost_guess = Prediction("Tokens lost by truncation", my_guess, "%")

# %% name="padding"
padded = 1 - np.minimum(lengths, ROW).mean() / ROW
lost = 1 - np.minimum(lengths, ROW).sum() / lengths.sum()
lost_guess.reveal(100 * lost)
print(f"{padded:.0%} of the tokens in rows are padding; by the mean length it would be {1 - lengths.mean() / ROW:.0%}")
print(
    f"mean length {lengths.mean():.0f}, median {np.median(lengths):.0f}; of the long ones {lengths[longer].mean():.0f}"
)

# %% [markdown] name="pack_task"
# ### Your turn: packing
#
# Most of the work is wasted. (The share of padding is larger than the mean length suggests, because a few long documents raise the mean and are truncated.) **Packing** concatenates documents and cuts rows from the result, so that only the last row needs padding. A token must not attend to another document, and its target must not come from another document.
#
# Each document that `pack` receives already ends with an **end-of-document token**. Without it, no target would ever teach the model to stop.
#
# **Contract.** `pack(documents, length)` takes a list of documents, each (T,) of int64 with T ≥ 1, and returns four tensors (rows, `length`) of int64. Any token, including 0, may occur any number of times. The inputs are not changed.
#
# - `ids`: the tokens of all documents in order, cut into rows of `length` tokens. Only the end of the last row is padded, with 0.
# - `targets`: for each token, the next one *of its document*, even if that is in the next row; -100 for the last token of a document, and for padding.
# - `positions`: for each token, how many tokens of its document come before it *in the row*; 0 for padding.
# - `document`: for each token, the index of its document in the list; -1 for padding.
#
# `document_mask(document)` returns a mask (rows, 1, length, length) of bool, in the form that `F.scaled_dot_product_attention` expects. At [r, 0, i, j] it is True where token i may attend to token j: j belongs to the same document and does not come after i. Treat padding as one document, so that no query row is fully masked.


# %% name="pack" answer=true reveal=true
def pack(documents, length):
    ### BEGIN SOLUTION
    lengths = torch.tensor([len(document) for document in documents])
    ends = lengths.cumsum(0)
    ids = torch.cat(documents)
    targets = ids.roll(-1)
    targets[ends - 1] = -100
    document = torch.repeat_interleave(lengths)  # 0, 0, 0, 1, 1, ...
    place = torch.arange(len(ids))
    positions = place - torch.maximum((ends - lengths)[document], place // length * length)

    def rows(tensor, filler):
        return F.pad(tensor, (0, -len(tensor) % length), value=filler).view(-1, length)

    return rows(ids, 0), rows(targets, -100), rows(positions, 0), rows(document, -1)
    ### END SOLUTION


def document_mask(document):
    ### BEGIN SOLUTION
    same = document[:, :, None] == document[:, None, :]  # (rows, from, to)
    return same.tril()[:, None]
    ### END SOLUTION


# %% name="pack_check"
pack, document_mask = check("tokens.pack", pack, document_mask)

# %% name="pack_hint"
hint("tokens.pack")

# %% [markdown] name="crossing_text"
# Many training runs pack and keep the plain causal mask: a token attends to everything before it in its row.
#
# **Predict.** In rows of 512 packed with these documents, what share of the attended pairs crosses documents?

# %% name="guess_crossing"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * (1 - len(tokens.tokens) / len(tokens) / 512)  # three documents per row: two of three pairs cross
### END GUESS
crossing_guess = Prediction("Attended pairs across documents under a causal mask", my_guess, "%")

# %% name="crossing"
END = 256  # the end-of-document token: bytes are 0 to 255
ids, targets, positions, document = pack([F.pad(tokens[k], (0, 1), value=END) for k in range(400)], ROW)
mask = document_mask(document)
causal = torch.ones(ROW, ROW, dtype=torch.bool).tril()
crossing = (1 - mask.sum() / (causal.sum() * len(ids))).item()
crossing_guess.reveal(100 * crossing)
print(f"{len(ids)} rows; padding {(document < 0).float().mean():.1%} of the tokens; one document per row: {padded:.0%}")
print(f"targets that are the end-of-document token: {(targets == END).sum()} for 400 documents")

# %% name="rows_picture"
show(
    padded_and_packed(lengths[:400], document[:12]),
    "Left, twelve rows with one document each, mostly padding. Right, twelve full rows of concatenated documents.",
)

# %% name="mask_picture"
figure = Figure(figsize=(7.5, 3.8), layout="constrained")
pictures = {"Causal mask": causal, "Document mask, first row": mask[0, 0]}
for axes, (name, picture) in zip(figure.subplots(1, 2), pictures.items(), strict=True):
    axes.imshow(picture, cmap="Blues", interpolation="nearest")
    axes.set(title=name, xlabel="attends to token", ylabel="token")
show(figure, "A causal mask is one full triangle. The document mask is a chain of small triangles along the diagonal.")

# %% [markdown] name="apart_text"
# More than half. With documents of equal length, the share would be even larger: 1 − mean length / 512. But a long document contains many pairs of its own tokens.
#
# Does the mask work? Test equivalence: with it, each document in its row must get the attention output that it would get alone. The cell uses one head on random embeddings, for every document of the first eight rows, with two kinds of positions: learned embeddings, which are added, and rotary positions, which rotate queries and keys.

# %% name="apart"
torch.manual_seed(0)
embedding, places = torch.randn(END + 1, 32), torch.randn(ROW, 32)
frequencies = torch.logspace(0, -2, 16)


def rotary(x, positions):
    """Rotate each pair of numbers of x (rows, T, 32) by an angle that grows with the position."""
    turn = torch.polar(torch.ones(()), positions[..., None] * frequencies)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (16, 2))) * turn).flatten(-2)


def attended(kind, ids, positions, mask):
    """Send tokens (rows, T) through one head of attention; return (rows, T, 32)."""
    values = embedding[ids] + (places[positions] if kind == "learned" else 0)
    x = values if kind == "learned" else rotary(values, positions)
    return F.scaled_dot_product_attention(x[:, None], x[:, None], values[:, None], attn_mask=mask)[:, 0]


pieces = [(r, document[r] == k) for r in range(8) for k in document[r].unique()]
run_on = torch.arange(ROW).expand(8, ROW)
for kind in ("learned", "rotary"):
    own = [(ids[r, p][None], torch.arange(p.sum())[None], causal[: p.sum(), : p.sum()]) for r, p in pieces]
    lone = [attended(kind, *each)[0] for each in own]
    for name, where, may in (
        ("document mask, positions that restart", positions[:8], mask[:8]),
        ("document mask, positions that run on", run_on, mask[:8]),
        ("causal mask, positions that restart", positions[:8], causal),
    ):
        rows = attended(kind, ids[:8], where, may)
        off = max((rows[r, p] - o).abs().max() for (r, p), o in zip(pieces, lone, strict=True))
        print(f"{kind:8} {name:38} off by {off:.1e}")

# %% [markdown] name="pack_explained"
# With the document mask, each document gets the output that it would get alone. Learned position embeddings must also restart with each document. Rotary positions need no restart: attention depends on their differences only, and letting them run on costs only rounding error. The mask also saves work if the kernel skips what is masked, because most of the mask is empty.
#
# ### PyTorch's own versions
#
# A dense mask of `length`² entries is itself a cost, and a fused attention kernel that is given such a mask does not skip the masked blocks.
#
# - *FlexAttention* takes the comparison as a function and skips blocks in which everything is masked: `create_block_mask(lambda b, h, i, j: (document[b, i] == document[b, j]) & (i >= j), ...)`. To be fast it must be compiled (`torch.compile`), on a GPU or a CPU.
# - *Variable-length attention* (`torch.nn.attention.varlen`, flash-attention's `varlen` functions) takes, instead of a mask, the offsets at which documents start: their cumulative lengths.
#
# You can count the blocks here: a block of 64 × 64 has to be computed if the mask is True anywhere in it.
#
# **Predict.** The document mask drops more than half of the pairs that a causal mask allows. Of the blocks that a causal mask needs, what share does it still need?

# %% name="guess_blocks"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * (mask.sum() / (causal.sum() * len(mask))).item()  # the share of pairs
### END GUESS
blocks_guess = Prediction("Blocks left, of those of a causal mask", my_guess, "%")

# %% name="blocks"
of_blocks = mask[:, 0].unflatten(2, (-1, 64)).unflatten(1, (-1, 64)).any(4).any(2)  # (rows, 8, 8)
under_causal = causal.unflatten(1, (-1, 64)).unflatten(0, (-1, 64)).any(3).any(1)
share_of_blocks = (of_blocks.float().mean() / under_causal.float().mean()).item()
blocks_guess.reveal(100 * share_of_blocks)
print(f"{of_blocks.float().mean():.0%} of all blocks; a causal mask leaves {under_causal.float().mean():.0%}")

# %% [markdown] name="shard_text"
# The saving is smaller than the share of pairs suggests: a block counts in full even if a document covers only a corner of it, and most documents here are shorter than two blocks.
#
# ## 3 · Ranks and workers share the file
#
# As section 1 explained, shuffle large parts and read each sequentially. Here a part is a **block** of 64 rows: one batch, and 64 KiB of the file. (That is small, because the file is small. In a file of many GB, use blocks of several megabytes, so that they are longer than the read-ahead.) A data set that streams blocks, and is not indexed, is an `IterableDataset`: it has no length and no sampler, only `__iter__`.
#
# **Predict.** Such a data set yields 12 blocks. A `DataLoader` with 3 workers iterates over it. How many blocks does the loop receive?

# %% name="guess_streamed"
my_guess = None  # blocks
### BEGIN GUESS
my_guess = 12  # each comes from one worker
### END GUESS
streamed_guess = Prediction("Blocks that the loop receives", my_guess, "blocks")


# %% name="streamed"
class Naive(IterableDataset):
    def __iter__(self):
        return iter(range(12))


streamed = list(DataLoader(PickledStream(Naive()), None, num_workers=3))
streamed_guess.reveal(len(streamed))
print(streamed)

# %% [markdown] name="shard_task"
# Each worker has a copy of the data set and iterates over all of it. With several ranks (processes that train together, one per GPU), so does every worker of each rank. No error is raised: the model trains on every block many times, and each epoch takes that many times as long. The data set itself has to find out which worker (`get_worker_info()`) of which rank it belongs to, and skip the blocks of the others.
#
# ### Your turn: which blocks are mine?
#
# **Contract.** `share(blocks, seed, epoch, rank, ranks, worker, workers)` returns the list of block numbers that this worker of this rank reads in this epoch, in the order in which it reads them. Blocks are numbered from 0 to `blocks` − 1, ranks from 0 to `ranks` − 1, and the workers of each rank from 0 to `workers` − 1.
#
# - **Once.** No block is read twice in an epoch.
# - **Equal shares.** The workers of each rank together read `blocks // ranks` blocks. No rank reads the remainder, fewer than `ranks` blocks, in this epoch. A rank with one batch more than the others would wait for their gradients until a timeout ends the run: by default after 10 minutes with NCCL, 30 with gloo ([[when_ranks_go_wrong]]).
# - **In turn.** `DataLoader` delivers one block from worker 0, then one from worker 1, and so on, and skips a worker that has finished. Deal the blocks to the workers so that the loop of a rank receives the same blocks in the same order, for any number of workers.
# - **One order.** The order of the blocks depends only on `seed` and `epoch`, not on the process that calls `share`. It is shuffled, and different for each epoch and each seed. The global generators of PyTorch, NumPy and Python are neither used nor seeded.


# %% name="shard" answer=true reveal=true
def share(blocks, seed, epoch, rank, ranks, worker, workers):
    ### BEGIN SOLUTION
    order = np.random.default_rng([seed, epoch]).permutation(blocks).tolist()
    steps = blocks // ranks
    mine = order[rank : steps * ranks : ranks]
    return mine[worker::workers]
    ### END SOLUTION


# %% name="shard_check"
share = check("tokens.shard", share)

# %% name="shard_hint"
hint("tokens.shard")

# %% [markdown] name="sharded_text"
# The next cell builds the data set that uses `share`. Two ranks, each with three workers, share the first 100 blocks of the file; this notebook runs one rank after the other.


# %% name="sharded"
class Blocks(IterableDataset):
    """Yields (number, rows) of this worker's blocks; rows (64, ROW) of int64."""

    def __init__(self, tokens, count, rank, ranks):
        self.tokens, self.count, self.rank, self.ranks, self.epoch = tokens, count, rank, ranks, 0

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for block in share(self.count, 0, self.epoch, self.rank, self.ranks, worker, workers):
            flat = self.tokens.tokens[block * 64 * ROW : (block + 1) * 64 * ROW]  # sequential
            yield block, torch.from_numpy(flat.astype(np.int64)).view(64, ROW)


def received(workers, ranks=2):
    """Return the block numbers that the loop of each rank receives."""
    data = (PickledStream(Blocks(tokens, 100, rank, ranks)) for rank in range(ranks))
    return [[block for block, rows in DataLoader(each, None, num_workers=workers)] for each in data]


with sign_of_life("two ranks, with and without workers"):
    crew, alone = received(3), received(0)
print(f"blocks per rank: {[len(of) for of in crew]}, different ones: {len(set(crew[0]) | set(crew[1]))} of 100")
print(f"with 3 workers as with none: {crew == alone}; rank 0 begins with {crew[0][:6]}")
print(f"read by both ranks: {len(set(crew[0]) & set(crew[1]))}")

# %% [markdown] name="stale_text"
# The data set has to know the epoch. The next cell assigns `data.epoch` before each of two epochs, with workers that stay and with workers that are restarted.

# %% name="stale"
for stay in (True, False):
    data, orders = Blocks(tokens, 100, 0, 2), []
    loader = DataLoader(PickledStream(data), None, num_workers=1, persistent_workers=stay)
    for epoch in range(2):
        data.epoch = epoch
        orders.append([block for block, rows in loader])
    print(f"persistent_workers={stay}: the second epoch has the order of the first: {orders[0] == orders[1]}")

# %% [markdown] name="sharded_explained"
# - **Workers that stay keep the copy** of the data set that they were started with, and never see the new number. In that case, count epochs inside `__iter__`, or put the number into shared memory (`torch.zeros(1).share_memory_()`).
# - **An indexed data set** is simpler to share: `DistributedSampler` deals *indices* to the ranks in the main process, and workers get what their rank's sampler hands out. By default it repeats samples to make the shares equal; `drop_last=True` leaves out the remainder, as `share` does.
# - **Libraries do this for you**: Hugging Face's `datasets` with `split_dataset_by_node`, and MosaicML's `StreamingDataset`, which also keeps the order when the number of ranks changes. In [[runs_that_survive]] you implement such an order.
# - **Shuffling** is coarse here: the 64 rows of a block stay together. Large training runs shuffle the documents once, before the file is written.
#
# ## 4 · Stop in the middle of an epoch, and continue
#
# Sooner or later a long run is interrupted, and rarely between epochs. Parameters and optimizer state are saved. The data must also resume with the very next batch: none repeated, none skipped.
#
# A sampler in the main process draws the order. Is it enough to save how many batches the sampler has handed out? The next cell counts them with 2 workers and `prefetch_factor=2`, after the loop has received 5 batches.


# %% name="handed"
class Counted(list):
    """Batches of indices that count how many were handed out."""

    handed_out = 0

    def __iter__(self):
        for batch in super().__iter__():
            self.handed_out += 1
            yield batch


sampler = Counted(torch.arange(200).view(20, 10).tolist())
batches = iter(DataLoader(range(200), batch_sampler=sampler, num_workers=2, prefetch_factor=2))
for _ in range(5):
    next(batches)
print(f"the loop has received 5 batches; the sampler has handed out {sampler.handed_out}")
del batches

# %% [markdown] name="resume_task"
# ### Your turn: a loader that remembers its place
#
# If you save the sampler's count, you lose the batches in flight: the loop never receives them.
#
# **Contract.** `ResumableLoader(dataset, batch_size, seed, workers=0)` is a loader for many epochs.
#
# - `for batch in loader` runs through an epoch: each sample once, in batches of `batch_size` as `DataLoader` collates them, the last one smaller. `workers` worker processes read the samples. Their number does not change the batches.
# - The order depends only on `seed` and the epoch number, not on `torch.manual_seed`. It is new in each epoch, and different for each seed. The loader does not seed the global generators of PyTorch, NumPy or Python, because code that draws from them would then repeat its numbers in each epoch.
# - `state_dict()` may be called before the first batch, or in the loop after any batch, including the last one of an epoch. It returns a small dictionary of plain numbers: `json.dumps` writes it in at most 200 characters, however large the data set, and `load_state_dict` accepts what `json.loads` returns. Later batches do not change a saved state.
# - After `load_state_dict(state)` a new loader, made with any seed and any number of workers, continues with the next batch of the interrupted epoch, and then with the next epochs. The same epoch may be interrupted again.
# - Prefetched but undelivered batches do not count as consumed.
# - If the state was saved at the last batch of an epoch, the resumed loader may first run an epoch without batches. What a second `for` does after a `break` is up to you.
# - Resuming an epoch reads none of the samples that the loop has already received.


# %% name="resume" answer=true reveal=true
class ResumableLoader:
    def __init__(self, dataset, batch_size, seed, workers=0):
        ### BEGIN SOLUTION
        self.dataset, self.batch_size, self.workers = dataset, batch_size, workers
        self.load_state_dict({"seed": seed, "epoch": 0, "had": 0})
        ### END SOLUTION

    def __iter__(self):
        ### BEGIN SOLUTION
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.dataset)).tolist()
        rest = range(self.had * self.batch_size, len(order), self.batch_size)
        left = [order[start : start + self.batch_size] for start in rest]
        for batch in DataLoader(self.dataset, batch_sampler=left, num_workers=self.workers):
            self.had += 1  # the loop has it now, and may save
            yield batch
        self.epoch, self.had = self.epoch + 1, 0
        ### END SOLUTION

    def state_dict(self):
        ### BEGIN SOLUTION
        return {"seed": self.seed, "epoch": self.epoch, "had": self.had}
        ### END SOLUTION

    def load_state_dict(self, state):
        ### BEGIN SOLUTION
        self.seed, self.epoch, self.had = state["seed"], state["epoch"], state["had"]
        ### END SOLUTION


# %% name="resume_check"
ResumableLoader = check("tokens.resume", ResumableLoader)

# %% name="resume_hint"
hint("tokens.resume")

# %% [markdown] name="resumed_text"
# The next cell does this with rows of the mapped file: it stops after three of seven batches, with workers before the stop and without them afterward.


# %% name="resumed"
class Rows(Dataset):
    """Row r is the ROW tokens from place r * ROW on."""

    def __init__(self, tokens, count):
        self.tokens, self.count = tokens, count

    def __len__(self):
        return self.count

    def __getitem__(self, r):
        return torch.from_numpy(self.tokens.tokens[r * ROW : (r + 1) * ROW].astype(np.int64))


rows = PickledByValue(Rows(tokens, 200))
whole = list(ResumableLoader(rows, 32, seed=1))
broken = ResumableLoader(rows, 32, seed=1, workers=2)
head = [batch for _, batch in zip(range(3), broken, strict=False)]
state = broken.state_dict()
later = ResumableLoader(rows, 32, seed=99)
later.load_state_dict(state)
both = list(zip(head + list(later), whole, strict=True))
same = all(torch.equal(got, due) for got, due in both)
print(
    f"state {state}; {len(head)} batches and then {len(both) - len(head)}: all as they would be without the interruption: {same}"
)

# %% [markdown] name="resume_explained"
# With workers the batches are the same ones, in the same order, as [[data_loading]] promised.
#
# - **The state leaves out** the random numbers of augmentations. They are the same after an interruption only if they depend on the sample, not on the process that draws them or on the time: use a generator seeded with (seed, epoch, index).
# - **A stream** (section 3) resumes in the same way: save the number of blocks that the loop has received, and skip that many at the start of each rank's share, without reading them.
# - **On several ranks** each rank saves one state. If the number of ranks changes, no rank's count fits: count the samples of all ranks. In [[runs_that_survive]] you implement an order that does not depend on the ranks.
# - **A ready-made version** is `StatefulDataLoader` from the `torchdata` package: a `DataLoader` with `state_dict` and `load_state_dict`, which counts delivered batches, as `ResumableLoader` does. Streaming data sets add a state of their own.
#
# ## 5 · Explore
#
# The picture is the document mask of the first row, by blocks: dark where the kernel computes pairs that count, light where it computes pairs that do not count, white where it can skip the block.
#
# **Predict.** Rows get four times as long: 2,048 tokens, in blocks of 64. Of the blocks that a causal mask needs, what share does the document mask still need?

# %% name="guess_longer"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * share_of_blocks  # as in rows of 512: the documents are the same
### END GUESS
longer_guess = Prediction("Blocks left in rows of 2,048", my_guess, "%")


# %% name="play"
few = [F.pad(tokens[k], (0, 1), value=END) for k in range(120)]


def needed(row_length, block):
    """Return the mask of the first row, and of the blocks of a causal mask the share that documents need."""
    pairs = document_mask(pack(few, row_length)[3])[:, 0]  # (rows, from, to)
    tiles = pairs.unflatten(2, (-1, block)).unflatten(1, (-1, block)).any(4).any(2)
    count = row_length // block
    return pairs[0], tiles[0], (tiles.sum() / (len(pairs) * count * (count + 1) / 2)).item()


def draw(row_length, block):
    pairs, tiles, left = needed(row_length, block)
    whole = tiles.repeat_interleave(block, 0).repeat_interleave(block, 1)
    figure = Figure(figsize=(4.6, 4.4), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(0.3 * whole + 0.7 * pairs, cmap="Blues", interpolation="nearest", vmin=0, vmax=1)
    axes.set(title=f"{left:.0%} of a causal mask's blocks", xlabel="attends to token", ylabel="token")
    return figure


explore(
    draw,
    "A document mask by blocks: dark triangles along the diagonal, in light blocks that are computed in full.",
    row_length=(512, (256, 512, 1024, 2048)),
    block=(64, (16, 32, 64, 128)),
)

# %% name="play_answer"
longer_guess.reveal(100 * needed(2048, 64)[2])
table = [("row length", *(f"blocks of {block}" for block in (16, 64, 128)))]
for row_length in (256, 512, 1024, 2048):
    table.append((f"{row_length:,}", *(f"{needed(row_length, block)[2]:.0%}" for block in (16, 64, 128))))
show_table(table)

# %% [markdown] name="play_explained"
# The documents do not get longer, so the number of blocks that they need along the diagonal grows with the row's length. The number of blocks in the causal mask grows with its square. So in long rows, skipping blocks saves much more, and small blocks help much more; but small blocks make poor use of a GPU's tensor cores.
#
# ## 6 · Before and after

# %% name="summary"
disk = {name: seen[3] for name, seen in patterns.items()}
advised = disk.get("random, advised")
table = [("", "before", "after")]
if disk["random"] and advised is not None:
    table.append(("MiB read for 0.25 MiB at random places: plain, advised", f"{disk['random']:.1f}", f"{advised:.1f}"))
across = (mask[:, 0] & (document[:, :, None] != document[:, None, :])).sum() / mask.sum()
table += [
    ("tokens that are padding: padded, packed", f"{padded:.0%}", f"{(document < 0).float().mean():.1%}"),
    ("pairs across documents: causal, document mask", f"{crossing:.0%}", f"{across:.0%}"),
    ("blocks that a kernel computes: causal, document mask", "100%", f"{share_of_blocks:.0%}"),
    (
        "copies of each block delivered by 3 workers: naive, share",
        f"{len(streamed) / 12:.0f}",
        f"{len(crew[0]) / len(set(crew[0])):.0f}",
    ),
    (
        "batches lost on resuming: by the sampler's count, by the loop's",
        f"{sampler.handed_out - 5}",
        f"{len(whole) - len(both)}",
    ),
]
show_table(table)

# %% [markdown] name="recap"
# ## Recap
#
# - A mapped file costs memory and disk traffic only where it is read. A random read also costs its read-ahead: count `read_bytes`. `madvise` turns read-ahead off; sequential reads put it to use.
# - Pack documents that end with an end-of-document token. The targets stop at a document's end, and a mask keeps attention inside each document.
# - Learned positions restart with each document; rotary positions need not.
# - A kernel skips whole blocks of a mask, not single pairs. The longer the rows, the more it skips.
# - Every worker of every rank iterates over all of a streamed data set. Give each its share: one order from seed and epoch, equal shares, workers in turn.
# - To continue in the middle of an epoch, save the seed, the epoch, and the *number* of batches that the loop has received.
#
# **What to reach for when.** A corpus larger than memory: one mapped file per shard, read in blocks longer than the read-ahead, or with `madvise`. Rows that are mostly padding: pack them, with `varlen` attention or FlexAttention. Several ranks and an indexed data set: `DistributedSampler` with `drop_last=True` and `set_epoch`; streamed: split by rank and worker yourself, or `split_dataset_by_node`. Long runs: `StatefulDataLoader`.
#
# **Sources.** PyTorch documentation: `torch.utils.data` (`IterableDataset`, `get_worker_info`, `DistributedSampler`), `torch.nn.attention` (FlexAttention, variable-length attention); Python documentation: `mmap`; Linux documentation: `posix_fadvise(2)`, `madvise(2)`, `mmap(2)`; Krell et al. 2021, *Efficient Sequence Packing without Cross-contamination*; Su et al. 2021, *RoFormer* (rotary positions); torchdata documentation: `StatefulDataLoader`; Hugging Face `datasets` documentation: `split_dataset_by_node`; MosaicML Streaming documentation.
