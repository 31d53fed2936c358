"""``plait compare``, as a user runs it."""

import numpy as np
import pytest

from tests.commands import plait_command

SOURCE = """
import plait


class Net(plait.Module):
    def __init__(self):
        rngs = plait.Rngs(0)
        self.embed, self.norm = plait.Linear(4, 6, rngs=rngs), plait.LayerNorm(6, rngs=rngs)
        self.dropout = plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(self.embed(x)))


class Renamed(plait.Module):
    def __init__(self):
        net = Net()
        self.first, self.last = net.embed, net.norm

    def __call__(self, x):
        return self.last(self.first(x))


def make():
    return Net()


def faulty():
    model = Net()
    model.norm.epsilon = 0.5
    return model


def renamed():
    return Renamed()
"""
INPUT = ("--input", "x:float32[2,4]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("compare")
    (path / "my_nets.py").write_text(SOURCE)
    np.savez(path / "x.npz", x=np.ones((3, 4), np.float32))
    return path


def run(folder, *arguments):
    return plait_command("compare", *arguments, cwd=folder)


def test_models_that_agree_end_with_status_0_in_evaluation_mode(folder):
    done = run(folder, "my_nets:make", "my_nets:make", "--inputs", "x.npz", "--b-inputs", "x.npz")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the results agree")


def test_models_that_depart_end_with_status_1_and_the_path(folder):
    done = run(folder, "my_nets:make", "my_nets:faulty", *INPUT, "--all")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("norm (LayerNorm) departs from norm (LayerNorm)\n")
    assert "epsilon: 1e-06 in a, 0.5 in b" in done.stdout
    assert "\n  embed  embed  0," in done.stdout
    assert "\n* (the model)  (the model)  " in done.stdout


def test_names_are_mapped(folder):
    done = run(folder, "my_nets:faulty", "my_nets:renamed", *INPUT, "--name", "first=embed", "--name", "last=norm")
    assert done.stdout.startswith("norm (LayerNorm) departs from last (LayerNorm)\n")
    assert run(folder, "my_nets:make", "my_nets:renamed", *INPUT, "--tolerance", "1e-5").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("my_nets:make", "my_nets:none", *INPUT), "the model's factory cannot be found"),
        (("my_nets:make", "my_nets:make", "--input", "x:float32[batch,4]"), "need concrete sizes"),
        (("my_nets:make", "my_nets:make", "--input", "x:float32[2,5]"), "a cannot be run on these inputs"),
        (("my_nets:make", "my_nets:make", *INPUT, "--name", "first"), "is not a rule"),
        (("my_nets:make", "my_nets:make"), "--input"),
    ],
    ids=["factory", "size", "input", "rule", "nothing"],
)
def test_a_request_that_makes_no_sense_ends_with_status_2(folder, arguments, reason):
    done = run(folder, *arguments)
    assert done.returncode == 2
    assert reason in done.stderr
