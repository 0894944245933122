"""The pinned lists of packages, and the script that makes environments of them."""

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import create
import lock
from project import ROOT

ENVS = ROOT / "envs"
LISTS = sorted(ENVS.glob("*.txt"))


@pytest.mark.parametrize("file", LISTS, ids=lambda path: path.name)
def test_every_package_that_the_source_names_is_pinned_with_hashes_and_no_address(file):
    text = file.read_text()
    entries, of_torch = create.read_entries(text)
    assert len(entries) > 50
    assert sorted([*entries, *of_torch]) == sorted(re.findall(r"^\w[^\n]*(?:\n +[^\n]*)*", text, re.M))
    for entry in entries + of_torch:
        assert re.fullmatch(r"[a-z0-9-]+==[a-z0-9.]+(?: \\\n    --hash=sha256:[0-9a-f]{64})+", entry)
    assert "://" not in text
    named, listed = lock.pins(file.with_suffix(".in").read_text()), lock.pins(text)
    assert {name: listed.get(name) for name in named} == named


def test_environments_of_one_process_agree_on_what_scores_depend_on():
    lists = [lock.pins(file.read_text()) for file in LISTS]
    for name in ("torch", "transformers", "math-verify", "bfcl-eval", "tree-sitter", "tree-sitter-java", "pydantic"):
        assert len({pins[name] for pins in lists}) == 1, name


def test_the_cuda_list_has_one_release_of_the_toolkit():
    """nvcc refuses the headers of another release; nvdisasm and the Python bindings are apart from that."""
    pins = lock.pins((ENVS / "openrlhf-cuda.txt").read_text())
    toolkit = ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-cccl", "cuda-runtime", "cuda-nvrtc", "cuda-cupti", "nvjitlink")
    assert {pins[f"nvidia-{name}"].rsplit(".", 1)[0] for name in toolkit} == {"13.0"}
    assert pins["cuda-toolkit"].startswith("13.0.")


def entry(*files: tuple[str, int], source: bool = False) -> dict:
    def described(name, size):
        return {"url": f"https://host/{name}", "size": size, "hashes": {"sha256": sha256(name.encode())}}

    made = {"name": "tree-sitter", "version": "0.21.3", "wheels": [described(*file) for file in files]}
    return made | ({"sdist": described("tree_sitter-0.21.3.tar.gz", 5)} if source else {})


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


WHEEL = "tree_sitter-0.21.3-cp31{}-cp31{}-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
MACHINES = [("3.11", "x86_64"), ("3.12", "x86_64"), ("3.13", "x86_64")]


def test_a_release_without_a_wheel_for_a_python_is_compiled_there():
    files = [(WHEEL.format(minor, minor), 10 + minor) for minor in (1, 2)]
    found = lock.release(entry(*files, ("tree_sitter-0.21.3-cp311-cp311-win_amd64.whl", 99), source=True), MACHINES)
    assert found.compiled == ("3.13",)
    assert found.size == {MACHINES[0]: 11, MACHINES[1]: 12, MACHINES[2]: 5}
    names = [name for name, _ in files] + ["tree_sitter-0.21.3.tar.gz"]
    assert found.hashes == {sha256(name.encode()) for name in names}, "no file of another system"


def test_a_release_that_a_machine_cannot_install_is_refused():
    with pytest.raises(ValueError, match=r"^tree-sitter 0\.21\.3 has no file for Python 3\.12, 3\.13$"):
        lock.release(entry((WHEEL.format(1, 1), 10)), MACHINES)
    newer_glibc = WHEEL.format(1, 1).replace("manylinux_2_17_x86_64.manylinux2014", "manylinux_2_39")
    with pytest.raises(ValueError, match=r"has no file for Python 3\.11"):
        lock.release(entry((newer_glibc, 10)), MACHINES[:1])


def test_a_python_that_is_too_old_or_too_new_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    supported = ["3.4", "3.5"]
    with pytest.raises(
        create.Failure, match=r"^Python 3\.4 or 3\.5 is needed, and .* is 3\.\d+, which is too new; name"
    ):
        create.find_python(supported)
    with pytest.raises(create.Failure, match=r"which is too old; name another: make PYTHON=/path/to/python3\.99$"):
        create.find_python(["3.99"])
    (tmp_path / "python3.5").write_text("#!/bin/sh\n")
    (tmp_path / "python3.5").chmod(0o755)
    assert create.find_python(supported) == str(tmp_path / "python3.5")
    (tmp_path / "python3.5").write_text("#!/bin/sh\nexit 127\n")  # a shim whose Python is not there
    with pytest.raises(create.Failure, match="too new"):
        create.find_python(supported)


def test_what_is_compiled_asks_for_its_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    head = create.read_heads(
        "# compiled at the first run: deepspeed\n# loaded by vllm: libc.so.6 libno.so.1\n"
        f"# compiled: flash-attn==2.8.3 --hash=x\n# compiled on python {create.VERSION}: tree-sitter\n"
    )
    with pytest.raises(create.Failure) as failure:
        create.check_tools(head)
    gcc, cxx, library, nvcc = str(failure.value).splitlines()
    assert library == "vLLM loads libno.so.1, which is not here; on Debian and Ubuntu: apt install libno1"
    assert cxx.startswith("deepspeed is compiled at its first run, which needs g++ and Python's headers; on Debian")
    assert gcc.startswith("tree-sitter has no wheel for Python")
    assert gcc.endswith("apt install gcc python3-dev")
    assert nvcc.startswith("flash-attn==2.8.3 is compiled, which needs nvcc: load your CUDA module, or set CUDA_HOME")
    create.check_tools(create.read_heads("# compiled on python 2.7: tree-sitter\n"))


