#!/usr/bin/env python3
"""Creates a virtual environment from a pinned list of packages; needs nothing but Python's standard library.

    python3 envs/create.py envs/laptop.txt .venv [--editable] [--installer uv|pip] [--options "INSTALLER'S OPTIONS"]

uv, which is on the list, installs the rest, with the index and the other settings that pip has on this machine;
`--installer pip` does without it. With DARA_ENVIRONMENTS=DIRECTORY the environment is kept there under the hash of its
list and the version of Python, and the target is a link to it, so that another clone has it at once.
"""

import argparse
import ctypes
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = "{}.{}".format(*sys.version_info[:2])
NO_NEWS = ["--disable-pip-version-check"]
ASK_ONCE = {"UV_HTTP_TIMEOUT": "10", "UV_HTTP_RETRIES": "0"}  # for a question that may have no answer
CPU_BUILD_MEGABYTES = 200


class Failure(Exception):
    """What the user must do first, in a sentence or several."""


def read_heads(text):
    """Return the words after each `# key:` of a list."""
    return {key: words.split() for key, words in re.findall(r"^# ([a-z0-9. ]+): (.+)$", text, re.M)}


def read_entries(text):
    """Return a list's entries with their hashes; torch and the CUDA libraries of its default build are apart."""
    entries = re.findall(r"^\w[^\n]*(?:\n +[^\n]*)*", text, re.M)
    of_torch = [entry for entry in entries if re.match(r"torch==|triton==|nvidia-|cuda-", entry)]
    return [entry for entry in entries if entry not in of_torch], of_torch


