# %% [markdown] name="title"
# # Failures: preempted, killed, slow, wrong
#
# **Checkpoints are half of what a run needs to survive. The run must also notice what went wrong, and on which rank, and continue without human help.**
#
# | | |
# |---|---|
# | After this you can | save when a scheduler preempts the job; restart under `torchrun`, and resume on a different number of ranks; tell from the logs which rank was killed, hung, slow or wrong, and explain what logs cannot show; roll back a loss spike; choose a checkpoint interval, spares and a timeout for thousands of GPUs, and find the faulty node from counters |
# | Time | 105 to 120 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU; ranks are processes that get killed |
# | Before this | [[runs_that_survive]] |
# | Syllabus | T41 |

# %% name="setup" setup=true
import copy
import math
import os
import random
import re
import signal
import statistics
import tempfile
from collections import Counter
from datetime import timedelta

# %% name="setup_helpers" setup=true
from helpers import (
    COLORS,
    Claims,
    Fleet,
    Prediction,
    RankLogWriter,
    break_here,
    check,
    checksum,
    device_name,
    digits,
    explore,
    hint,
    made_counters,
    made_job,
    pick_device,
    rank_lanes,
    read_logs,
    run_ranks,
    show,
    show_table,
    spike_figure,
    torchrun_job,
)
from helpers.exercises.runs_that_survive.built import Checkpoints, DataOrder

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
claims = Claims(device=torch.device("cpu"))  # its ranks talk over gloo on every machine
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}; ranks run on the CPU")

# %% [markdown] name="preempted_text"
# This lab uses the classes `Checkpoints` and `DataOrder` of [[runs_that_survive]].
#
# ## 1 · Preemption: a signal before the kill
#
# Many interruptions are not failures: a scheduler takes the machine back, and warns you first. Cloud spot instances give you 30 seconds to two minutes.
#
# - Slurm sends SIGTERM, and SIGKILL some time later. At the time limit, the delay is `KillWait` (30 seconds by default). For a preemption, it is the partition's `GraceTime` (zero by default).
# - `#SBATCH --signal=TERM@120` signals the job's steps two minutes before the time limit. (With `--signal=B:TERM@120` only the batch script gets the signal, and has to forward it.)
# - `#SBATCH --requeue` lets a preempted job return to the queue. At the time limit the script itself must call `scontrol requeue $SLURM_JOB_ID`.
# - `torchrun` forwards SIGTERM to its ranks and kills them 30 seconds later. Start it with `--shutdown-timeout=110` to use nearly all of the two minutes. If the job may receive SIGUSR1, add `--signals-to-handle=SIGTERM,SIGINT,SIGUSR1`; otherwise that signal kills `torchrun` itself.
#
# So install a handler that only sets a flag. Then finish the step, save, and exit. With several ranks, the signal reaches each rank at a different time, perhaps in a different step. If each rank reacts on its own, one exits while another waits in a collective. So let the ranks agree: add the flag to a collective that runs in every step anyway, the all-reduce of the gradients.
#
# ### Your turn: notice, and agree
#
# **Contract.** `Preemption()` is created on each rank, before training.
#
# - **Notice.** From then on it handles SIGTERM and SIGUSR1 in this process. The handler only notes the signal: it may run between any two lines of the program, even in the middle of a save. It raises nothing and does not exit.
# - `flag()` returns a new tensor (1,) in FP32: 1 if a signal has arrived, else 0. Once it is 1, it stays 1.
# - `agreed(total)` takes the all-reduced sum of all ranks' flags, a tensor with one element. It returns whether the job stops after this step: it does if at least one rank's flag was 1. All ranks make the same decision in the same step, even a rank whose signal arrived *after* it sent its flag.
# - `close()` restores the handlers that the two signals had before.


# %% name="preemption" answer=true reveal=true
class Preemption:
    def __init__(self):
        ### BEGIN SOLUTION
        self.noticed = False
        self.before = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGUSR1)}

    def note(self, number, frame):
        self.noticed = True
        ### END SOLUTION

    def flag(self):
        ### BEGIN SOLUTION
        return torch.tensor([float(self.noticed)])
        ### END SOLUTION

    def agreed(self, total):
        ### BEGIN SOLUTION
        return float(total) > 0
        ### END SOLUTION

    def close(self):
        ### BEGIN SOLUTION
        for number, handler in self.before.items():
            signal.signal(number, handler)
        ### END SOLUTION


# %% name="preemption_check"
Preemption = check("failures.preemption", Preemption)

# %% name="preemption_hint"
hint("failures.preemption")

# %% [markdown] name="preempted_run_text"
# Two ranks train and save after every eighth step. Rank 1 gets SIGTERM in step 13, and the grace period ends after that step.


