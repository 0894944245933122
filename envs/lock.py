"""Writes the complete, pinned list of packages of each environment: envs/NAME.in -> envs/NAME.txt.

    .venv/bin/python envs/lock.py [NAME ...]           resolve; what the list has pinned stays as it is
    .venv/bin/python envs/lock.py --check [NAME ...]   exit 1 unless each list is complete for each of its Pythons

uv resolves for all supported machines at once, with the packages' metadata in the public index: no wheel of this
machine hides a requirement, and nothing but metadata is downloaded. Of each release the files that a supported machine
takes are kept, with their hashes and without their addresses.

The head of NAME.in has
    # python: 3.11 3.12            the supported Pythons
    # processor: x86_64 aarch64    and processors
and may have
    # without: flash-attn ...      what packages require and what is used of them does not
    # any build: torch==2.13.0     installed in this version, whichever build of it a package demands
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ENVS = Path(__file__).resolve().parent
NEWEST_GLIBC = 36  # 2.36 is Debian 12's
# bfcl-eval requires the clients of many models. This is what its checkers import, which is all that is used of it.
BFCL_EVAL = [
    "filelock",
    "mpmath",
    "numpy",
    "tree_sitter==0.21.3",
    "tree-sitter-java==0.21.0",
    "tree-sitter-javascript==0.21.4",
]
PROJECT = """\
[project]
name = "environment"
version = "0"
requires-python = ">={first}"

[tool.uv]
environments = {environments}

[[tool.uv.dependency-metadata]]
name = "bfcl-eval"
requires-dist = {bfcl_eval}
"""


@dataclass(frozen=True)
class Release:
    """One pinned package: which of its files the supported machines take."""

    name: str
    version: str
    hashes: frozenset[str]
    """sha256 of each file that a supported machine may take."""
    size: dict[tuple[str, str], int]
    """(Python, processor) -> bytes of the file that it takes."""
    compiled: tuple[str, ...]
    """The Pythons without a wheel, of a package whose other wheels hold machine code."""

    def lines(self) -> str:
        """Return the requirement with its hashes, as pip and uv read it."""
        return " \\\n    --hash=sha256:".join([f"{self.name}=={self.version}", *sorted(self.hashes)])


def heads(text: str) -> dict[str, list[str]]:
    """Return the words after each `# key:` of a list's head."""
    return {key: words.split() for key, words in re.findall(r"^# ([a-z ]+): (.+)$", text, re.M)}


def pins(text: str) -> dict[str, str]:
    """Return the version of each pinned package, by its normalised name."""
    return {re.sub("[._]", "-", name.lower()): at for name, at in re.findall(r"^([\w.-]+)==([\w.+!]+)", text, re.M)}


def machines(head: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Return the supported (Python, processor) pairs of a list."""
    return [(python, processor) for python in head["python"] for processor in head["processor"]]


def tags(machine: tuple[str, str]) -> list[Tag]:
    """Return the tags of the wheels that a machine takes, the best first."""
    python, processor = machine
    version = tuple(int(part) for part in python.split("."))
    platforms = [f"manylinux_2_{minor}_{processor}" for minor in range(NEWEST_GLIBC, 4, -1)]
    platforms += [f"{name}_{processor}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    return [*cpython_tags(version, platforms=platforms), *compatible_tags(version, platforms=platforms)]


def resolve(name: str) -> list[dict]:
    """Return uv's entries of a `pylock.toml` for NAME.in. Pins of the lists as they are stay where they can."""
    head = heads((ENVS / f"{name}.in").read_text())
    lists = sorted(ENVS.glob("*.txt"), key=lambda path: path.stem == name)
    preferred = {key: at for path in lists for key, at in pins(path.read_text()).items()}
    first, last = head["python"][0], head["python"][-1]
    environments = [
        f"sys_platform == 'linux' and platform_machine == '{processor}' and python_version <= '{last}'"
        " and implementation_name == 'cpython' and platform_python_implementation == 'CPython'"
        for processor in head["processor"]
    ]
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "pyproject.toml").write_text(PROJECT.format(first=first, environments=environments, bfcl_eval=BFCL_EVAL))
        (at / "without").write_text("\n".join(head.get("without", [])))
        (at / "overrides").write_text("\n".join(head.get("any build", [])))
        # uv takes the pins in a file that it is to write for preferences.
        (at / "pins.txt").write_text("".join(f"{key}=={version}\n" for key, version in preferred.items()))
        uv = Path(sys.executable).with_name("uv")
        command = [uv, "pip", "compile", ENVS / f"{name}.in", "--quiet", "--universal", "--python-version", first]
        command += ["--no-header", "--no-annotate", "--excludes", "without", "--override", "overrides"]
        for more in (["--output-file", "pins.txt"], ["--constraint", "pins.txt", "--output-file", "pylock.toml"]):
            subprocess.run([*command, *more], cwd=at, check=True, stdout=subprocess.DEVNULL)
        return tomllib.loads((at / "pylock.toml").read_text())["packages"]