def find_python(supported):
    """Return the first supported Python: this one, or one of the PATH."""
    if VERSION in supported:
        return sys.executable
    for version in reversed(supported):
        found = shutil.which(f"python{version}")
        if found and subprocess.call([found, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            return found
    new = sys.version_info[:2] > tuple(int(part) for part in supported[-1].split("."))
    raise Failure(
        f"Python {' or '.join(supported)} is needed, and {sys.executable} is {VERSION}, which is too "
        f"{'new' if new else 'old'}; name another: make PYTHON=/path/to/python{supported[-1]}"
    )


def check_tools(head):
    """Raise a Failure that names all that must be installed before packages are."""
    missing = []
    if importlib.util.find_spec("ensurepip") is None:
        missing.append("this Python makes no environments; on Debian and Ubuntu: apt install python3-venv")
    headers = Path(sysconfig.get_path("include"), "Python.h").is_file()
    for key, when, compiler in (
        (f"compiled on python {VERSION}", f"has no wheel for Python {VERSION} and is compiled", "gcc"),
        ("compiled at the first run", "is compiled at its first run", "g++"),
    ):
        if key in head and not (headers and shutil.which(compiler)):
            missing.append(
                f"{' '.join(head[key])} {when}, which needs {compiler} and Python's headers; "
                f"on Debian and Ubuntu: apt install {compiler} python3-dev"
            )
    for library in head.get("loaded by vllm", []):
        try:
            ctypes.CDLL(library)
        except OSError:
            package = library.replace(".so.", "")
            missing.append(f"vLLM loads {library}, which is not here; on Debian and Ubuntu: apt install {package}")
    nvcc = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")  # PyTorch looks there too
    if "compiled" in head and not (nvcc.is_file() or shutil.which("nvcc")):
        missing.append(
            f"{head['compiled'][0]} is compiled, which needs nvcc: load your CUDA module, "
            "or set CUDA_HOME to where CUDA is"
        )
    if missing:
        raise Failure("\n".join(missing))


def uv_settings(pip_config):
    """Return the environment that tells uv what `pip config list` prints."""
    found = {name: value.split() for name, value in re.findall(r"^\S+\.([\w-]+)='(.*)'$", pip_config, re.M)}
    settings = {}
    for name, variable, separator in (
        ("index-url", "UV_DEFAULT_INDEX", " "),
        ("extra-index-url", "UV_INDEX", " "),
        ("find-links", "UV_FIND_LINKS", ","),
        ("no-index", "UV_NO_INDEX", " "),
        ("trusted-host", "UV_INSECURE_HOST", " "),
        ("cert", "SSL_CERT_FILE", " "),
        ("proxy", "ALL_PROXY", " "),
    ):
        if name in found:
            settings[variable] = separator.join(found[name])
    if "UV_INDEX" in settings:
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip: the best of all indexes
    return settings


def run(command, entries, environment, hashes=True):
    """Install these entries of a complete list, so nothing that they require in turn."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "requirements.txt")
        file.write_text("\n".join(entries) + "\n")
        words = ["--no-deps", *(["--require-hashes"] if hashes else []), "-r", str(file)]
        made = subprocess.call([*command, *words], env=environment)
    if made:
        raise Failure(f"{' '.join(command[:4])} ended with {made} (see above); its downloads are kept for the next try")


def say(head, build, megabytes):
    """Print which build of torch is taken, and how much is downloaded at most."""
    total = int(head["megabytes"][0]) + megabytes
    print(f"{build} of torch: {total} MB to download, less what is here already", flush=True)


class Pip:
    """Installs a list with pip alone; which build of torch pip takes shows when it is there."""

    def __init__(self, python, options):
        self.python = python
        self.environment = dict(os.environ)
        self.command = [python, "-m", "pip", "install", *NO_NEWS, *options]

    def cpu_build(self, torch):
        """Return [] if pip's torch needs no CUDA libraries, else None."""
        run(self.command, [torch], self.environment, hashes=False)
        code = "from importlib.metadata import requires; print(requires('torch'))"
        return None if re.search(rb"\b(nvidia|cuda)-", subprocess.check_output([self.python, "-c", code])) else []


class Uv:
    """Installs a list with uv, which pip installs from that list."""

    def __init__(self, python, options, entries):
        pip = [python, "-m", "pip"]
        own = [entry for entry in entries if entry.startswith("uv==")]
        run([*pip, "install", "--quiet", *NO_NEWS], own, dict(os.environ))
        listed = subprocess.check_output([*pip, "config", "list", *NO_NEWS]).decode()
        # Compiled, as pip does: where PYTHONDONTWRITEBYTECODE is set, every job would compile all that it imports.
        settings = {"UV_COMPILE_BYTECODE": "1", **uv_settings(listed)}
        self.environment = {**settings, **os.environ}  # what is set for uv itself wins
        self.command = [str(Path(python).with_name("uv")), "pip", "install", "--python", python, *options]

    def cpu_build(self, torch):
        """Return the options that lead to a CPU build of torch, in this machine's indexes or PyTorch's own, or None."""
        for options in ([], ["--torch-backend", "cpu"]):
            asked = [*self.command, *options, "--dry-run", torch]
            planned = subprocess.run(asked, stderr=subprocess.PIPE, env={**self.environment, **ASK_ONCE})
            if planned.returncode == 0 and not re.search(rb"\+ (nvidia|cuda)-", planned.stderr):
                return options
        return None


def install(text, python, installer, options, editable):
    """Install the packages of a list, then what is compiled against them, and this project if it is asked for."""
    head = read_heads(text)
    entries, of_torch = read_entries(text)
    tool = Uv(python, options, entries) if installer == "uv" else Pip(python, options)
    torch = next(entry.split()[0] for entry in of_torch if entry.startswith("torch=="))
    cpu_build = None if "cuda" in head else tool.cpu_build(torch)
    if cpu_build is None:
        say(head, "the default build, with CUDA's libraries,", int(head["megabytes of torch"][0]))
    else:
        say(head, "a CPU build", CPU_BUILD_MEGABYTES)
        run([*tool.command, *cpu_build], [torch], tool.environment, hashes=False)
        of_torch = []
    run(tool.command, entries + of_torch, tool.environment)
    if "compiled" in head:
        run([*tool.command, "--no-build-isolation"], [" ".join(head["compiled"])], tool.environment)
    if editable:
        run([*tool.command, "--no-build-isolation", "--quiet"], [f"--editable {ROOT}"], tool.environment, hashes=False)


def kept_place(requirements, target, text):
    """Make the target a link to where DARA_ENVIRONMENTS keeps this environment. Return that place."""
    directory = Path(os.environ["DARA_ENVIRONMENTS"]).resolve()
    digest = hashlib.sha256(f"{VERSION} {text}".encode()).hexdigest()[:12]
    directory.mkdir(parents=True, exist_ok=True)
    if target.exists() and not target.is_symlink():
        shutil.rmtree(str(target))
    elif target.is_symlink():
        target.unlink()
    target.symlink_to(directory / f"{requirements.stem}-{digest}")
    return target.resolve()


def create(requirements, target, installer, options, editable):
    """Create the environment `target`. Its file `.complete` is written last."""
    text = requirements.read_text()
    check_tools(read_heads(text))
    if os.environ.get("DARA_ENVIRONMENTS") and not editable:
        target = kept_place(requirements, target, text)
        if (target / ".complete").exists():
            (target / ".complete").touch()
            return
    elif target.is_symlink():
        target.unlink()  # never write through a link into what another clone keeps
    # A complete one is brought up to date in place: a workflow may be running in it.
    complete = (target / ".complete").exists() and (target / "lib" / f"python{VERSION}").exists()
    clear = [] if complete else ["--clear"]
    subprocess.check_call([sys.executable, "-m", "venv", *clear, str(target)])
    install(text, str(target / "bin" / "python"), installer, options, editable)
    (target / ".complete").touch()


def main():
    """Read the command line; go on with a supported Python if this one is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requirements", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--installer", choices=["uv", "pip"], default="uv")
    parser.add_argument("--options", type=shlex.split, default=[])
    parser.add_argument("--editable", action="store_true", help="install this project too, from its own files")
    arguments = parser.parse_args()
    try:
        python = find_python(read_heads(arguments.requirements.read_text())["python"])
        if python != sys.executable:
            os.execv(python, [python, *sys.argv])
        create(**vars(arguments))
    except Failure as failure:
        sys.exit(str(failure))
    except subprocess.CalledProcessError as failure:
        sys.exit(f"{failure.cmd[0]} ended with {failure.returncode}: {' '.join(map(str, failure.cmd))}")


if __name__ == "__main__":
    main()