# %% name="preempted"
def until_preempted(folder, agree):
    """Train on two ranks until SIGTERM, which rank 1 gets in step 13; return the step that was saved, and steps done."""
    notice = Preemption()
    rank, manager, weights, saved = dist.get_rank(), Checkpoints(folder), torch.zeros(4), 0
    for step in range(1, 40):
        if step == 13 and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)  # as a scheduler would, between two steps
        sums = torch.cat([torch.ones(4), notice.flag()])
        dist.all_reduce(sums)  # gradients, and the flag in one more number
        weights += sums[:4]
        stop = agree and notice.agreed(sums[4])
        if stop or step % 8 == 0:
            saved = step
            if rank == 0:
                manager.save(step, {"weights": weights})
            dist.barrier()
        if stop or step == 13:  # without agreement the grace period ends here
            return saved, step
    return saved, step


table = [("", "steps done", "steps saved", "steps lost")]
for name, agree in (("the signal is ignored", False), ("the ranks agree, save and exit", True)):
    with tempfile.TemporaryDirectory() as folder:
        saved, done = run_ranks(until_preempted, 2, folder, agree, device="cpu", measure=False).results[0]
        table.append((name, str(done), str(saved), str(done - saved)))
show_table(table)

# %% [markdown] name="program_text"
# Without the flag the job loses everything since the last periodic checkpoint. With it, the job loses nothing, provided that one step and one save fit into the grace period. Measure both before you rely on it.
#
# On a GPU, the all-reduce may still be running when `agreed` reads its result, so the host waits in every step ([[traces]]). Read the previous step's total instead, or the total of every tenth step.
#
# ## 2 · Restarted by `torchrun`
#
# `torchrun --max-restarts=2` watches its ranks. When one rank fails, `torchrun` stops the others and starts all ranks again, up to two times. It restores no state: after each start, the program itself must look for the newest checkpoint. With `--nnodes=MIN:MAX` it also continues with fewer nodes, or with more when some come back. Then the number of ranks changes between attempts, and the program must cope with that.
#
# Below is a complete program that uses both classes of [[runs_that_survive]]. `break_here` can break a rank in two places: before the all-reduce, and after the update.

# %% name="faults"
data = digits()
images, labels = data.train_x, data.train_y


def small_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))


