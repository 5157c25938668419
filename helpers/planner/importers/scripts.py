"""Launch scripts and files of arguments: what stands behind a program's name, with the script's variables filled in."""

import re
from itertools import takewhile

_ASSIGNED = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_GPUS = ("--nproc_per_node", "--nproc-per-node", "GPUS_PER_NODE", "NPROC_PER_NODE", "--num_gpus", "--gpus-per-node")
_GPUS += ("--ntasks-per-node",)
_NODES = ("--nnodes", "NNODES", "NUM_NODES", "--nodes")


def arguments_of(text: str) -> dict[str, str]:
    """Return a script's arguments by name, each with its two dashes; one without a value is "true"."""
    words = _words(re.sub(r"^#SBATCH.*$", "", text, flags=re.MULTILINE))
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if not word.startswith("--") or word == "--":
            continue
        name, equal, value = word.partition("=")
        following = words[at + 1] if at + 1 < len(words) else "--"
        if not equal:
            value = "true" if following.startswith("--") or following in ("\\", "|", "&&", ";", ")") else following
        found[name] = value
    return found


def values_of(text: str, name: str) -> list[str]:
    """Return all values of a script's argument, e.g. of `--target_modules q_proj v_proj`."""
    words = _words(text)
    start = words.index(name) + 1 if name in words else len(words)
    return list(takewhile(lambda word: not word.startswith("--"), words[start:]))


def gpus_of(text: str) -> int:
    """Return how many GPUs a script starts on; 0 if it does not say."""
    filled = " " + _filled(text)
    each, nodes = (_number(filled, names) for names in (_GPUS, _NODES))
    if all_of_them := _number(filled, ("--num_processes", "--num-processes")):  # Accelerate counts those of all nodes
        return all_of_them
    return each * max(1, nodes) if each else 0


def _number(text: str, names: tuple[str, ...]) -> int:
    for name in names:
        found = re.search(rf"(?<![\w-]){re.escape(name)}[=\s]+[\"']?(\d+)", text)
        if found:
            return int(found[1])
    return 0


def _filled(text: str) -> str:
    """Return the text with its variables replaced by what it assigns to them, without comments."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    known: dict[str, str] = {}
    done = []
    for line in lines:
        plain = line if line.startswith("#SBATCH") else re.sub(r"(?:^|\s)#.*$", "", line)
        plain = _VARIABLE.sub(lambda found: known.get(found[1] or found[3], found[2] or found[0]), plain)
        assigned = _ASSIGNED.match(plain)
        if assigned:
            known[assigned[1]] = assigned[2].strip().strip("\"'()")
        done.append(plain)
    return "\n".join(done)


def _words(text: str) -> list[str]:
    """Return the words of a script, those within quotes and arrays, too."""
    return re.sub(r"[()`\"']|\\\s", " ", _filled(text)).split()
