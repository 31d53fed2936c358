"""Models, variables, states and graphdefs as trees that unfold, drawn by Treescope. (G68)"""

import builtins
import warnings

import jax
import jax.numpy as jnp
import pytest

import plait

treescope = pytest.importorskip("treescope")
pytestmark = pytest.mark.oracle  # of the look of it: Treescope draws


@pytest.fixture(autouse=True)
def its_own_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Net(plait.Module):
    def __init__(self, rngs=None):
        rngs = plait.Rngs(0)
        self.first = plait.Linear(2, 3, use_bias=False, rngs=rngs)
        self.layers = plait.List([plait.Dropout(0.5, rngs=rngs), {"inner": plait.Param(jnp.ones((4, 5)), note="n")}])
        self.tied, self.itself = self.first, self
        self.scale = jnp.ones((6, 7))


def html(value, *, figures=False):
    chosen = treescope.ArrayAutovisualizer() if figures else None
    with treescope.active_autovisualizer.set_scoped(chosen):
        return treescope.render_to_html(value, compressed=False)


def test_a_model_has_types_sizes_attributes_and_arrays():
    text = treescope.render_to_text(Net())
    assert text.startswith("Net( # Param: 26 (104 B), RngState: 2 (12 B), Total: 28 (116 B)\n")
    for part in ("first=Linear(", "in_features=2", "layers=List(", "Dropout(", "scale=<jax.Array float32(6, 7)"):
        assert part in text
    assert "'inner': Param(" in text
    assert "note='n'" in text
    assert "[1]=" not in text  # elements have no names


def test_shared_modules_and_cycles_are_shown_as_such():
    model = Net()
    text = treescope.render_to_text(model)
    assert f"itself=<cyclic reference to Net at {hex(id(model))}>" in text
    assert text.count(f"# Repeated python obj at {hex(id(model.first))}\n") == 2
    assert hex(id(model.layers)) not in text


def test_values_are_figures_where_those_are_asked_for():
    model = Net()
    assert "arrayviz" not in html(model)
    page = html(model, figures=True)
    assert page.count("arrayviz") > html(plait.Dict(a=1), figures=True).count("arrayviz")
    assert "(4, 5)" in page
    assert "(6, 7)" in page


def test_paths_of_elements_and_attributes_can_be_copied():
    """A path is code that leads to the object."""
    model = Net()
    model.__dict__["odd name"] = plait.Dict(n=1)
    rendered: list[str] = []

    def renderer(node, path):
        rendered.append(path)
        return treescope.rendering_parts.text("")

    model.__treescope_repr__("model", renderer)
    assert {"model.first", "model.layers", "getattr(model, 'odd name')"} <= set(rendered)
    rendered.clear()
    model.layers.__treescope_repr__("model.layers", renderer)
    assert rendered == ["model.layers[0]", "model.layers[1]"]


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda net: net.layers[1]["inner"], ["Param( # 20 (80 B)", "jax.Array float32(4, 5)", "note='n'"]),
        (plait.state, ["State({", "'first': {", "'kernel': Param( # 6 (24 B)"]),
        (lambda net: plait.state(net).flat_state(), ["FlatState({", "('first', 'kernel'):"]),
        (plait.graphdef, ["NodeDef(", "type=Net", "key='first'", "VariableDef(", "'note': 'n'"]),
        (lambda net: plait.split(net)[0], ["NodeRef(type=Net, index=0)"]),
        (lambda net: plait.Rngs(0), ["Rngs(", "default=RngStream(", "key=RngKey("]),
        (lambda net: plait.eval_shape(Net), ["first=Linear(", "ShapeDtypeStruct(shape=(2, 3), dtype="]),
    ],
    ids=["variable", "state", "flat state", "graphdef", "reference", "streams", "shapes"],
)
def test_each_kind_of_object_unfolds(make, parts):
    value = make(Net())
    text = treescope.render_to_text(value)
    for part in parts:
        assert part in text
    assert "object at 0x" not in text
    assert len(html(value)) > 1000


class Broken:
    def __repr__(self):
        raise RuntimeError("broken")


def test_what_cannot_be_drawn_does_not_hide_the_rest():
    model = plait.Dict(a=Broken(), b=plait.Param(jnp.ones(3)))
    deleted = plait.Param(jnp.ones(4))
    deleted.value.delete()
    model.gone = deleted
    text = treescope.render_to_text(model, ignore_exceptions=True)
    assert "b=Param(" in text
    assert "gone=Param(" in text


def test_tracers_are_drawn():
    texts = []
    jax.jit(lambda x: texts.append(treescope.render_to_text(plait.Dict(w=plait.Param(x)))))(jnp.ones((2, 3)))
    assert "w=Param(" in texts[0]


# plait.display --------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_a_notebook(monkeypatch):
    shown = []
    monkeypatch.setattr(builtins, "get_ipython", lambda: None, raising=False)
    monkeypatch.setattr(treescope, "display", lambda value, **options: shown.append((value, options)))
    return shown


def test_display_draws_arrays_as_figures(in_a_notebook):
    plait.display(1, "two")
    assert in_a_notebook == [(each, {"ignore_exceptions": True, "autovisualize": True}) for each in (1, "two")]


def test_display_keeps_the_figures_that_are_active(in_a_notebook):
    with treescope.active_autovisualizer.set_scoped(treescope.ArrayAutovisualizer()):
        plait.display(1)
    assert in_a_notebook == [(1, {"ignore_exceptions": True, "autovisualize": None})]