# %% name="program"
def survive(folder, faults, steps):
    """Train on this rank from the newest checkpoint; `faults` maps (attempt, rank, step) to what breaks."""
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    dist.init_process_group("gloo")
    patience = 5 if "hang" in faults.values() else 60  # seconds; on a busy machine a healthy rank may take long
    group = dist.new_group(timeout=timedelta(seconds=patience))  # after all ranks have started
    rank, ranks = dist.get_rank(), dist.get_world_size()
    writer, manager = RankLogWriter(folder, rank, attempt), Checkpoints(f"{folder}/checkpoints")
    order, begin, losses = DataOrder(len(images), 48, seed=1), 0, []
    model, optimizer = small_model()
    if found := manager.latest():
        begin, state = found
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        order.load_state_dict(state["order"])
    for step in range(begin, steps):
        fault, rows = faults.get((attempt, rank, step)), order.rows(step, rank, ranks)
        loss = F.cross_entropy(model(images[rows]), labels[rows], reduction="sum") / order.batch_size
        loss.backward()
        break_here(fault, "before", model)
        gradient = torch.cat([loss.detach().view(1), *(p.grad.flatten() for p in model.parameters())])
        with writer.call("all_reduce"):
            dist.all_reduce(gradient, group=group)
        losses.append(gradient[0].item())
        nn.utils.vector_to_parameters(gradient[1:], [p.grad for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        break_here(fault, "after", model)
        writer.note("checksum", checksum(model.parameters()))
        if (step + 1) % 8 == 0 and rank == 0:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "order": order.state_dict()}
            manager.save(step + 1, parts)
    if rank == 0:
        done = f"{ranks} rank{'s' * (ranks > 1)}: steps {begin} to {steps}, last loss {losses[-1]:.9g}"
        print(f"attempt {attempt}, {done}, weights {checksum(model.parameters()):08x}")
    dist.barrier()
    dist.destroy_process_group()
    return losses


# %% [markdown] name="restart_text"
# `torchrun` counts attempts from 0. In attempt 0, rank 1 is killed at step 20. In attempt 1, rank 1 hangs at step 27: it never reaches its all-reduce. The all-reduces of this job have a timeout of 5 seconds ([[when_ranks_go_wrong]]).
#
# **Predict.** Which rank does `torchrun` report as the failed one in attempt 1?

# %% name="restart_guess"
my_guess = None  # rank
### BEGIN GUESS
my_guess = 1
### END GUESS
restart_guess = Prediction("Rank that torchrun reports for the hang", my_guess, "", difference=True)

# %% name="restart"
faults = {(0, 1, 20): "kill", (1, 1, 27): "hang"}
with tempfile.TemporaryDirectory() as folder:
    job = torchrun_job(survive, 2, folder, faults, 32, restarts=2)
    attempts = [read_logs(folder, job.exit_codes(attempt, 2), attempt) for attempt in range(3)]
with tempfile.TemporaryDirectory() as folder:
    untouched = torchrun_job(survive, 2, folder, {}, 32)
print(f"killed and hung: {job.printed}\nuninterrupted:   {untouched.printed}")
for exit_code, rank in job.failures:
    print(f"torchrun reports rank {rank}, exit code {exit_code}")
said, subject = "killed and hung: the same bits", "2 ranks, torchrun, 32 steps"
as_staged = [code for code, _ in job.failures] == [-9, 1]  # False if a busy machine made a healthy rank time out
if as_staged:
    restart_guess.reveal(job.failures[1][1])
if job.code == untouched.code == 0 and as_staged:
    done = sum(len(logs[0].checksums) for logs in attempts)
    print(f"rank 0 did {done} steps in three attempts, for a run of 32")
    claims.record("T41", said, subject, float(job.printed[-8:] == untouched.printed[-8:]), "(1: yes)", 1, 1)
else:
    print("This machine is too busy at the moment: a job exceeded its time limit.")
    claims.not_measured("T41", said, f"{subject}; this machine was too busy")

# %% [markdown] name="restart_explained"
# The weights equal those of the uninterrupted run to the last bit. `torchrun` reports the rank that failed *first*. For the kill, that is the right rank. In attempt 1, rank 1 hung and rank 0 timed out waiting for it. (Without a timeout there would be no failure, and so no restart.) The rank that reports the error need not be the rank that caused it.
#
# > **Note:** By default the ranks of a new attempt use the *same* store as those of the previous attempt. They may then read addresses of dead processes, and occasionally fail with "connection refused" (PyTorch issues 135712 and 167288). The helper sets `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, which gives each attempt a new store.
#
# ### With a different number of ranks
#
# Suppose that the broken machine does not come back, or that more machines become available. Below, two ranks train for 16 steps and save a checkpoint. The job then resumes from it, once on two ranks and once on three, and runs to step 32.
#
# A third job loses a node while it runs, under `torchrun --nnodes=1:2`. Two launchers on this machine represent two nodes of one rank each. In step 20 one launcher and its rank get SIGKILL. The other launcher notices that the heartbeats stop, waits five seconds for a replacement, and starts its rank again, alone.
#
# **Predict.** By how much does the last loss on one or three ranks differ from the last loss on two, as a fraction of the loss on two?

# %% name="fewer_guess"
my_guess = None  # 0.01 is 1%
### BEGIN GUESS
my_guess = 0.01  # each rank gets different rows than before
### END GUESS
fewer_guess = Prediction("Last loss on 1 or 3 ranks, relative difference from 2 ranks", my_guess, "", difference=True)


# %% name="fewer"
def on_ranks(ranks, folder, steps, faults=None):
    run = run_ranks(survive, ranks, folder, faults or {}, steps, device="cpu", process_group=False, show=False)
    return run.results[0]


losses = {}
for ranks in (2, 3):
    with tempfile.TemporaryDirectory() as folder:
        on_ranks(2, folder, 16)
        losses[ranks] = on_ranks(ranks, folder, 32)[-1]
    print(f"resumed on {ranks} ranks: last loss {losses[ranks]:.9g}")
with tempfile.TemporaryDirectory() as folder:
    elastic = torchrun_job(survive, 1, folder, {(0, 1, 20): "lose node"}, 32, restarts=2, nodes=2)
print(f"one of two nodes lost: {elastic.printed}")
alone = re.search(r"1 rank: steps 16 .* loss ([\d.]+),", elastic.printed)
said, subject = "resumed on other ranks: same losses", "2 to 1 and 3 ranks"
if elastic.code == 0 and alone:
    losses[1] = float(alone[1])
    furthest = max(abs(losses[ranks] / losses[2] - 1) for ranks in (1, 3))
    fewer_guess.reveal(furthest)
    claims.record("T41", said, subject, furthest, "relative", 0, 1e-4)
else:
    print("This machine is too busy at the moment: the two nodes did not start together.")
    claims.not_measured("T41", said, f"{subject}; this machine was too busy")

# %% [markdown] name="fewer_explained"
# The global batch is the same because `DataOrder` does not depend on the number of ranks. If each rank had kept *its* 24 rows, one rank would have continued with a batch of 24, and the run would have been a different one. Here the same numbers are only summed in another order, so the last bits may differ.
#
# ## 3 · Slow, and wrong
#
# A run can also be broken even though no rank fails. In the next cell, three ranks train for 12 steps, three times. In the first run, rank 2 is slow in every step. In the second, one of rank 1's **weights** is wrong after each update from step 6 on. In the third, one number of rank 1's **gradient** is wrong before each all-reduce from step 6 on. Replicas should be equal to the last bit, so each rank records a checksum of its weights after each step.
#
# **Predict.** With a wrong gradient from step 6 on, in how many of the 12 steps do the ranks' checksums differ?

# %% name="wrong_guess"
my_guess = None  # of 12 steps
### BEGIN GUESS
my_guess = 6
### END GUESS
sum_guess = Prediction("Steps in which checksums differ: wrong gradient", my_guess, "of 12", difference=True)


# %% name="wrong"
def broken(rank, first, fault):
    """Return the logs of three ranks after a job of 12 steps with a fault."""
    with tempfile.TemporaryDirectory() as folder:
        on_ranks(3, folder, 12, {(0, rank, step): fault for step in range(first, 12)})
        return read_logs(folder, {0: 0, 1: 0, 2: 0})


jobs = {"slow": broken(2, 0, "slow"), "wrong weight": broken(1, 6, "wrong weight")}
jobs["wrong gradient"] = broken(1, 6, "wrong gradient")
jobs |= {"killed": attempts[0], "hung": attempts[1]} if as_staged else {}
differ = {
    name: sum(len(set(step)) > 1 for step in zip(*(log.checksums for log in logs), strict=False))
    for name, logs in jobs.items()
}
sum_guess.reveal(differ["wrong gradient"])
print(f"steps in which checksums differ: wrong weight {differ['wrong weight']} of 12")
for rank, log in enumerate(jobs["wrong weight"]):
    print(f"wrong weight, rank {rank}:", " ".join(f"{value:08x}" for value in log.checksums[4:8]))

# %% [markdown] name="wrong_explained"
# A wrong weight shows up at once, and with three ranks the majority identifies the faulty one. (With two ranks you know only that one of them is wrong.) A wrong gradient enters the sum, and every rank gets the same wrong sum. So the replicas agree, but all of them are wrong.
#
# To find such a fault, give all ranks the **same** rows from time to time, and compare their gradients *before* they are summed. Equal bits need repeatable kernels: on a GPU, set `torch.use_deterministic_algorithms(True)` for that step, or compare norms within a tolerance. Under FSDP the ranks hold different shards, so only ranks with the same shard can compare weights. Giving all ranks the same rows still works.


# %% name="same_rows"
def same_rows(faulty):
    model, _ = small_model()
    F.cross_entropy(model(images[:48]), labels[:48]).backward()
    if dist.get_rank() == faulty:
        break_here("wrong gradient", "before", model)
    return checksum(p.grad for p in model.parameters())


found = run_ranks(same_rows, 3, 1, device="cpu", show=False).results
print("the same rows on all ranks, gradients:", " ".join(f"{value:08x}" for value in found))

# %% [markdown] name="diagnosis_task"
# ### Your turn: which rank broke the job?
#
# On 16,384 GPUs you cannot read the logs by hand. Each rank leaves a `RankLog` with three attributes. `exit_code` is its exit code. `calls` lists its collectives, each with the times in seconds at which it was called (`asked`) and at which it returned (`answered`, None if it never did). `checksums` lists the checksums of its weights after each step. (The flight recorder of [[when_ranks_go_wrong]] records the same calls, but over gloo it does not record the times.)
#
# **Contract.** `diagnose(logs)` takes the logs of all ranks, and returns a pair: what happened, and to which rank. It does not change the logs. A job has at least three ranks, or at least two if one was killed or hung.
#
# - `("killed", rank)`: the rank was killed by SIGKILL (exit code −9). The others lose their connection and raise an error (1), or are stopped (−15).
# - `("hung", rank)`: the job broke and no rank was killed. All other ranks wait in a collective that this rank has not called. It may have hung before its first collective.
# - `("wrong", rank)`: from some step on, its weights differ from those of the others.
# - `("slow", rank)`: in most steps, its *working time* is more than 1.5 times that of the median rank. A rank's working time runs from the return of one collective to the call of the next. Long pauses in fewer than half of the steps do not count; the rank may have been writing checkpoints.
# - `("healthy", None)`: none of these. Each job has at most one fault.


# %% name="diagnosis" answer=true reveal=true
def diagnose(logs):
    ### BEGIN SOLUTION
    for rank, log in enumerate(logs):
        if log.exit_code == -9:
            return "killed", rank
    if any(log.exit_code for log in logs):
        waits = [log.calls and log.calls[-1].answered is None for log in logs]
        return "hung", next(rank for rank, wait in enumerate(waits) if not wait)
    for step in zip(*(log.checksums for log in logs), strict=False):
        usual = Counter(step).most_common(1)[0][0]
        for rank, value in enumerate(step):
            if value != usual:
                return "wrong", rank
    working = []
    for log in logs:
        pairs = zip(log.calls, log.calls[1:], strict=False)
        working.append(statistics.median(after.asked - before.answered for before, after in pairs))
    slowest = max(working)
    if slowest > 1.5 * statistics.median(working):
        return "slow", working.index(slowest)
    return "healthy", None
    ### END SOLUTION


# %% name="diagnosis_check"
diagnose = check("failures.diagnosis", diagnose)

# %% name="diagnosis_hint"
hint("failures.diagnosis")

# %% name="diagnosed"
for name, logs in jobs.items():
    print(f"{name:15} diagnosed as {diagnose(logs)}")
for rank, log in enumerate(jobs["slow"]):
    waits = statistics.median(call.answered - call.asked for call in log.calls)
    print(f"slow, rank {rank}: waits {1000 * waits:.0f} ms per step in its all-reduce")

# %% [markdown] name="diagnosed_explained"
# All of these jobs ran in this lab. `diagnose` does not report the job with the wrong gradient as wrong, and no function could: the logs do not contain the fault. (On a busy machine, a rank of that job may really be slow, and `diagnose` reports it.) The slow rank is the one that waits least ([[when_ranks_go_wrong]]).
#
# Jobs over gloo have these exit codes. Over NCCL, the watchdog aborts a rank that waits too long (−6, SIGABRT), and a rank that is stuck waiting for its GPU cannot run a Python handler for SIGTERM, such as yours. `torchrun` then kills that rank (−9). So with NCCL, −9 does not identify the culprit; the flight recorder does ([[when_ranks_go_wrong]]).
#
# ## 4 · Loss spikes
#
# Sometimes the loss jumps, for a few batches or permanently. A spike can come from corrupted batches, from a faulty device, or from an unlucky combination of weights and batch. PaLM's authors saw about twenty spikes. Each time they went back to a checkpoint about 100 steps before the spike and skipped a few hundred batches, and the spike did not return. The batches themselves were not bad: after training from a different checkpoint, the same batches caused no spike.
#
# The spike below comes from corrupted batches, because such a spike can be reproduced. Four batches from step 65 on have wrong labels, and inputs that are too large by a factor of ten. The next cells compare four reactions:
#
# - *carry on*;
# - *clip* the gradient to a norm of 1;
# - *leave out* each update whose gradient norm is more than 4 times the median of the last 20;
# - *roll back*: when the loss is more than 3 times the median of the last 20, return to the last checkpoint and `skip` 8 batches, starting at the spike. (The loss of a language model, near 2, rarely triples. There, use a margin of a few standard deviations.)
#
# **Predict.** After the four bad batches, 111 good ones follow. After 180 steps, by what factor is the test loss higher if you carry on than if you roll back?

# %% name="spike_guess"
my_guess = None  # x; 1 is no difference
### BEGIN GUESS
my_guess = 1.02  # four bad updates of 180
### END GUESS
spike_guess = Prediction("Test loss after 180 steps, carry on / roll back", my_guess, "x")


# %% name="spike"
def unusual(values, times):
    return len(values) > 20 and values[-1] > times * statistics.median(values[-21:-1])


def with_spike(way, bad, steps=180):
    """Train through `bad` poisoned batches; return test losses, Σ v, the steps done, and the bad updates applied."""
    (model, optimizer), order = small_model(), DataOrder(len(images), 48, seed=1)
    poisoned = [order.rows(step, 0, 1) for step in range(65, 65 + bad)]
    step, done, applied, losses, norms, tests, memory = 0, 0, 0, [], [], [], []
    while step < steps:
        if step % 10 == 0:
            kept = step, copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        rows = order.rows(step, 0, 1)
        x, y = (10 * images[rows], 9 - labels[rows]) if rows in poisoned else (images[rows], labels[rows])
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0 if way == "clip" else math.inf).item())
        losses.append(loss.item())
        if way == "roll back" and unusual(losses, 3):
            order.skip(step, 8)
            step, (weights, moments) = kept[0], copy.deepcopy(kept[1])
            model.load_state_dict(weights)
            optimizer.load_state_dict(moments)
            del losses[step:], norms[step:], tests[step:], memory[step:]
            continue
        if not (way == "leave out" and unusual(norms, 4)):
            optimizer.step()
            applied += rows in poisoned
        with torch.no_grad():
            tests.append(F.cross_entropy(model(data.test_x), data.test_y).item())
        memory.append(sum(state["exp_avg_sq"].sum().item() for state in optimizer.state.values()))
        step, done = step + 1, done + 1
    return tests, memory, done, applied


