"""Where submissions run: in a bubblewrap sandbox if possible, else with limits alone."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ....core.files import PACKAGE, ROOT

MEMORY = 8 << 30  # bytes that one submission may use
SCRATCH = 1 << 28  # bytes that fit into a sandbox's /tmp
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "SYSTEMROOT")


@dataclass(frozen=True)
class Sandbox:
    """How kernels for grading are started.

    Attributes:
        course: a copy of the course, see `probes_only`. It has the same path in the sandbox, so that a process which
            has imported it outside can go in.
        bubblewrap: the program `bwrap`; None where it is missing or may not make namespaces.
        memory: bytes that a submission may use.
    """

    course: Path
    bubblewrap: str | None
    memory: int

    def kernel(self, folder: Path) -> list[str]:
        """Return the command that starts a kernel which can write to `folder` (and, in a sandbox, nowhere else)."""
        script = self.course / "helpers" / "course" / "kernel" / "kernel.py"
        command = [sys.executable, "-s", str(script), "-f", "{connection_file}"]
        return [*self._walls(folder), *command] if self.bubblewrap else command

    def environment(self, exercise: str) -> dict[str, str]:
        """Return the kernel's environment: nothing of the instructor's but what Python needs to run."""
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        env |= {"PYTHONPATH": str(self.course), "PYTHONDONTWRITEBYTECODE": "1"}
        env["OMP_NUM_THREADS"] = "1"  # these models are too small for more, and sums come out alike on every machine
        env["OMP_WAIT_POLICY"] = "PASSIVE"  # see core/environment.py: an answer may ask for threads
        env |= {"HF_HUB_OFFLINE": "1", "USER": "learner", "LOGNAME": "learner", "LANG": "C.UTF-8"}
        env["GRADED_EXERCISE"] = exercise
        env["TAS_REAL_MODEL"] = "none"  # points do not depend on it, and loading it takes longer than some answers
        if not _gpus():  # CUDA reserves far more addresses than it uses, so memory is only watched
            env["GRADING_MEMORY"] = str(2 * self.memory)
        home = "/tmp" if self.bubblewrap else str(self.course)
        return env | {"HOME": home, "TMPDIR": "/tmp"} if os.name == "posix" else {**os.environ, **env}

    def _walls(self, folder: Path) -> list[str]:
        return [
            *(self.bubblewrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *_system(),
            *("--bind", str(folder), str(folder)),
            *("--ro-bind", str(self.course), str(self.course), "--chdir", "/tmp", "--hostname", "grading"),
            *("--unsetenv", "JPY_PARENT_PID"),  # a process of ours: its number means nothing inside
            "--",
        ]


def find_bubblewrap() -> str | None:
    """Return the path of a `bwrap` that works here; None if there is none, or namespaces are not allowed."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    tried = [program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", *_system()]
    tried += ["--", sys.executable, "-S", "-c", "pass"]
    try:
        done = subprocess.run(tried, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return program if done.returncode == 0 else None


def _system() -> list[str]:
    """Show the sandbox the system's programs and Python with its packages, and of the course nothing."""
    arguments = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    arguments += ["--size", str(SCRATCH), "--tmpfs", "/tmp"]
    for name in ("bin", "lib", "lib64", "lib32", "sbin"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            arguments += ["--ro-bind", str(path), str(path)]
    for path in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/sys/devices/system/cpu"):
        arguments += ["--ro-bind-try", path, path]
    for path in _python():
        arguments += ["--ro-bind", str(path), str(path)]
    if any(PACKAGE.is_relative_to(path) for path in _python()):  # installed beside other packages
        arguments += ["--tmpfs", str(PACKAGE)]
    for device in _gpus():
        arguments += ["--dev-bind", str(device), str(device)]
    return arguments


def _python() -> list[Path]:
    """Return the folders in which Python and its packages lie, outermost first, without the course itself."""
    packages = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    folders = {Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix, *packages) if Path(p).is_dir()}
    folders |= {path.resolve() for path in folders}
    return sorted(path for path in folders if not path.is_relative_to("/usr") and not ROOT.is_relative_to(path))


def _gpus() -> list[Path]:
    return sorted(Path("/dev").glob("nvidia*"))
