"""The rules of structure, on small packages that break one each; and the names that users import."""

import importlib

import pytest

from project import ROOT
from structure import breaches

LONG = "x = 0\n" * 30


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"files.py": LONG}, []),
        ({"files.py": "x = 0\n" * 401}, ["dara/files.py has 401 lines"]),
        ({"files.py": "x = 0\n" * 29, "methods/gdpo.py": "x = 0\n", "data/__init__.py": ""}, ["files.py has 29 lines"]),
        ({"data/hub.py": LONG + "def f():\n    from dara.analysis import a", "analysis/a.py": LONG}, ["later layer"]),
        ({"analysis/a.py": LONG + "from dara.data.hub import b", "data/hub.py": LONG + "b = 0\n"}, []),
        ({"a.py": LONG + "from dara import b", "b.py": LONG + "import dara.a"}, ["form a circle: dara."]),
        ({"a.py": LONG + "from dara import b", "b.py": LONG + "if TYPE_CHECKING:\n    import dara.a"}, []),
    ],
)
def test_each_rule(tmp_path, files, expected):
    for name, text in files.items():
        path = tmp_path / "dara" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = list(breaches(tmp_path / "dara"))
    assert len(found) == len(expected)
    for line, part in zip(found, expected, strict=True):
        assert part in line


def test_this_package_keeps_them():
    assert list(breaches(ROOT / "workflow/dara")) == []


@pytest.mark.parametrize(
    ("package", "names"),
    [
        ("dara.methods", "available_methods load_method"),
        ("dara.rewards", "assistant_turn evaluation_format math_correctness numeric_equal response_length"),
        ("dara.rewards", "think_length think_words tool_correctness tool_format"),
        ("dara.analysis", "bootstrap_interval first_crossing stable_crossing t_interval wilson_interval"),
    ],
)
def test_users_import_from_the_packages(package, names):
    module = importlib.import_module(package)
    assert set(names.split()) <= set(module.__all__)
    assert all(callable(getattr(module, name)) for name in names.split())
