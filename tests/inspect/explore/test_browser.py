"""The page in a browser: search, expand, select, compare, keys, themes; no error, no request. (W2, W6, W13 to W16)"""

import itertools

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.inspect.explore.page import explore
from tests.browser import chromium, find_chromium, opened

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


class Block(plait.Module):
    def __init__(self, rngs, features=8):
        self.norm = plait.LayerNorm(8, rngs=rngs)
        self.up, self.down = plait.Linear(8, features, rngs=rngs), plait.Linear(features, 8, rngs=rngs)

    def __call__(self, x):
        return x + self.down(plait.gelu(self.up(self.norm(x))))


class Net(plait.Module):
    def __init__(self, *, blocks=3, scale=1.0):
        rngs = plait.Rngs(0)
        self.blocks = [Block(rngs) for _ in range(blocks)]
        self.head = plait.Linear(8, 2, rngs=rngs)
        self.head.bias[...] = jnp.array([1.0, jnp.nan])
        self.head.kernel[...] = self.head.kernel.value * scale
        self.itself = self
        self.tied = self.head.kernel

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Choosing(plait.Module):
    """A block that runs in a branch."""

    def __init__(self):
        self.block = Block(plait.Rngs(0))

    def __call__(self, x):
        return plait.cond(True, lambda block, x: block(x), lambda block, x: x, self.block, x)


class Many(plait.Module):
    def __init__(self):
        self.groups = [[plait.Dict(w=jnp.ones(2)) for _ in range(49)] for _ in range(100)]


def sharded():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = jax.sharding.PartitionSpec(None, "model")
    return plait.Param(jax.device_put(jnp.ones((2, 8)), jax.sharding.NamedSharding(mesh, spec)))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    find_chromium()  # before the work
    folder = tmp_path_factory.mktemp("pages")
    plait.checkpoint.save(folder / "first", {"model": Net()}, step=1)
    plait.checkpoint.save(folder / "second", {"model": Net(scale=2.0)}, step=2)
    explore(Net(), jnp.ones((4, 8)), to=folder / "net.html")
    explore(Net(), other=Net(blocks=4, scale=1.5), to=folder / "pair.html")
    explore(folder / "first", other=folder / "second", to=folder / "checkpoints.html")
    explore(Many(), to=folder / "many.html")
    explore(Choosing(), jnp.ones((4, 8)), to=folder / "choosing.html")
    explore(plait.Dict({HOSTILE: plait.Param(jnp.ones(2), note=HOSTILE), "w": sharded()}), to=folder / "odd.html")
    return folder


@pytest.fixture(scope="module")
def browser(pages):
    with chromium() as started:
        yield started


@pytest.fixture
def visit(browser, pages):
    """Opens a page, which is checked for errors and requests when the test ends."""
    windows = []

    def go(name, **options):
        windows.append(opened(browser, pages / f"{name}.html", **options))
        return windows[-1].__enter__()

    yield go
    for window in windows:
        window.__exit__(None, None, None)


def rows(page):
    return page.eval_on_selector_all(".row", "rows => rows.map(row => row.title)")


def selected(page):
    return page.get_attribute(".row[aria-selected=true]", "title")


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def test_the_search_shows_matches_and_what_leads_to_them(visit):
    page = visit("net")
    press(page, "/")
    page.keyboard.type("kernel up")
    assert page.inner_text("#found") == "3 matches"
    assert [path for path in rows(page) if path.endswith("kernel")] == [f"blocks[{i}].up.kernel" for i in range(3)]
    assert "head" not in rows(page)
    assert page.eval_on_selector_all("mark", "marks => marks.map(mark => mark.textContent)").count("kernel") == 3
    press(page, "Enter")
    assert selected(page) == "blocks[0].up.kernel"
    press(page, "n")
    assert selected(page) == "blocks[1].up.kernel"
    press(page, "Escape")
    assert page.input_value("#search") == ""
    assert (selected(page), "head" in rows(page)) == ("blocks[1].up.kernel", True)


