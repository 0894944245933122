"""Where DeepSpeed's extensions are built at the first run, and a build that was killed.

torch marks a build by a lock file, and waits for ever for one whose builder was killed. The directory belongs to one
host and one environment: the code is made for the host's own processor, and a lock's builder can be looked for.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import sys
from importlib.metadata import version
from pathlib import Path

import psutil

log = logging.getLogger(__name__)


def build_directory() -> Path:
    """TORCH_EXTENSIONS_DIR of a run's processes: code built for another Python or torch in the same place does not load."""
    environment = hashlib.sha256(f"{sys.prefix} {sys.version} {version('torch')}".encode()).hexdigest()[:8]
    return Path.home() / ".cache" / "dara" / "torch_extensions" / f"{socket.gethostname()}-{environment}"


def remove_stale_locks(directory: Path) -> list[Path]:
    """Remove the locks below `directory` that no living process holds open, as a builder does; what was removed."""
    locks = [path for path in directory.glob("**/lock") if path.is_file()]
    if not locks:
        return []
    held = {Path(name) for process in psutil.process_iter() for name in _open_files(process)}
    stale = [path for path in locks if path.resolve() not in held]
    for path in stale:
        log.warning("%s was left by a build that was killed: removed", path)
        path.unlink(missing_ok=True)
    return stale


def _open_files(process: psutil.Process) -> list[str]:
    try:
        return [file.path for file in process.open_files()]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
