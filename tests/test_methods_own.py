"""A user's own method: loading, parameters, state, and the contract check."""

import textwrap

import pytest
import torch

from dara.methods import Aggregate, available_methods, load_method, source_file
from dara.methods.contract import check_method
from dara.methods.method import Method
from project import ROOT

REWARDS = torch.tensor([[[1, 0], [0, 0]], [[1, 1], [0, 0]]], dtype=torch.float64)


def write(directory, text, name="my_methods.py"):
    (directory / name).write_text(textwrap.dedent(text))


def own(function, **params):
    return Method("mine", function, params)


# The worked example of the documentation, as a reader would copy it.
PAGE = ROOT / "docs" / "methods.md"
WORKED_EXAMPLE = PAGE.read_text(encoding="utf-8").split("## Your own")[1].split("```python\n")[1].split("```")[0]

STATEFUL = """
    import torch

    class Momentum:
        def __init__(self, *, decay=0.9):
            self.decay, self.density = decay, None

        def contributions(self, batch, *, power=0.5):
            old = batch.density if self.density is None else self.density
            self.density = self.decay * old + (1 - self.decay) * batch.density
            return batch.z * (self.density.max() / self.density.clamp(min=0.01)) ** power

        def state_dict(self):
            return {"density": self.density}

        def load_state_dict(self, state):
            self.density = state["density"]
    """


def test_a_file_is_relative_to_base_dir(tmp_path):
    write(tmp_path, WORKED_EXAMPLE)
    method = load_method("mine", function="my_methods.py:contributions", base_dir=tmp_path, gamma=2.0)
    out = method(REWARDS)
    torch.testing.assert_close(out.weights, torch.tensor([0.0, 0.25]).double())
    assert out.diagnostics == {"smallest_weight": 0.0}
    assert method.final_normalization == "response"
    assert check_method(method) == []
    assert source_file("my_methods.py:contributions", tmp_path) == tmp_path / "my_methods.py"


def test_the_worked_example_has_the_numbers_of_its_page(tmp_path):
    write(tmp_path, WORKED_EXAMPLE)
    out = load_method("mine", function="my_methods.py:contributions", base_dir=tmp_path, gamma=0.5)(REWARDS)
    close = {"rtol": 0, "atol": 5e-5}
    torch.testing.assert_close(out.weights, torch.tensor([0, 0.7071]).double(), **close)
    torch.testing.assert_close(out.contributed.sum(-1), torch.tensor([[0, 0], [0.5, -0.5]]).double(), **close)
    torch.testing.assert_close(out.advantages, torch.tensor([[0, 0], [1.2247, -1.2247]]).double(), **close)


def test_a_changed_file_is_read_again(tmp_path):
    write(tmp_path, "def contributions(batch):\n    return batch.z\n")
    load = {"function": "my_methods.py:contributions", "base_dir": tmp_path}
    first = load_method("mine", **load)(REWARDS)
    write(tmp_path, "def contributions(batch):\n    return 2*batch.z\n")
    torch.testing.assert_close(load_method("mine", **load)(REWARDS).contributed, 2 * first.contributed)


def test_a_module_and_its_own_final_normalization(tmp_path, monkeypatch):
    write(
        tmp_path, 'FINAL_NORMALIZATION = "none"\n\ndef scores(batch):\n    return batch.z\n', "own_module_for_test.py"
    )
    monkeypatch.syspath_prepend(tmp_path)
    method = load_method("mine", function="own_module_for_test:scores")
    assert method.default_final_normalization == "none"
    assert torch.equal(method(REWARDS).advantages, method(REWARDS).z.sum(-1))
    assert source_file("own_module_for_test:scores").name == "own_module_for_test.py"
    same = load_method("mine", function="dara.methods.gdpo:contributions")(REWARDS)
    assert torch.equal(same.advantages, load_method("gdpo")(REWARDS).advantages)


def test_a_class_keeps_state(tmp_path):
    write(tmp_path, STATEFUL)
    load = {"function": "my_methods.py:Momentum", "base_dir": tmp_path, "decay": 0.5, "power": 1.0}
    method = load_method("mine", **load)
    assert method.has_state
    assert check_method(method) == []
    method(REWARDS)
    method(REWARDS[:1])  # density (1, 0): (1, .5) becomes (1, .25)
    torch.testing.assert_close(method.state_dict()["density"], torch.tensor([1, 0.25]).double())
    resumed = load_method("mine", **load)
    resumed.load_state_dict(method.state_dict())
    assert torch.equal(resumed(REWARDS).advantages, method(REWARDS).advantages)
    with pytest.raises(ValueError, match=r"no parameter 'decey'\. Did you mean 'decay'"):
        load_method("mine", **{**load, "decey": 0.1})