# %% name="spiked"
WAYS = ("carry on", "clip", "leave out", "roll back")


def spiked(bad):
    """Try each reaction to `bad` poisoned batches; print a table, return test losses and the bad updates applied."""
    table = [
        (f"{bad} bad batches", "applied", "test loss before", "worst after", "at the end", "Σ v grows", "steps done")
    ]
    curves, counts = {}, {}
    for way in WAYS:
        curves[way], memory, done, counts[way] = with_spike(way, bad)
        before, worst, end = curves[way][64], max(curves[way][65:]), curves[way][-1]
        grown = max(memory[65:]) / memory[64]
        table.append(
            (way, str(counts[way]), f"{before:.2f}", f"{worst:.2f}", f"{end:.3f}", f"{grown:.0f} x", str(done))
        )
    show_table(table)
    return curves, counts


curves, _ = spiked(bad=4)
worse = curves["carry on"][-1] / curves["roll back"][-1]
spike_guess.reveal(worse)
show(spike_figure(curves, 65), "Four curves of the test loss, one per reaction, with the first bad batch at step 65.")
claims.figure("test loss, carry on / roll back", "4 bad batches", worse, "x")

# %% [markdown] name="spike_short"
# Four of 180 batches do much more damage than their number suggests. The test loss jumps, and Adam's second moment v remembers the huge gradients. While v is large, the updates are small, so the model recovers slowly. Without new large gradients, v falls by a factor of e every 20 steps at β₂ = 0.95, which most language models and this lab use, and every 1,000 steps at the default of 0.999. So after v has grown g-fold, it needs about 20 ln g steps to return to its old size. Here that is longer than the rest of the run. All three remedies work about equally well on this spike.
#
# Then why roll back at all? The next cell has a spike of 24 batches.
#
# **Predict.** How many of the 24 bad updates does *leave out* apply?

