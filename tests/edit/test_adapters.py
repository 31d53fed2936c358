"""LoRA around every kind of layer with a low-rank form: against weights that NumPy computed, and by its rules."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError
from tests.nn.twins import some_input


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, an input, and what its factors add to its weight, as an einsum of both."""

    name: str
    make: Callable[[plait.Rngs], Any]
    x: Any
    product: str
    weight: str = "kernel"


CASES = [
    Case("Linear", lambda rngs: plait.Linear(3, 4, rngs=rngs), some_input(5, 3), "ir,ro->io"),
    Case(
        "LinearGeneral out",
        lambda rngs: plait.LinearGeneral(3, (2, 4), rngs=rngs),
        some_input(5, 3),
        "ir,rho->iho",
    ),
    Case(
        "LinearGeneral in",
        lambda rngs: plait.LinearGeneral((2, 3), 4, axis=(1, 3), rngs=rngs),
        some_input(5, 2, 7, 3),
        "hir,ro->hio",
    ),
    Case(
        "LinearGeneral batch",
        lambda rngs: plait.LinearGeneral(3, (2, 4), batch_axis={0: 5}, rngs=rngs),
        some_input(5, 7, 3),
        "bir,brho->biho",
    ),
    Case(
        "Einsum",
        lambda rngs: plait.Einsum("nta,hab->nthb", (5, 3, 4), (5, 4), rngs=rngs),
        some_input(2, 6, 3),
        "ar,rhb->hab",
    ),
    Case(
        "Einsum batch",
        lambda rngs: plait.Einsum("...hd,dho->...ho", (3, 5, 4), rngs=rngs),
        some_input(2, 5, 3),
        "hdr,hro->dho",
    ),
    Case(
        "Conv",
        lambda rngs: plait.Conv(2, 4, (3, 2), strides=(2, 1), rngs=rngs),
        some_input(2, 6, 5, 2),
        "xyir,ro->xyio",
    ),
    Case(
        "Conv causal",
        lambda rngs: plait.Conv(2, 4, 3, padding="CAUSAL", kernel_dilation=2, rngs=rngs),
        some_input(6, 2),
        "xir,ro->xio",
    ),
    Case("Embed", lambda rngs: plait.Embed(7, 4, rngs=rngs), jnp.array([[0, 6], [3, 3]]), "nr,rf->nf", "embedding"),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
RANDOM = {"b_initializer": plait.initializers.normal()}  # the default is zero
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def adapted(case: Case, rank: int = 2, **options: Any) -> plait.Dict:
    model = plait.Dict(layer=case.make(plait.Rngs(0)))
    plait.add_lora(plait.select(model, "layer"), rank, rngs=plait.Rngs(1), **{**RANDOM, **options})
    return model


def with_product(case: Case, model: Any, scale: float = 1.0) -> Any:
    """The layer without LoRA, with a weight that NumPy computed in float64."""
    layer = case.make(plait.Rngs(0))
    a, b = (np.asarray(factor[...], np.float64) for factor in (model.layer.lora_a, model.layer.lora_b))
    weight = getattr(layer, case.weight)
    weight[...] = jnp.asarray(np.asarray(weight[...], np.float64) + scale * np.einsum(case.product, a, b), jnp.float32)
    return layer


@pytest.mark.sampled
@each_case
@pytest.mark.parametrize("transform", [lambda f: f, plait.jit], ids=["eager", "jit"])
def test_it_computes_with_the_product_added_to_the_weight(case, transform):
    model = adapted(case)
    y = transform(lambda model, x: model.layer(x))(model, case.x)
    np.testing.assert_allclose(y, with_product(case, model)(case.x), **CLOSE)


@pytest.mark.sampled
@each_case
def test_it_starts_as_the_layer_alone(case):
    model, layer = adapted(case, b_initializer=plait.initializers.zeros), case.make(plait.Rngs(0))
    np.testing.assert_array_equal(model.layer(case.x), layer(case.x))


@each_case
@pytest.mark.parametrize(
    ("options", "scale"),
    [({"alpha": 6}, 3.0), ({"alpha": 6, "rank_stabilized": True}, 6 / math.sqrt(2))],
    ids=["alpha", "rank-stabilized"],
)
def test_the_scale_multiplies_the_product(case, options, scale):
    model = adapted(case, **options)
    np.testing.assert_allclose(model.layer(case.x), with_product(case, model, scale)(case.x), rtol=1e-4, atol=1e-4)


@pytest.mark.sampled
@each_case
def test_merging_in_place_and_back_keeps_the_outputs(case):
    model, kept = adapted(case, alpha=3), adapted(case, alpha=3)
    expected = model.layer(case.x)
    plait.merge_lora(model)
    np.testing.assert_allclose(model.layer(case.x), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.layer(case.x), model.layer.base_module(case.x))
    plait.unmerge_lora(model)
    np.testing.assert_allclose(model.layer(case.x), expected, rtol=1e-4, atol=1e-5)
    ours, theirs = (getattr(each.layer.base_module, case.weight) for each in (model, kept))
    np.testing.assert_allclose(ours[...], theirs[...], rtol=0, atol=2e-7 * float(jnp.abs(theirs[...]).max() + 1))


@each_case
def test_a_merged_layer_is_of_the_kind_of_its_base(case):
    model = adapted(case, alpha=3)
    expected = model.layer(case.x)
    plait.select(model, plait.LoRA).replace(lambda path, layer: layer.merge())
    assert type(model.layer) is type(case.make(plait.Rngs(0)))
    np.testing.assert_allclose(model.layer(case.x), expected, rtol=1e-4, atol=1e-5)


@each_case
def test_its_copy_has_an_equal_structure(case):
    model = adapted(case, alpha=3, dropout_rate=0.5)
    assert plait.graphdef(plait.clone(model)) == plait.graphdef(model)


def test_a_table_with_lora_also_answers_queries():
    model = adapted(CASES[-1], alpha=3)
    query = some_input(2, 4)
    np.testing.assert_allclose(model.layer.attend(query), with_product(CASES[-1], model, 1.5).attend(query), **CLOSE)


def test_dropout_is_that_of_the_input_of_the_factors():
    """The mask is read off a layer that is the identity."""
    model = plait.Dict(layer=plait.Linear(4, 4, use_bias=False, rngs=plait.Rngs(0)))
    model.layer.kernel[...] = jnp.zeros((4, 4))
    eye = lambda key, shape, dtype: jnp.eye(4, dtype=dtype)
    plait.add_lora(
        plait.select(model, "layer"),
        4,
        dropout_rate=0.5,
        a_initializer=eye,
        b_initializer=eye,
        rngs=plait.Rngs(1, dropout=2),
    )
    y = model.layer(jnp.ones((64, 4)))
    assert set(np.unique(y)) == {0.0, 2.0}
    model.eval()
    np.testing.assert_array_equal(model.layer(jnp.ones((64, 4))), jnp.ones((64, 4)))


class Block(plait.Module):
    def __init__(self, rngs: plait.Rngs) -> None:
        self.attention = plait.MultiHeadAttention(2, 8, num_kv_heads=1, decode=False, rngs=rngs)
        self.mlp = plait.Linear(8, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(x, is_causal=True)
        return x + plait.tanh(self.mlp(x))


class Model(plait.Module):
    def __init__(self, stacked: bool) -> None:
        rngs = plait.Rngs(0)
        blocks = [Block(rngs) for _ in range(3)]
        self.blocks = plait.Stack(blocks, remat=True) if stacked else plait.List(blocks)
        self.head = plait.Linear(8, 5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        if isinstance(self.blocks, plait.Stack):
            return self.head(self.blocks(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


TARGETS = ["**.query", "**.value", "**.mlp"]


def tuned(stacked: bool, **options: Any) -> Model:
    model = Model(stacked)
    plait.add_lora(plait.select(model, TARGETS), 2, rngs=plait.Rngs(1), **{**RANDOM, **options})
    return model


def loss(model: Any, x: Any) -> Any:
    return (model(x) ** 2).mean()


@pytest.mark.slow
def test_each_layer_of_a_stack_has_factors_of_its_own():
    """ST10: as in a list, also in their gradients."""
    listed, stacked = tuned(False, alpha=4), tuned(True, alpha=4)
    assert plait.state(stacked)["blocks"]["0:3"]["attention"]["query"]["lora_a"].shape == (3, 8, 2)
    as_listed = plait.as_list(stacked)
    for (path, ours), (_, theirs) in zip(
        plait.to_flat_state(plait.state(as_listed, plait.LoRAParam)),
        plait.to_flat_state(plait.state(listed, plait.LoRAParam)),
        strict=True,
    ):
        assert ours.shape == theirs.shape, path
    plait.update(listed, plait.state(as_listed))
    x = some_input(2, 4, 8)
    np.testing.assert_allclose(stacked(x), listed(x), **CLOSE)
    of_adapters = plait.DiffState(0, plait.LoRAParam)
    ours = plait.grad(loss, argnums=of_adapters)(stacked, x)["blocks"]["0:3"]["attention"]["query"]
    theirs = plait.grad(loss, argnums=of_adapters)(listed, x)["blocks"]
    for name in ("lora_a", "lora_b"):
        expected = np.stack([theirs[i]["attention"]["query"][name][...] for i in range(3)])
        np.testing.assert_allclose(ours[name][...], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True], ids=["list", "stack"])
def test_a_whole_model_merges_and_unmerges(stacked):
    model, x = tuned(stacked, alpha=4), some_input(2, 4, 8)
    expected = model(x)
    plait.merge_lora(model)
    np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-5)
    plait.unmerge_lora(model)
    np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-5)
    plait.select(model, plait.LoRA).replace(lambda path, layer: layer.merge())
    assert plait.graphdef(model) == plait.graphdef(Model(stacked))
    np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True], ids=["list", "stack"])
