"""The documentation as a site: it builds strictly, every link leads somewhere, and it works in a browser, alone."""

import functools
import html.parser
import http.server
import posixpath
import re
import subprocess
import sys
import threading
import urllib.parse

import pytest

from tests.browser import chromium
from tests.docs.examples import ROOT
from tests.environment import environment

yaml = pytest.importorskip("yaml")
pytest.importorskip("mkdocs")
pytest.importorskip("griffe")

from tests.docs.test_reference import module_of  # noqa: E402

DOCS = ROOT / "docs"
FOREIGN = re.compile(r"^(https?:)?//")


@pytest.fixture(scope="module")
def pages_from_files():
    return module_of("generated_pages")


@functools.cache
def navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return yaml.safe_load(text)


def pages_in(entry):
    if isinstance(entry, str):
        return [entry]
    inside = entry.values() if isinstance(entry, dict) else entry
    return [page for each in inside for page in pages_in(each)]


def test_every_page_has_a_place_in_the_navigation(pages_from_files):
    there = [file.relative_to(DOCS).as_posix() for file in sorted(DOCS.rglob("*.md"))]
    generated = [*pages_from_files.COPIES, *pages_from_files.made_of_programs()]
    shown = pages_in(pages_from_files.expanded(navigation(), [*there, *pages_from_files.made_of_programs()]))
    assert sorted(shown) == sorted({*there, *generated})


def test_a_star_stands_for_the_files_that_are_not_named_beside_it(pages_from_files):
    nav = [{"A": ["a/one.md", "a/*.md"]}, {"B": ["b/*.md"]}]
    there = ["a/one.md", "a/two.md", "b/three.md"]
    assert pages_from_files.expanded(nav, there) == [{"A": ["a/one.md", "a/two.md"]}, {"B": ["b/three.md"]}]


def test_the_static_drawings_are_those_that_the_program_draws():
    drawings = module_of("make_drawings")
    for name, draw in drawings.STATIC.items():
        assert (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8") == draw(), "run docs/make_drawings.py"


def test_every_example_is_in_the_gallery():
    gallery = (DOCS / "examples.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\(\.\./examples/([\w.]+)\)", gallery)
    there = [file.name for file in (ROOT / "examples").glob("*.*") if file.suffix in (".py", ".ipynb")]
    assert sorted(set(listed)) == sorted(there)


def test_a_cell_of_a_notebook_is_shown_with_its_output(pages_from_files):
    output = {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]}
    cell = {"cell_type": "code", "source": ["print(1)\n", "print(2)"], "outputs": [output]}
    assert pages_from_files.cell_text(cell) == "```python\nprint(1)\nprint(2)\n```\n\n```text\n1\n2\n```"


class Links(html.parser.HTMLParser):
    """Links, anchors and loaded files of a page, and text that should have become a block of code."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.loaded, self.fences = [], set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "preconnect", "icon", "preload"):
            self.loaded.append(given["href"])

    def handle_data(self, data):
        self.fences += re.findall(r"^```.*", data, re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it, by a process that reaches no network."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=environment(**nowhere, NO_MKDOCS_2_WARNING="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def parsed(site):
    return {
        page.relative_to(site).as_posix(): Links(page.read_text(encoding="utf-8"))
        for page in sorted(site.rglob("*.html"))
    }


@pytest.mark.slow
def test_no_link_is_broken(site, parsed):
    broken = []
    for page, content in parsed.items():
        for link in content.links:
            if FOREIGN.match(link) or link.startswith("mailto:") or page == "404.html":
                continue
            path, _, anchor = urllib.parse.unquote(link).partition("#")
            there = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
            there = "index.html" if there == "." else there
            if not (site / there).is_file() or (anchor and there in parsed and anchor not in parsed[there].anchors):
                broken.append((page, link))
    assert broken == []
    assert sum(len(content.links) for content in parsed.values()) > 1000


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site, parsed):
    loaded = [(page, each) for page, content in parsed.items() for each in content.loaded if FOREIGN.match(each)]
    assert loaded == []
    styles = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*\)", styles) == []


@pytest.mark.slow
def test_every_block_of_code_is_one_on_the_page(parsed):
    assert {page: content.fences for page, content in parsed.items() if content.fences} == {}


@pytest.mark.slow
def test_every_public_name_has_a_signature_or_a_text(site):
    """What mkdocstrings was asked for is there, and nothing of it is left as it stands in the file."""
    for file in sorted((DOCS / "reference").glob("*.md")):
        page = (site / "reference" / f"{file.stem}.html").read_text(encoding="utf-8")
        asked = re.findall(r"^::: (\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert [place for place in asked if f'id="{place}"' not in page] == []
        assert ":::" not in page


@pytest.fixture(scope="module")
def address(site):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, directory=str(site), **kwargs)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def tab(browser, address):
    """A page of the browser; afterwards, nothing was written to the console and nothing asked of another address."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    complaints = []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: request.url.startswith((address, "data:")) or complaints.append(request.url))
    page.on("response", lambda response: response.ok or response.status == 304 or complaints.append(response.url))
    page.goto(f"{address}index.html")
    yield page
    page.close()
    assert complaints == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(
    ("words", "page", "heading"),
    [
        ("quickstart", "quickstart.html", "Quickstart"),
        ("plait.Optimizer", "reference/training.html", "plait.Optimizer"),
        ("torch.compile", "from-pytorch.html", "Coming from PyTorch"),
    ],
)
def test_search_finds(tab, words, page, heading):
    tab.get_by_role("textbox", name="Search").fill(words)
    result = tab.locator(f".md-search-result__link[href*='{page}']").first
    result.wait_for(timeout=30_000)
    result.click()
    tab.wait_for_url(f"**/{page}*")
    assert tab.get_by_role("heading", name=heading, exact=False).first.is_visible()