# %% name="long_guess"
my_guess = None  # of 24
### BEGIN GUESS
my_guess = 0  # all of them are unusual
### END GUESS
long_guess = Prediction("Bad updates that leave out applies", my_guess, "of 24", difference=True)

# %% name="long_spike"
long, counts = spiked(bad=24)
long_guess.reveal(counts["leave out"])
show(spike_figure(long, 65), "Four curves of the test loss, one per reaction, with 24 bad batches from step 65 on.")

# %% [markdown] name="spike_explained"
# - *Leave out* skips updates whose norm stands out from the last 20 steps. After ten bad batches, half of those 20 steps are bad. Then the median rises to their level, and the remaining bad updates are applied.
# - *Clip*, which nearly every large run does anyway, bounds what one batch can do, and avoids most of the damage. But each of the 24 bounded updates still goes in the wrong direction.
# - *Roll back* undoes all of the damage, each time the loss jumps. It needs everything that you have built: whole checkpoints, and a data order whose skips survive the next restart.
#
# ## 5 · Thousands of ranks that fail
#
# On thousands of ranks, the faults of this lab are routine. Llama 3's authors list the 419 unexpected interruptions of a job on 16,384 GPUs in 54 days: 308 took out a node (broken GPUs and memory, maintenance), 49 made a collective hang (switches, cables, network cards), 56 came from software, and **6 from silent data corruption**.
#
# `Fleet` simulates such a run from failure to failure. Failures come at random at these rates, in proportion to the number of GPUs. You choose four settings:
#
# - `interval`: seconds of training between checkpoints. Each checkpoint takes 2.4 s, the time to write the training state of 405B parameters at the 2 TB/s of Meta's storage;
# - `timeout`: seconds after which a collective that does not return ends the job;
# - `spares`: standby nodes. When none is left, the job waits until a broken node is repaired;
# - `compare`: seconds between comparisons. Each comparison takes 60 s, and covers step times and gradients on the same rows (section 3).
#
# The other figures are assumptions. A restart takes ten minutes. After every failure except those from software, the node is in repair for a day, even if it only made a collective hang, computed wrong results, or was a straggler. Every 2.7 days a straggler slows the job by 15% until a comparison finds it. Twenty times a day a healthy rank pauses, for a minute on average. Training counts as *lost* if it has to be repeated; waiting, restarts and slow steps do not count as lost.
#
# **Predict.** With a checkpoint every half hour and one comparison per day, what percentage of the lost training is due to silent corruption?