def test_a_search_for_shapes_types_and_nothing(visit):
    page = visit("net")
    page.fill("#search", "float32[8, 2]")
    assert page.inner_text("#found") == "1 match"
    page.fill("#search", "layernorm")
    assert page.inner_text("#found") == "3 matches"
    page.fill("#search", "no such thing")
    assert (rows(page), page.is_visible("#nothing")) == ([], True)


def test_rows_open_and_close(visit):
    page = visit("net")
    assert rows(page) == ["", "blocks", "head", "itself", "tied"]
    page.click("[title='blocks'] .caret")
    assert rows(page)[1:5] == ["blocks", "blocks[0]", "blocks[1]", "blocks[2]"]
    page.click("[title='blocks'] .caret")
    assert rows(page) == ["", "blocks", "head", "itself", "tied"]


def test_the_watch_over_pages_notices_requests_and_errors(browser, tmp_path):
    """Otherwise the tests here could not fail for them."""
    for content in ("<img src='http://localhost:9/x'>", "<script>console.log(1)</script>", "<script>oops</script>"):
        (tmp_path / "page.html").write_text(f"<!doctype html><link rel='icon' href='data:,'>{content}")
        with pytest.raises(AssertionError), opened(browser, tmp_path / "page.html") as page:
            page.wait_for_load_state("networkidle")


def test_the_arrows_walk_and_enter_follows_links(visit):
    page = visit("net")
    press(page, "ArrowDown", "ArrowRight", "ArrowRight")
    assert selected(page) == "blocks[0]"
    press(page, "ArrowLeft", "ArrowLeft")
    assert (selected(page), len(rows(page))) == ("blocks", 5)
    press(page, "End")
    assert selected(page) == "tied"
    press(page, "Enter")
    assert selected(page) == "head.kernel"
    press(page, "Home", "ArrowDown", "ArrowDown", "*")
    assert {"blocks[0]", "head.bias"} <= set(rows(page))
    press(page, "?")
    assert page.is_visible("dialog")
    press(page, "Escape")
    assert not page.is_visible("dialog")


def test_a_call_in_a_branch_says_so(visit):
    """W7."""
    page = visit("choosing")
    assert "inside" not in page.inner_text("#calls")
    page.click("[title='block']")
    assert "inside cond" in page.inner_text("#calls")
    assert page.inner_text("#calls").count("float32[4, 8]") == 2


def test_a_cycle_is_a_link_to_its_owner(visit):
    page = visit("net")
    page.click("[title='itself']")
    assert "a cycle" in page.inner_text("#details")
    page.click("#details .link")
    assert selected(page) == ""


def test_a_variable_shows_its_numbers(visit):
    page = visit("net")
    press(page, "/")
    page.keyboard.type("head.bias")
    press(page, "Enter")
    text = page.inner_text("#details")
    assert "NaNs !\t1 (50%)" in text or "NaNs!\t1 (50%)" in text
    assert "Minimum\t1" in text
    assert page.locator("#histogram .bar").count() == 1
    assert page.url.endswith("#head.bias")
    page.click("#histogram >> text=log")
    assert page.get_attribute("#histogram button >> nth=1", "aria-pressed") == "true"


def test_an_address_names_a_place(visit):
    page = visit("net", fragment="#blocks%5B1%5D.up")
    assert selected(page) == "blocks[1].up"
    assert "float32[4, 8]" in page.inner_text("#calls")


def test_the_treemap_leads_to_what_is_clicked(visit):
    page = visit("net")
    page.click("#details .segments >> text=Bytes of outputs")
    titles = page.eval_on_selector_all("#map .cell", "cells => cells.map(cell => cell.title)")
    assert "blocks[1].up\n128 B\nLinear" in titles
    page.click("#details .segments >> text=Elements")
    page.click("#map .cell.leaf[title^='blocks[0].up.kernel']")
    assert selected(page) == "blocks[0].up.kernel"
    areas = page.eval_on_selector_all("#map .cell", "all => all.map(cell => [cell.offsetWidth, cell.offsetHeight])")
    assert all(min(area) > 0 for area in areas)


