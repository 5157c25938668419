"""Which files are scripts that a dry run can run: for any other, one line says what to give instead."""

import importlib.util
import zipfile
from pathlib import Path

from ..planner import RecipeError

_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "python", "python3", "mpirun", "srun"}
_HEAD = 2**16  # bytes in which a file of another kind shows itself


def check_script(script: str, module: bool) -> None:
    """Refuse what Python cannot run as a script.

    Args:
        script: a file, the name of a module, or "-" for stdin.
        module: whether it is a module's name.

    Raises:
        RecipeError: there is no such file, or it is a folder without `__main__.py`, a notebook, a shell script, binary
            data or unreadable.
    """
    path = Path(script)
    if script == "-" and not module:
        return
    if module:
        if path.suffix == ".py" and path.is_file():
            raise RecipeError(f"{script} is a file, not a module. Leave out -m.")
        return
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise RecipeError(f"{script} is a folder. Give the training script in it.")
        return
    if not path.is_file():
        if script in _LAUNCHERS:
            raise RecipeError(f"Give the training script itself, without {script}. --gpus N runs one rank of N.")
        named = "" if path.suffix else " To run a module, put -m before its name."
        raise RecipeError(f"There is no file {script}.{named}")
    if path.suffix == ".ipynb":
        raise RecipeError(
            f"{script} is a notebook. Run its cells in a `with virtual_gpu(...)` block, or convert it to a script "
            "with `jupyter nbconvert --to script`."
        )
    if path.suffix in (".yaml", ".yml", ".toml", ".json"):
        raise RecipeError(f"{script} is a configuration. Plan it with `python -m helpers plan --from {script}`.")
    if path.suffix == ".sh":
        raise RecipeError(f"{script} is a shell script. Give the Python script that it starts.")
    if _is_binary(path):
        raise RecipeError(f"{script} is not a Python script: it holds binary data.")


def _is_binary(path: Path) -> bool:
    """Say whether a file holds bytes that no source code has; compiled code and archives with a program do not count.

    Raises:
        RecipeError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from None
    if head.startswith(importlib.util.MAGIC_NUMBER):
        return False
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return "__main__.py" not in archive.namelist()
    return b"\0" in head