# %% name="fleet_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 * 6 / 419
### END GUESS
corrupt_guess = Prediction("Lost training that is due to silent corruption", my_guess, "%", difference=True)

# %% name="fleet_run"
SETTINGS = {
    "as above": {"interval": 1800, "compare": 86_400},
    "compare: 2 h": {"interval": 1800, "compare": 7200},
    "save: 4 min": {"interval": 240, "compare": 7200},
    "timeout: 60 s": {"interval": 240, "compare": 7200, "timeout": 60},
    "spares: 4": {"interval": 240, "compare": 7200, "spares": 4},
}
averages = {name: Fleet(**settings).average() for name, settings in SETTINGS.items()}
lost = averages["as above"][1]
corrupt_guess.reveal(100 * lost["corruption"] / lost.total(), how="simulated")
uses = list(averages["as above"][0])
table = [("% of 54 days", *SETTINGS)]
table += [(use, *(f"{100 * shares[use]:.1f}" for shares, _ in averages.values())) for use in uses]
show_table(table)
claims.figure(
    "goodput of 16,384 GPUs, simulated", "a checkpoint per half hour", averages["as above"][0]["training"], ""
)

# %% [markdown] name="fleet_explained"
# When a node dies, the job loses the minutes since the last checkpoint. After corruption, the job loses all training since the corruption began, because every later checkpoint contains it. So keep checkpoints from *before* the last comparison, too.
#
# Comparing often and saving often both help. The last two columns each change one setting of *save: 4 min*. (Llama 3's authors report more than 90% effective training time for the real run.) A short timeout ends hangs early, but it also kills healthy jobs in which a rank only paused. About seven nodes per day need repair, so with enough spares about seven are in repair at any time. With only four spares, 16,384 GPUs wait for one node almost half of the time.
#
# Explore the settings. What is the highest goodput that you can reach at 16,384 GPUs? Which setting no longer matters at 1,024?