def test_the_parts_of_an_array_have_colours(visit):
    page = visit("odd", fragment="#w")
    mesh, array = (
        page.eval_on_selector_all(f".grids figure:nth-child({n}) i", "all => all.map(one => one.style.background)")
        for n in (1, 2)
    )
    assert (len(mesh), len(set(mesh))) == (8, 4)
    assert mesh == array * 2
    assert "4 parts, each on 2 devices; 16 B on a device" in page.inner_text(".sharding")


def test_two_models_are_compared(visit):
    page = visit("pair")
    texts = [text.split("\n") for text in page.locator("#filters .chip").all_inner_texts()]
    chips = {words[0]: int(words[-1]) for words in texts}
    assert (chips["Differ"], chips["Only in A"]) == (1, 0)
    assert chips["Only in B"] == 10
    page.click("[data-filter=changed]")
    assert rows(page) == ["", "head", "head.kernel"]
    press(page, "Tab")
    page.click("[title='head.kernel']")
    assert "100%" in page.inner_text("#details")
    assert page.locator("#histogram .area").count() == 2
    page.click("[data-filter=added]")
    assert {path.startswith("blocks[3]") for path in rows(page)[2:]} == {True}
    page.click("[data-filter=all]")
    page.click("[title='']")
    found = []
    for _ in range(11):
        press(page, "n")
        found.append(selected(page))
    assert found[-1] == "head.kernel"
    assert len(set(found)) == 11


def test_two_checkpoints_are_compared(visit):
    page = visit("checkpoints")
    assert "step 1" in page.inner_text("#compare")
    page.locator("#tree").focus()
    press(page, "n")
    assert selected(page) == "model.head.kernel"
    assert "0.5" in page.inner_text("#details >> text=Norm of the difference >> xpath=..")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_changed(visit, scheme):
    page = visit("net", color_scheme=scheme)
    background = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(background)
    assert page.get_attribute("html", "data-theme") == scheme
    press(page, "t")
    assert page.get_attribute("html", "data-theme") != scheme
    assert page.evaluate(background) != before
    page.reload()
    assert page.get_attribute("html", "data-theme") != scheme
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == scheme


def test_thousands_of_modules_are_few_elements(visit):
    page = visit("many")
    assert "4,900 variables" in page.inner_text("#totals")
    press(page, "/")
    page.keyboard.type("groups[99]")
    assert page.inner_text("#found") == "99 matches"
    press(page, "Escape", "ArrowRight", "ArrowRight", "*", "End")
    assert page.locator(".row").count() < 80
    assert page.evaluate("document.querySelectorAll('*').length") < 2500
    page.eval_on_selector("#tree", "box => box.scrollTop = 20000")
    page.wait_for_function("document.querySelectorAll('.row')[15].offsetTop > 19000")
    # In one step: between finding rows and asking them, the page may draw new ones.
    tops = page.evaluate("[...document.querySelectorAll('.row')].map(row => row.offsetTop)")
    assert {second - first for first, second in itertools.pairwise(tops)} == {28}


def test_names_with_html_are_text(visit):
    page = visit("odd")
    page.fill("#search", "onerror")
    press(page, "Enter")
    assert HOSTILE in page.inner_text("#details h2")
    assert HOSTILE in page.inner_text("#details table >> nth=-1")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def test_a_screen_reader_finds_a_tree(visit):
    page = visit("net")
    press(page, "ArrowDown")
    active = page.get_attribute("#tree", "aria-activedescendant")
    row = page.locator(f"#{active}")
    expected = {"level": "2", "expanded": "false", "selected": "true", "posinset": "1", "setsize": "4"}
    assert {name: row.get_attribute(f"aria-{name}") for name in expected} == expected