def test_a_method_without_state_has_an_empty_one():
    method = load_method("gdpo")
    assert method.state_dict() == {}
    assert not method.has_state
    method.load_state_dict({})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("my_methods.py", "names no function: write 'my_methods.py:contributions' (a file) or"),
        ("my_methods.py:", "names no function"),
        (":contributions", "names no function"),
        ("my methods:contributions", "names no function"),
        ("absent.py:contributions", "there is no file"),
        ("my_methods.py:contribution", "no function or class 'contribution'. Did you mean 'contributions'?"),
        ("my_methods.py:NUMBER", "no function or class 'NUMBER'"),
        ("no_such_package.module:f", "No module named 'no_such_package'"),
        ("dara.no_such_module:f", "there is no module 'dara.no_such_module'"),
        ("broken.py:contributions", "cannot be loaded"),
        ("needs.py:contributions", "No module named 'no_such_package'"),
        ("starred.py:contributions", "without *args and **kwargs"),
        ("starred.py:positional", "write its function as contributions(batch, *, parameter=default, ...)"),
        ("starred.py:reserved", "'eps' is a parameter of every method"),
        ("starred.py:nothing", "write its function as contributions(batch"),
        ("starred.py:HalfState", "has both state_dict and load_state_dict"),
        ("starred.py:NoContributions", "class without a method `contributions`"),
    ],
)
def test_bad_functions(tmp_path, function, message):
    write(tmp_path, "NUMBER = 3\n\ndef contributions(batch):\n    return batch.z\n")
    write(tmp_path, "def contributions(batch:\n", "broken.py")
    write(tmp_path, "import no_such_package\n", "needs.py")
    write(
        tmp_path,
        """
        def contributions(batch, **kwargs): ...
        def positional(batch, gamma=1): ...
        def reserved(batch, *, eps=1): ...
        def nothing(): ...
        class HalfState:
            def contributions(self, batch): ...
            def state_dict(self): ...
        class NoContributions: ...
        """,
        "starred.py",
    )
    with pytest.raises(ValueError) as error:
        load_method("mine", function=function, base_dir=tmp_path)
    assert message in str(error.value)


def test_a_built_in_name_cannot_be_taken(tmp_path):
    write(tmp_path, WORKED_EXAMPLE)
    with pytest.raises(ValueError, match="'gdpo' is the name of a built-in method"):
        load_method("gdpo", function="my_methods.py:contributions", base_dir=tmp_path)


def test_required_and_unknown_parameters(tmp_path):
    write(tmp_path, "def contributions(batch, *, gamma):\n    return gamma * batch.z\n")
    load = {"function": "my_methods.py:contributions", "base_dir": tmp_path}
    with pytest.raises(ValueError, match="needs the parameter 'gamma'"):
        load_method("mine", **load)
    with pytest.raises(ValueError, match="Did you mean 'gamma'"):
        load_method("mine", **load, gama=1)


NAN = float("nan")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: batch.z.sum(-1), r"contributed has shape \(2, 2\), it must be \(2, 2, 2\)"),
        (lambda batch: batch.z * NAN, r"contributed\[0, 0, 0\] is nan"),
        (lambda batch: None, "returned NoneType: return the contributions"),
        (lambda batch: Aggregate(batch.z, weights=batch.z), r"weights has shape \(2, 2, 2\), it must be \(2,\)"),
        (lambda batch: Aggregate(batch.z, keep=batch.z[..., 0]), "keep must be True or False"),
        (lambda batch: Aggregate(batch.z, loss_weight=-batch.lengths), "loss_weight has a negative value"),
        (lambda batch: Aggregate(batch.z, diagnostics={"a": NAN}), "diagnostic 'a' is nan"),
        (lambda batch: Aggregate(batch.z, diagnostics={"a": batch.z}), "diagnostic 'a' must be one number"),
    ],
)
def test_bad_results_are_errors(function, message):
    with pytest.raises(ValueError, match=message):
        own(function)(REWARDS, torch.ones(2, 2))