# %% name="fleet_play"
def fleet_line(gpus, interval_minutes, spares, timeout_seconds, compare_hours):
    settings = {"gpus": gpus, "interval": 60 * interval_minutes, "spares": spares, "timeout": timeout_seconds}
    shares, _ = Fleet(**settings, compare=3600 * compare_hours).average(runs=3)
    axes = (figure := Figure(figsize=(8, 2.8), layout="constrained")).add_subplot()
    rest = {use: 100 * share for use, share in shares.items() if use != "training"}
    axes.barh(list(rest), list(rest.values()), color=COLORS[4])
    axes.invert_yaxis()
    axes.set(title=f"Goodput {shares['training']:.1%} (simulated): where the rest goes", xlabel="% of 54 days")
    return figure


explore(
    fleet_line,
    "A bar for each use of the time other than training.",
    gpus=(16_384, (1_024, 4_096, 16_384)),
    interval_minutes=(30, (1, 2, 4, 10, 30, 60)),
    spares=(16, (0, 2, 4, 8, 16, 32)),
    timeout_seconds=(600, (60, 120, 240, 600, 1800)),
    compare_hours=(24, (0.5, 1, 2, 6, 24)),
)

# %% [markdown] name="suspects_task"
# ### Your turn: the faulty node among thousands
#
# The logs of 16,384 ranks are too long to read. Monitoring keeps only a few counters per node, and these can mislead you, too. A `NodeCounters` has these attributes: `stage`, the node's pipeline stage; `calls`, the number of collectives that it has entered; `work`, the seconds per step that it spends computing; `errors_before` and `errors_now`, the number of link errors since the node was started, as counted an hour ago and now; and `checksum`, the checksum of its gradient in the last comparison.
#
# **Contract.** `suspect(nodes)` takes a list with the `NodeCounters` of each node, or None for a node that does not answer. Each stage has at least four nodes, anywhere in the list. `suspect` returns a pair, the fault and the node's index, and does not change the list.
#
# - `("dead", node)`: it does not answer. A node at the other end of its link then counts errors.
# - `("hung", node)`: it has entered fewer collectives than all other nodes, which wait for it.
# - `("link", node)`: its link errors have increased by more than 100 within the hour, and by more than those of any other node. (The other end of the link counts errors, too, but fewer.)
# - `("corrupt", node)`: its checksum differs from that of the other nodes of its stage. Each stage has different weights, so checksums differ between stages.
# - `("slow", node)`: its `work` is more than 1.2 times the median of its stage. Stages compute different amounts.
# - `("healthy", None)`: none of these. Each job has at most one fault.