def test_uv_gets_the_settings_of_pip():
    settings = create.uv_settings(
        "global.index-url='https://mirror/simple'\n:env:.find-links='/wheels /more'\nglobal.cert='/ca.crt'\n"
        "global.extra-index-url='https://one https://two'\nglobal.timeout='60'\n"
    )
    assert settings == {
        "UV_DEFAULT_INDEX": "https://mirror/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX": "https://one https://two",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/ca.crt",
    }


def wheel(folder: Path, name: str, version: str, *requires: str, script: bytes = b"") -> str:
    """Write a wheel with one empty module; return its entry of a list."""
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {word}\n" for word in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name.replace('-', '_')}.py": "",
    }
    if script:
        files[f"{name}-{version}.data/scripts/{name}"] = script
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            content = text if isinstance(text, bytes) else text.encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{file},sha256={digest},{len(content)}\n"
            member = zipfile.ZipInfo(file)
            member.external_attr = 0o100755 << 16
            archive.writestr(member, content)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return f"{name}=={version} \\\n    --hash=sha256:{sha256(path.read_bytes())}"


@pytest.fixture
def index(tmp_path):
    """A folder of wheels and a list of them: uv itself, a package, torch's default build with one library of CUDA."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    uv = Path(sys.executable).with_name("uv")
    entries = [
        wheel(folder, "nvidia-cublas", "13.1"),
        wheel(folder, "small", "1.0"),
        wheel(folder, "torch", "2.0", "nvidia-cublas==13.1"),
        wheel(folder, "uv", "0.1", script=f'#!/bin/sh\nexec "{uv}" "$@"\n'.encode()),
    ]
    (tmp_path / "small.txt").write_text(
        f"# python: {create.VERSION}\n# megabytes: 30\n# megabytes of torch: 900\n" + "\n".join(entries) + "\n"
    )
    return folder


def make(tmp_path: Path, *options: str, target: str = "venv", **environment: str) -> subprocess.CompletedProcess:
    settings = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "DARA_"))}
    return subprocess.run(
        [sys.executable, ENVS / "create.py", tmp_path / "small.txt", tmp_path / target, *options],
        env=kept | settings | {"PIP_CONFIG_FILE": os.devnull} | environment,
        capture_output=True,
        text=True,
    )


def installed(environment: Path) -> set[str]:
    packages = environment.glob("lib/python*/site-packages/*.dist-info")
    return {
        path.name.removesuffix(".dist-info") for path in packages if path.name.startswith(("nvid", "small", "torch"))
    }


@pytest.mark.parametrize("installer", ["uv", "pip"])
@pytest.mark.parametrize(
    ("build", "told", "packages"),
    [
        ("", "the default build, with CUDA's libraries, of torch: 930 MB", {"nvidia_cublas-13.1", "torch-2.0"}),
        ("2.0+cpu", "a CPU build of torch: 230 MB", {"torch-2.0+cpu"}),
    ],
)
def test_a_cpu_build_of_torch_is_taken_where_there_is_one(tmp_path, index, installer, build, told, packages):
    """Elsewhere it is the default build, which comes with its libraries."""
    if build:
        wheel(index, "torch", build)
    made = make(tmp_path, "--installer", installer)
    assert made.returncode == 0, made.stderr
    assert f"{told} to download" in made.stdout
    assert installed(tmp_path / "venv") == {"small-1.0", *packages}
    assert (tmp_path / "venv" / ".complete").exists()
    assert len(list(tmp_path.glob("venv/lib/python*/site-packages/__pycache__/small.*.pyc"))) == 1


def test_another_file_than_the_pinned_one_is_refused(tmp_path, index):
    wheel(index, "small", "1.0", "something")
    made = make(tmp_path)
    assert made.returncode != 0
    assert "small" in made.stderr
    assert "hash" in made.stderr.lower()
    assert "(see above)" in made.stderr.splitlines()[-1]
    assert not (tmp_path / "venv" / ".complete").exists()


def test_an_environment_is_kept_under_the_hash_of_its_list(tmp_path, index):
    kept = {"DARA_ENVIRONMENTS": str(tmp_path / "kept")}
    assert make(tmp_path, "--installer", "pip", **kept).returncode == 0
    (environment,) = (tmp_path / "kept").iterdir()
    assert (tmp_path / "venv").resolve() == environment
    assert re.fullmatch("small-[0-9a-f]{12}", environment.name)
    (environment / "mark").touch()
    assert make(tmp_path, "--installer", "pip", target="other", **kept).returncode == 0
    assert (tmp_path / "other" / "mark").is_file(), "not made again"
    assert make(tmp_path, "--installer", "pip", target="other").returncode == 0
    assert not (tmp_path / "other").is_symlink(), "what another clone keeps is not written to"
    assert (environment / "mark").is_file()