def release(entry: dict, supported: list[tuple[str, str]]) -> Release:
    """Return an entry of `pylock.toml` as a release; a ValueError names one that a machine cannot install."""
    files = {}
    for file in entry.get("wheels", []):
        for tag in parse_wheel_filename(unquote(file["url"].rsplit("/", 1)[1]))[3]:
            files[tag] = file
    # Installers do not agree on the best of several wheels, so all that a machine could take are listed.
    takes = {machine: [files[tag] for tag in tags(machine) if tag in files] for machine in supported}
    missing = tuple(sorted({python for (python, _), wheels in takes.items() if not wheels}))
    if missing and "sdist" not in entry:
        raise ValueError(f"{entry['name']} {entry['version']} has no file for Python {', '.join(missing)}")
    takes = {machine: wheels or [entry["sdist"]] for machine, wheels in takes.items()}
    return Release(
        entry["name"],
        entry["version"],
        frozenset(file["hashes"]["sha256"] for chosen in takes.values() for file in chosen),
        {machine: chosen[0]["size"] for machine, chosen in takes.items()},
        missing if any(tag.abi != "none" for tag in files) else (),
    )


def of_torch(name: str) -> bool:
    """Return whether a package is torch or belongs to the CUDA libraries of its default build."""
    return name in ("torch", "triton") or name.startswith(("nvidia-", "cuda-"))


def megabytes(releases: list[Release], supported: list[tuple[str, str]]) -> int:
    """Return what these packages download at most."""
    sizes = [sum(one.size[at] for one in releases) for at in supported]
    return round(max(sizes) / 1e6)


def render(name: str) -> str:
    """Return the list NAME.txt, resolved."""
    text = (ENVS / f"{name}.in").read_text()
    head = heads(text)
    supported = machines(head)
    releases = [release(entry, supported) for entry in resolve(name)]
    lines = [f"# Written by envs/lock.py from {name}.in, which says what the packages are for."]
    lines += [
        line
        for line in text.splitlines()
        if re.match("# (python|processor|cuda|compiled|compiled at the first run|loaded by vllm):", line)
    ]
    lines.append(f"# megabytes: {megabytes([one for one in releases if not of_torch(one.name)], supported)}")
    lines.append(f"# megabytes of torch: {megabytes([one for one in releases if of_torch(one.name)], supported)}")
    for python in head["python"]:
        if names := [one.name for one in releases if python in one.compiled]:
            lines.append(f"# compiled on python {python}: {' '.join(names)}")
    return "\n".join([*lines, *(one.lines() for one in releases)]) + "\n"


def main() -> str:
    """Write the lists, or return where they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=sorted(path.stem for path in ENVS.glob("*.in")))
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    differences = []
    for name in arguments.names:
        path = ENVS / f"{name}.txt"
        rendered = render(name)
        if arguments.check:
            is_now, should_be = set(pins(path.read_text()).items()), set(pins(rendered).items())
            differences += [f"{path.name} lacks {package}=={at}" for package, at in sorted(should_be - is_now)]
            differences += [f"{path.name} need not have {package}=={at}" for package, at in sorted(is_now - should_be)]
        else:
            path.write_text(rendered)
    return "\n".join(differences)


if __name__ == "__main__":
    sys.exit(main() or 0)
