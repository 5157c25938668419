"""Why some lines that depend on CUDA are executed by no test without a GPU."""

_VIRTUAL = "It runs on a virtual GPU, in a process that sees no other one and ends without a report"
_SEVEN = "It trains 7 billion parameters, which takes hours on a CPU; inside/test_planner.py runs `measure_recipe`."
_X3 = "Its ranks pretend two GPUs of their own; tests/labs/test_graded.py runs it on every machine."

# (source, first line of the statement or of a branch or function around it) -> the reason
REASONS: dict[tuple[str, str], str] = {
    (
        "helpers/formats/autocast_rules.py",
        'wrapped = Tensor._make_wrapper_subclass(cls, meta.shape, dtype=meta.dtype, device="cuda:0")',
    ): "It stands in where there is no GPU; tests/formats runs it there.",
    (
        "helpers/exercises/x3/on_gpus.py",
        "def _gpu(device: Any) -> str:",
    ): _X3,
    (
        "helpers/exercises/x3/on_gpus.py",
        "def opened_on_gpus(worker: Callable[..., Any], folder: str) -> Evidence:",
    ): _X3,
    (
        "helpers/exercises/x3/worker.py",
        "def _wrong_on_gpus(got: Evidence | None, right: Evidence | None) -> str | None:",
    ): _X3,
    (
        "solutions/01_where_memory_goes.py",
        "def steps_of_xl(gpu, steps=2):",
    ): _VIRTUAL + "; tests/virtual_gpu/test_solutions.py runs it there.",
    (
        "solutions/05b_selective_checkpointing.py",
        "def on_4090(batch, checkpointed, chunks):",
    ): _VIRTUAL + ": in every run of the lab on a CPU.",
    (
        "solutions/06b_oom_clinic.py",
        "def life_of_a(steps):",
    ): _VIRTUAL + "; tests/virtual_gpu/test_solutions.py runs it there.",
    (
        "solutions/07_where_the_time_goes.py",
        'print("Not applicable: no GPU here whose data sheet is in the catalog.")',
    ): "The catalog has the data sheet of each pretended GPU; every notebook prints it on a CPU.",
    (
        "solutions/10b_fused_kernels.py",
        "if HAS_TRITON:",
    ): "Triton's kernels need a real GPU; its interpreter runs them on the CPU only.",
    (
        "solutions/12b_fully_shard.py",
        "def train_8b(steps=2):",
    ): _VIRTUAL + ": in every run of the lab on a CPU.",
    (
        "solutions/19b_training_in_fp8.py",
        'if HAS_FP8_UNITS and importlib.util.find_spec("transformer_engine") is not None:',
    ): "Transformer Engine installs only where CUDA is.",
    (
        "solutions/20_lora.py",
        "if room >= 20 * GiB and supports(torch.bfloat16, device):",
    ): _SEVEN,
    (
        "solutions/20_lora.py",
        "def fine_tune_7b(tokens, steps=2):",
    ): _VIRTUAL + ": in every run of the lab on a CPU.",
    (
        "solutions/20_x4_lora.py",
        "if planned and room > planned.reserved_bytes[1]:",
    ): _SEVEN,
    (
        "solutions/21_capstone.py",
        "def on_h100(step, dtype):",
    ): "It runs on a virtual GPU, only where there is no real one: in every run of the lab on a CPU.",
}