def test_one_of_several_adapters_is_active(stacked):
    x, alone, found = some_input(2, 4, 8), Model(stacked), {}
    model = Model(stacked)
    for seed, name in enumerate(("english", "german")):
        targets = plait.select(model, TARGETS)
        plait.add_lora(targets, 2, adapter=name, alpha=4, rngs=plait.Rngs(seed), **RANDOM)
        single = Model(stacked)
        plait.add_lora(plait.select(single, TARGETS), 2, adapter=name, alpha=4, rngs=plait.Rngs(seed), **RANDOM)
        found[name] = single(x)
    np.testing.assert_allclose(model(x), found["german"], **CLOSE)  # the last one that was added
    plait.use_lora(model, "english")
    np.testing.assert_allclose(model(x), found["english"], **CLOSE)
    german = plait.clone(model, variables=False)
    plait.use_lora(german, "german")
    np.testing.assert_allclose(german(x), found["german"], **CLOSE)
    np.testing.assert_allclose(model(x), found["english"], **CLOSE)  # the other copy stays
    plait.merge_lora(model)
    np.testing.assert_allclose(model(x), found["english"], rtol=1e-4, atol=1e-5)
    plait.unmerge_lora(model)
    plait.use_lora(model, None)
    np.testing.assert_allclose(model(x), alone(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_tag_selects_one_adapter_to_train_and_save():
    model = tuned(False, adapter="english")
    plait.add_lora(plait.select(model, "head"), 2, adapter="german", rngs=plait.Rngs(3))
    german = plait.to_flat_state(plait.state(model, plait.WithTag("german"))).paths
    assert german == (("head", "lora_a"), ("head", "lora_b"))
    grads = plait.grad(loss, argnums=plait.DiffState(0, plait.WithTag("german")))(model, some_input(2, 4, 8))
    assert list(grads) == ["head"]


@pytest.mark.slow
def test_adapters_alone_are_saved_and_restored(tmp_path):
    model, again, x = tuned(True), tuned(True), some_input(2, 4, 8)
    plait.select(model, "**.lora_b").map(lambda path, value: value + 1)
    plait.checkpoint.save(tmp_path / "adapter", plait.variables(model, plait.LoRAParam))
    plait.checkpoint.restore(tmp_path / "adapter", plait.variables(again, plait.LoRAParam))
    np.testing.assert_array_equal(again(x), model(x))


def test_factors_have_the_axis_names_of_their_weight():
    names = {"kernel_metadata": {"out_sharding": ("embed", "heads", "head_dim")}}
    model = plait.Dict(layer=plait.LinearGeneral(3, (2, 4), **names, rngs=plait.Rngs(0)))
    plait.add_lora(plait.select(model, "layer"), 2, rngs=plait.Rngs(0))
    assert model.layer.lora_a.out_sharding == ("embed", None)
    assert model.layer.lora_b.out_sharding == (None, "heads", "head_dim")


def test_a_shared_layer_shares_its_factors():
    model = plait.Dict(a=plait.Embed(5, 4, rngs=plait.Rngs(0)))
    model["b"] = model["a"]
    plait.add_lora(plait.select(model, plait.Embed), 2, rngs=plait.Rngs(0))
    assert model["a"] is model["b"]


def groups():
    return plait.Dict(a=plait.Conv(4, 4, 3, feature_group_count=2, rngs=plait.Rngs(0)))


def twice():
    model = plait.Dict(a=plait.Linear(2, 2, rngs=plait.Rngs(0)))
    plait.add_lora(plait.select(model, "a"), 1, rngs=plait.Rngs(0))
    return model


REFUSED = {
    "attention": (lambda: Model(False), "blocks[*].attention", r"at +blocks\[0\]\.attention[\s\S]*\*\*\.query"),
    "groups": (groups, "a", r"a Conv with groups"),
    "dropout": (lambda: plait.Dict(a=plait.Dropout(0.5)), "a", r"at +a\n[\s\S]*Dropout"),
    "same name": (twice, "a", r"adapter 'default'[\s\S]*adapter='default2'"),
    "same name below": (twice, "a.base_module", r"at +a\.base_module[\s\S]*adapter 'default'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_wrapped_is_named_and_nothing_changes(name):
    make, pattern, message = REFUSED[name]
    model = make()
    before = plait.graphdef(model)
    with pytest.raises(ArgumentError, match=message):
        plait.add_lora(plait.select(model, pattern), 2, rngs=plait.Rngs(0))
    assert plait.graphdef(model) == before


def test_adapters_that_do_not_exist_or_are_merged_are_named():
    model = twice()
    with pytest.raises(ArgumentError, match=r"'other'; its adapters are 'default'[\s\S]*use_lora\(model, 'default'\)"):
        plait.use_lora(model, "other")
    with pytest.raises(ArgumentError, match=r"no adapter of the model is merged"):
        plait.unmerge_lora(model)
    plait.merge_lora(model)
    for change in (
        lambda: plait.merge_lora(model),
        lambda: plait.use_lora(model, None),
        lambda: plait.add_lora(plait.select(model, "a"), 1, adapter="other", rngs=plait.Rngs(0)),
    ):
        with pytest.raises(ArgumentError, match=r"at +a\n[\s\S]*unmerge_lora"):
            change()
    plait.unmerge_lora(model)  # as advised
    plait.use_lora(model, None)


def test_an_einsum_with_another_equation_is_refused():
    model = adapted(CASES[4])
    with pytest.raises(ArgumentError, match=r"layer[\s\S]*'nta,hab->nthb'"):
        model.layer(CASES[4].x, "nta,hab->nthb")
