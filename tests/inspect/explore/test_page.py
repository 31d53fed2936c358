"""The file that ``explore`` writes: whole and self-contained; no name becomes code. (W1, W13, W14, W17)"""

import base64
import hashlib
import html.parser
import json
import re

import jax.numpy as jnp
import pytest

import plait

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;<!--\u2028"


class Page(html.parser.HTMLParser):
    """The elements of a page with their attributes, and the texts of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.cdata_elem is not None:
            self.texts.append((self.elements[-1], data))

    def data(self):
        return json.loads(next(text for (_, attrs), text in self.texts if attrs.get("id") == "data"))


@pytest.fixture
def page(tmp_path):
    def write(*args, **options):
        return Page(plait.explore(*args, to=tmp_path / "page.html", **options).read_text(encoding="utf-8"))

    return write


def test_the_page_asks_for_nothing(page):
    found = page(plait.Linear(2, 3, rngs=plait.Rngs(0)))
    links = [attrs[name] for _, attrs in found.elements for name in ("src", "href", "action") if name in attrs]
    assert links == ["data:,"]
    assert not [text for _, text in found.texts if re.search(r"@import|url\(|fetch\(|XMLHttp|import\(", text)]


def test_its_policy_allows_its_own_script_and_style_and_nothing_else(page):
    found = page(plait.Linear(2, 3, rngs=plait.Rngs(0)))
    (policy,) = [attrs["content"] for tag, attrs in found.elements if attrs.get("http-equiv")]
    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for (tag, attrs), text in found.texts:
        if attrs.get("type") != "application/json":
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert rules[f"{tag}-src"] == f"'sha256-{digest}'"


def test_names_cannot_become_elements(page):
    plain = [tag for tag, _ in page({"a": jnp.ones(2)}).elements]
    odd = type(HOSTILE, (plait.Dict,), {})({HOSTILE: plait.Param(jnp.ones(2), note=HOSTILE)})
    odd.text = HOSTILE
    found = page(odd)
    assert [tag for tag, _ in found.elements] == plain
    text = json.dumps(found.data(), ensure_ascii=False)
    assert text.count("alert(1)") >= 3


def test_a_lone_surrogate_in_a_name_is_written(page):
    assert page({"\ud800": jnp.ones(2)}).data()["nodes"][1]["step"] == "['\\ud800']"


def test_an_earlier_page_is_replaced_and_other_files_are_not(tmp_path):
    for _ in range(2):
        assert plait.explore({"a": jnp.ones(2)}, to=tmp_path / "page.html") == tmp_path / "page.html"
    (tmp_path / "notes.html").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name in ("notes.html", "folder"):
        with pytest.raises(ValueError, match=rf"would replace another file\n +at +\S*{name}"):
            plait.explore({"a": jnp.ones(2)}, to=tmp_path / name)
    assert (tmp_path / "notes.html").read_text() == "mine"


def test_a_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"the page cannot be written into this folder\n +at +\S*none\n"):
        plait.explore({"a": jnp.ones(2)}, to=tmp_path / "none" / "page.html")


def test_inputs_for_a_file_are_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"inputs are for a model, and this is a file\n +at +run"):
        plait.explore("run", jnp.ones(2), to=tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_model_and_a_file_are_compared(tmp_path, page):
    model = plait.Linear(2, 3, rngs=plait.Rngs(0))
    plait.checkpoint.save(tmp_path / "saved", model)
    model.bias[...] = model.bias.value + 1
    data = page(model, jnp.ones((1, 2)), other=tmp_path / "saved").data()
    assert [side["origin"] for side in data["sides"]] == ["model", "checkpoint"]
    assert [node["step"] for node in data["nodes"] if "changes" in node] == [".bias"]


def test_two_models_of_one_class_are_told_apart(page):
    model = plait.Linear(2, 3, rngs=plait.Rngs(0))
    assert [side["name"] for side in page(model, other=model).data()["sides"]] == ["Linear (A)", "Linear (B)"]


def test_the_same_model_gives_the_same_page(tmp_path):
    texts = set()
    for seed in (0, 0):
        model = plait.Linear(2, 3, rngs=plait.Rngs(seed), kernel_init=lambda *_: jnp.ones((2, 3)))
        texts.add(plait.explore(model, to=tmp_path / "page.html").read_text(encoding="utf-8"))
    assert len(texts) == 1