@pytest.mark.slow
@pytest.mark.browser
def test_the_pages_of_the_navigation_open(tab):
    """Each shows its heading, and no code or output is cut in a window of 1280 pixels."""
    tab.set_viewport_size({"width": 1280, "height": 900})
    tabs = tab.locator(".md-tabs__link").evaluate_all("links => links.map(link => link.href)")
    found = set()
    for section in tabs:
        tab.goto(section)
        found |= set(
            tab.locator(".md-nav--primary .md-nav__link[href]").evaluate_all("links => links.map(a => a.href)")
        )
    pages = sorted({link.partition("#")[0] for link in found})
    assert len(pages) > 80
    wide = "blocks => blocks.filter(each => each.scrollWidth > each.clientWidth).map(each => each.innerText)"
    cut = {}
    for link in pages:
        tab.goto(link, wait_until="domcontentloaded")
        shown = ".landing" if link.endswith("/index.html") and "/reference/" not in link else "h1"
        assert tab.locator(shown).first.is_visible(), link
        if "/spec/" not in link and "/decisions/" not in link and "/examples/" not in link:
            cut[link] = tab.locator("pre > code").evaluate_all(wide)
    assert not {link: blocks for link, blocks in cut.items() if blocks}


def contrast(one, other):
    """The ratio of WCAG for two colours as ``rgb(r, g, b)``."""

    def luminance(colour):
        parts = [float(each) / 255 for each in re.findall(r"[\d.]+", colour)[:3]]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [380, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_landing_page_is_readable(browser, address, width, scheme):
    """Nothing scrolls sideways, the pictures are there, and text stands out from its background."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(f"{address}index.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for code in page.locator(".landing pre > code").all():
        assert code.evaluate("code => code.scrollWidth <= code.clientWidth"), code.inner_text()
    assert page.locator(".landing svg.drawing rect").first.is_visible()
    assert page.locator(".landing img").is_visible()
    assert page.locator(".landing .numbers a").count() == 3
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for what in (
        ".landing p",
        ".landing .numbers strong",
        ".landing .md-button:not(.md-button--primary)",
        ".drawing text",
    ):
        colour = "style => style.fill" if "text" in what else "style => style.color"
        shown = page.locator(what).first.evaluate(f"each => ({colour})(getComputedStyle(each))")
        assert contrast(shown, background) > 4.5, what
    page.close()


@pytest.mark.slow
@pytest.mark.browser
def test_a_reader_clicks_from_the_landing_page_to_the_reference_and_to_the_dark(tab):
    tab.get_by_role("link", name="Quickstart").last.click()
    tab.wait_for_url("**/quickstart.html")
    tab.locator(".md-tabs__link", has_text="Reference").click()
    tab.get_by_role("link", name="Layers", exact=True).first.click()
    tab.wait_for_url("**/reference/nn.html")
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.locator("label[for=__palette_1]").first.click()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != light