@pytest.mark.parametrize("name", available_methods())
def test_built_in_methods_keep_the_contract(name):
    if name.startswith("static"):
        assert check_method(load_method(name, weights=[1, 5])) == []
        assert check_method(load_method(name, weights=[1, 5, 1, 1])) == []
    else:
        assert check_method(load_method(name)) == []
    if name in ("gdpo_saw", "sa_mrpo"):
        bounds = {"mins": [-3, 0], "maxs": [3, 1]}
        bounds = bounds if name == "sa_mrpo" else {"mins": bounds["mins"]}
        assert check_method(load_method(name, **bounds, reward_weights=[1, 0.5])) == []


def in_place(batch):
    batch.z.mul_(2)
    return batch.z


def first_response_only(batch):
    out = batch.z.clone()
    out[:, 0] *= 3
    return out


def first_group_only(batch):
    out = batch.z.clone()
    out[0] *= 3
    return out


def two_rewards_only(batch):
    return batch.z * torch.tensor([1.0, 2.0])


def shifted(batch):
    return batch.rewards - batch.rewards.mean(dim=(0, 1))


def random(batch):
    return batch.z * torch.rand(batch.z.shape)


class Forgetful:
    """Loses its state when it is loaded."""

    def __init__(self):
        self.calls = 0

    def contributions(self, batch):
        self.calls += 1
        return batch.z * (1 + batch.z.abs()) ** self.calls

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (in_place, "changes batch.z in place"),
        (first_response_only, "Permuting the responses of a group"),
        (first_group_only, "Permuting the groups"),
        (two_rewards_only, "It fails with 5 group(s) of 4 and 3 reward(s): RuntimeError"),
        (shifted, "must contribute exactly 0"),
        (random, "Two calls with the same rewards differ"),
        (lambda batch: batch.z[:, :2], "contributed has shape (5, 2, 1), it must be (5, 4, 1)"),
        (lambda batch: batch.z / (batch.z - batch.z), "it must be finite"),
        (Forgetful, "After load_state_dict of its own state_dict"),
    ],
)
def test_contract_violations_are_named(function, message):
    found = check_method(own(function))
    assert any(message in text for text in found), found
    assert all(text.strip() for text in found)


def test_checking_leaves_the_state_alone():
    method = own(Forgetful)
    check_method(method)
    assert method.state_dict() == {"calls": 0}


@pytest.mark.parametrize("where", ["call", "module"])
def test_a_name_that_was_not_imported_is_one_sentence(tmp_path, where):
    body = "import math\ndef contributions(batch):\n    return torch.zeros_like(batch.z)\n"
    (tmp_path / "forgotten.py").write_text(body if where == "call" else "VALUE = torch.ones(1)\n" + body)
    if where == "module":
        with pytest.raises(ValueError, match=r"forgotten\.py cannot be loaded: NameError: name 'torch' is not defined"):
            load_method("mine", function="forgotten.py:contributions", base_dir=tmp_path)
        return
    found = check_method(load_method("mine", function="forgotten.py:contributions", base_dir=tmp_path))
    assert found[0].startswith("It fails with 5 group(s) of 4 and 1 reward(s): NameError: name 'torch' is not defined")


@pytest.mark.parametrize("step", ["self.steps += 1", "self.steps = 0.9 * self.steps + batch.density.mean().item()"])
def test_a_state_without_state_dict_breaks_the_contract(tmp_path, step):
    body = f"""
        class Forgetful:
            def __init__(self):
                self.steps = 1.0

            def contributions(self, batch):
                {step}
                return batch.z / self.steps
        """
    (tmp_path / "forgetful.py").write_text(textwrap.dedent(body))
    found = check_method(load_method("mine", function="forgetful.py:Forgetful", base_dir=tmp_path))
    assert any(text.startswith("It keeps a state between batches and has no state_dict") for text in found)


def test_a_method_that_ends_the_process_is_reported(tmp_path):
    (tmp_path / "quits.py").write_text("import sys\ndef contributions(batch):\n    sys.exit(0)\n")
    found = check_method(load_method("mine", function="quits.py:contributions", base_dir=tmp_path))
    assert found[0].startswith("It fails with 5 group(s) of 4 and 1 reward(s): SystemExit: 0")
