"""``plait compare``, as a user runs it."""

import numpy as np
import pytest

from plait.inspect.compare.comparison import Compared, Comparison, Departure
from plait.inspect.compare.differences import Difference
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


make_model = make
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


@pytest.mark.slow
def test_models_that_agree_end_with_status_0_in_evaluation_mode(folder):
    done = run(folder, "my_nets:make", "my_nets:make", "--inputs", "x.npz", "--b-inputs", "x.npz")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the results agree")


def test_models_that_depart_end_with_status_1_and_the_path(folder):
    done = run(folder, "my_nets:make", "my_nets:faulty", *INPUT, "--all")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("norm (LayerNorm) departs from norm (LayerNorm)\n")
    assert "\n  values    " in done.stdout
    assert "\n  embed  embed  0," in done.stdout
    assert "\n* (the model)  (the model)  " in done.stdout


def test_names_are_mapped(folder):
    names = ("--name", "first=embed", "--name", "last=norm")
    done = run(folder, "my_nets:faulty", "my_nets:renamed", *INPUT, *names)
    assert done.stdout.startswith("norm (LayerNorm) departs from last (LayerNorm)\n")
    assert run(folder, "my_nets:make", "my_nets:renamed", *INPUT, *names, "--tolerance", "1e-5").returncode == 0


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


WORDS = {
    "--input x:float32[2,4] --input n:int32[3]": {"names": None, "b_inputs": None, "tolerance": None},
    "--inputs two.npz --b-inputs x.npz --name a.*=b.* --name c= --tolerance 0.5": {
        "names": {"a.*": "b.*", "c": ""}, "b_inputs": [3, 4], "tolerance": 0.5,
    },
}  # fmt: skip


@pytest.mark.parametrize("words", WORDS, ids=["random", "files"])
def test_the_options_reach_compare(words, folder, monkeypatch):
    """With the module's default function; a model that cannot be switched to evaluation stays as it is."""
    (folder / "plain_nets.py").write_text("class Net:\n    eval = None\ndef make_model(): return Net()\n")
    np.savez(folder / "two.npz", z=np.full((2, 4), 2, np.float32), a=np.arange(3))
    asked = []
    found = Comparison(None, (), (), ())
    monkeypatch.setattr(Comparison, "__str__", lambda self: "the report")
    monkeypatch.setattr(
        "plait.inspect.compare.comparison.compare", lambda *args, **more: asked.append((args, more)) or found
    )
    done = run(folder, "plain_nets", "my_nets", "--all", *words.split())
    assert (done.returncode, done.stdout, done.stderr) == (0, "the report\n", "")
    [((a, b, x, n), options)] = asked
    assert (type(a).__name__, type(b).__name__, b.dropout.deterministic) == ("Net", "Net", True)
    assert (x.shape, x.dtype, n.shape, n.dtype.kind) == ((2, 4), np.float32, (3,), "i")
    if words.startswith("--inputs"):
        assert (x.tolist(), n.tolist()) == ([[2] * 4] * 2, [0, 1, 2])
        options["b_inputs"] = list(*(array.shape for array in options["b_inputs"]))
    assert options == WORDS[words]


def test_the_random_inputs_depend_on_the_seed_alone(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "plait.inspect.compare.comparison.compare", lambda *args, **more: asked.append(args[2]) or Comparison(None, ())
    )
    monkeypatch.setattr(Comparison, "__str__", lambda self: "")
    for options in ((), ("--seed", "0"), ("--seed", "1")):
        run(folder, "my_nets:make", "my_nets:make", *INPUT, *options)
    np.testing.assert_array_equal(asked[0], np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32))
    np.testing.assert_array_equal(asked[0], asked[1])
    assert not np.array_equal(asked[0], asked[2])


def test_every_module_is_listed_with_a_mark_where_it_departs(folder, monkeypatch):
    near, far = Difference(0.5, 2.0, 1.0), Difference(3.0, 2.0, 1.0)
    departure = Departure("norm", "ln", "LayerNorm", "Norm", None, far)
    rows = (Compared("embed", "wte", near), Compared("norm", "ln", far), Compared("", "", far))
    monkeypatch.setattr("plait.inspect.compare.comparison.compare", lambda *_, **__: Comparison(departure, rows))
    words = ("my_nets:make", "my_nets:make", *INPUT)
    short, long = run(folder, *words), run(folder, *words, "--all")
    assert (short.returncode, long.returncode) == (1, 1)
    assert long.stdout.removeprefix(short.stdout) == (
        "  embed  wte  0.5, for values up to 2 (tolerance 1)\n"
        "* norm  ln  3, for values up to 2 (tolerance 1)\n"
        "* (the model)  (the model)  3, for values up to 2 (tolerance 1)\n"
    )


def test_what_is_refused_is_told_in_full(folder):
    sizes = ("--input", "x:float32[n,4]", "--input", "y:float32[4]", "--input", "z:float32[m]")
    done = run(folder, "my_nets:make", "my_nets:make", *sizes)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "plait: the inputs of compare need concrete sizes\n"
        "  at        x, z\n"
        "  found     ['n', 4], ['m']\n"
        "  expected  numbers, since the models run on arrays\n"
        "  do        plait compare my_model:make original:make --input 'x:float32[2,8]'\n"
    )
    for rule in ("first", "=first", "="):
        done = run(folder, "my_nets:make", "my_nets:make", *INPUT, "--name", rule)
        assert done.returncode == 2
        assert done.stderr.endswith(f"{rule!r} is not a rule; write it as 'transformer.h.*=blocks.*'\n")
    done = run(folder, "my_nets:make", "no_nets:make", *INPUT)
    assert done.returncode == 2
    assert done.stderr.startswith("plait: the model's factory cannot be found\n  at        no_nets:make\n")
    assert done.stderr.endswith("  do        plait compare my_model:make original:make --input 'x:float32[2,8]'\n")