# %% name="suspects" answer=true reveal=true
def suspect(nodes):
    ### BEGIN SOLUTION
    if None in nodes:
        return "dead", nodes.index(None)
    fewest = min(node.calls for node in nodes)
    if fewest < max(node.calls for node in nodes):
        return "hung", [node.calls for node in nodes].index(fewest)
    errors = [node.errors_now - node.errors_before for node in nodes]
    if max(errors) > 100:
        return "link", errors.index(max(errors))
    for index, node in enumerate(nodes):
        stage = [other for other in nodes if other.stage == node.stage]
        if node.checksum != Counter(other.checksum for other in stage).most_common(1)[0][0]:
            return "corrupt", index
        if node.work > 1.2 * statistics.median(other.work for other in stage):
            return "slow", index
    return "healthy", None
    ### END SOLUTION


# %% name="suspects_check"
suspect = check("failures.suspects", suspect)

# %% name="suspects_hint"
hint("failures.suspects")

# %% name="suspects_run"
for fault in ("dead", "hung", "link", "corrupt", "slow", "healthy"):
    nodes, planted = made_counters(fault, random.Random(fault), nodes=2048)
    print(f"2,048 nodes, planted: {fault}, {planted}; found: {suspect(nodes)}")

# %% [markdown] name="on_call_text"
# At this size no single number is enough. The total error count may be highest on a node whose errors are all old, checksums differ between stages by design, and the node that works longest may simply be in the heaviest stage. So compare a node with its own past, and with the other nodes of its stage.
#
# ## 6 · Explore: on call
#
# Here are twenty simulated jobs. Each has one of the four faults, or none. The figure shows when each rank waits in a collective, its exit code, and whether the checksums agree. Decide what happened, and to which rank, before you switch on the diagnosis.


# %% name="on_call"
def made(job):
    chance = random.Random(f"on call {job}")
    return made_job(chance.choice(("killed", "hung", "slow", "wrong", "healthy")), chance)


def draw(job, diagnosis):
    logs, _ = made(job)
    figure = rank_lanes(logs)
    if diagnosis == "shown":
        axes = figure.axes[0]
        axes.set_title(f"{axes.get_title()}; diagnosis: {diagnose(logs)}")
    return figure


explore(
    draw,
    "A lane for each rank, with bars where it waits for the others.",
    job=(2, range(20)),
    diagnosis=("hidden", ("hidden", "shown")),
)

# %% name="on_call_answer"
right = sum(diagnose(logs)[1] == blamed for logs, blamed in map(made, range(20)))
print(f"your diagnosis names the right rank in {right} of 20 jobs")

# %% [markdown] name="summary_text"
# ## 7 · What this run measured

# %% name="summary"
table = [("the job was", "diagnosed as", "steps in which checksums differ")]
table += [(name, str(diagnose(logs)), str(differ[name])) for name, logs in jobs.items()]
show_table(table)
table = [("reaction to a spike", "4 bad batches: test loss at the end", "24 bad batches")]
table += [(way, f"{curves[way][-1]:.3f}", f"{long[way][-1]:.3f}") for way in WAYS]
show_table(table)
claims

# %% [markdown] name="recap"
# ## Recap
#
# - On SIGTERM, set a flag, let the ranks agree on a step, save, and exit.
# - `torchrun` restarts everything after a failure, and only a timeout turns a hang into a failure. It reports the rank that failed first, which need not be the faulty one.
# - After a restart on a different number of ranks, the global batch must be the same. Then the runs differ only by rounding.
# - Checksums of replicas find errors after the all-reduce, not before it.
# - The slow rank is the one that waits least.
# - Clipping avoids most of the damage of a loss spike. Rolling back and skipping undoes the rest; leaving out unusual updates fails when the spike is long.
# - On thousands of GPUs, silent corruption is rare but expensive: compare ranks often. Timeouts, spares and intervals are trade-offs.
# - Compare a node's counters with its past and with its peers, not with zero.
#
# **What to reach for when.** On one GPU, save on SIGTERM. On many GPUs, use `torchrun` with restarts, timeouts that fit the job (NCCL's default is ten minutes, gloo's is thirty), checksums of the replicas now and then, and the flight recorder for hangs. On thousands, add spare machines and automatic diagnosis.
#
# **Sources.** Llama team 2024, *The Llama 3 Herd of Models*, section 3.3.4; Chowdhery et al. 2022, *PaLM*, section 5.1 (loss spikes); PyTorch documentation, `torchrun`, *Flight Recorder*; Slurm documentation, `sbatch --signal`, `KillWait` and `GraceTime`; `torchrun --help` (signals).
