"""What the pages say about the project is compared with the project: versions, jobs, counts, budgets, names, links."""

import ast
import inspect
import re
import tomllib

import pytest

import plait
from plait.cli import main
from tests.docs.examples import ROOT, blocks_of
from tests.docs.test_names_exist import names_in
from tests.docs.test_reference import module_of

yaml = pytest.importorskip("yaml")

DOCS = ROOT / "docs"
CONTRIBUTORS = {"design.md", "tour.md", "tiny.md", "releasing.md"}
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.glob("*.md")) if page.name not in CONTRIBUTORS)]
WORDS = dict(
    zip(
        range(21),
        [
            "no",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
            "twenty",
        ],
        strict=True,
    )
)
# Sentences of a kind that stops a reader → what to write.
STOPPING = {
    r"(checkpoint|weight|librar(y|ie)|pickle|model|dictionary)s? of (PyTorch|JAX|Flax|Haiku|Equinox|Linen|torch)\b": (
        "PyTorch checkpoint, JAX libraries"
    ),
    r"\b(is|are|be|become|match|with) those of\b": "say once what it is",
    r"\blends? (its|a)\b": "is reused",
    r"nothing leads to": "is not reachable from",
    r"everything of (JAX|plait)": "every JAX function",
    r"(?<!`)\bdeparts? from\b(?! layers)": "differs from",
    r"beside other work|written down from memory|that we do not have|surveyed heads": "what it was, for a reader",
    r"what was (said|there)\b|what stands": "the current setting, the old value",
}
NOT_TOPICS = ("guide", "page", "figures", "weights")
by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def words_of(name):
    """The text of a file in one line, so that a sentence is found however it is wrapped."""
    return " ".join(text_of(name).split())


def table_after(name, heading):
    """The rows of the first table below a line of a page, as lists of cells."""
    below = text_of(name).partition(heading)[2]
    lines = re.search(r"^\|.*?(?=\n\n|\Z)", below, re.MULTILINE | re.DOTALL)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def version_in(lock, package):
    return re.search(rf"^{package}==(\S+)", text_of(lock), re.MULTILINE)[1]


def jobs_of(workflow):
    return yaml.safe_load(text_of(f".github/workflows/{workflow}.yml"))["jobs"]


def test_the_readme_counts_the_examples():
    programs, notebooks = (len(list((ROOT / "examples").glob(pattern))) for pattern in ("*.py", "*.ipynb"))
    assert f"{WORDS[programs]} small programs and {WORDS[notebooks]} notebooks" in words_of("README.md")


def test_the_lines_of_the_tutorial_are_counted():
    model = text_of("examples/embed.py").partition("\nclass Layer(")[2].partition("\n\n\nclass Tokenizer:")[0]
    assert f"{len(model.splitlines())} lines." in words_of("docs/tutorial.md")


def test_the_readme_says_whether_there_is_a_release():
    """At the first release, the changelog gets a date, and these pages change with it."""
    is_none = re.search(r"^## \d+\.\d+\.\d+ \(\d{4}-", text_of("CHANGELOG.md"), re.MULTILINE) is None
    for page in ("README.md", "docs/install.md"):
        assert ("No release is published yet" in words_of(page)) is is_none, page
    assert ("not released, with few users yet" in words_of("docs/should-i.md")) is is_none


@pytest.mark.parametrize(
    ("name", "lock"), [("Python 3.11", "requirements/dev.lock"), ("newest", "requirements/dev-newest.lock")]
)
def test_the_versions_of_the_page_are_those_of_the_lock(name, lock):
    (row,) = [row for row in table_after("docs/stability.md", "**Python and JAX.**") if row[0].startswith(name)]
    assert f"`{lock}`" in row[0]
    assert f"(JAX {version_in(lock, 'jax')}, Flax {version_in(lock, 'flax')})" in row[2]


def test_the_jobs_of_the_page_are_those_of_the_workflows():
    rows = {row[0].split(",")[0]: row for row in table_after("docs/stability.md", "**Python and JAX.**")}
    tests = jobs_of("tests")["versions"]
    assert tests["strategy"]["matrix"]["python"] == [rows["Python 3.11"][1], *rows["newest"][1].split(", ")]
    assert [step["run"] for step in tests["steps"] if "run" in step] == ["make test PYTHON=python${{ matrix.python }}"]
    nightly = jobs_of("nightly")
    assert {"lowest", "newest-slow", "differential"} <= set(nightly["rest"]["strategy"]["matrix"]["part"])
    assert "jax" in nightly
    assert "downstream" in jobs_of("weekly")
    assert "make slow" in [step.get("run") for step in jobs_of("tests")["slow"]["steps"]]


def test_the_pages_name_the_systems_that_the_tests_run_on():
    systems = {name.partition("-")[0] for name in jobs_of("tests")["versions"]["strategy"]["matrix"]["os"]}
    assert systems == {"ubuntu", "macos"}
    assert "on Linux or macOS" in words_of("docs/install.md")
    assert "on Linux and macOS" in words_of("docs/stability.md")
    assert [page.name for page in PAGES if "Windows" in page.read_text() and page.name != "should-i.md"] == []


def test_the_pages_name_the_python_and_jax_that_the_package_asks_for():
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    python = project["requires-python"].removeprefix(">=")
    jax = next(each for each in project["dependencies"] if each.startswith("jax")).partition(">=")[2]
    for page in ("README.md", "docs/install.md"):
        words = words_of(page)
        assert f"Python {python} or newer" in words, page
        assert f"JAX {jax.removesuffix('.0')} or newer" in words, page


def default_of(variable):
    """What the Makefile sets a variable to, for all or for one target."""
    return re.search(rf"^(?:\S+: )?{variable}\s+:?\??= *(.*)", text_of("Makefile"), re.MULTILINE)[1]


def recipe_of(target):
    return re.search(rf"^{target}:.*\n((?:\t.*\n|\\\n)+)", text_of("Makefile"), re.MULTILINE)[1]


def test_the_nights_and_weeks_of_the_page_are_those_of_the_workflows():
    rows = {row[0].split(",")[0]: row for row in table_after("docs/stability.md", "**Python and JAX.**")}
    rest, jax = jobs_of("nightly")["rest"], jobs_of("nightly")["jax"]
    assert rest["steps"][-1]["run"] == "make ${{ matrix.part }} PYTHON=python3.11 NEWER=python3.13"
    assert "each night, on 3.13: the slow tests" in rows["newest"][3]
    assert "each night: `make long`" in rows["Python 3.11"][3]
    assert "long" in rest["strategy"]["matrix"]["part"]
    assert rows["lowest"][1] == "3.11"
    assert "requirements/lowest.lock" in recipe_of("lowest")
    assert rows["development build of JAX"][1] == jax["steps"][1]["with"]["python-version"]
    assert jax["steps"][2]["run"] == "make jax-nightly NEWER=python3.13"
    assert "Each week `make new-flax`" in words_of("docs/stability.md")
    assert jobs_of("weekly")["flax"]["steps"][-1]["run"].startswith("make new-flax")
    assert "checked with pyright" in words_of("docs/stability.md")
    assert "$(BIN)/pyright" in recipe_of("types")
    assert re.search(r"^make types$", text_of(".ci/run"), re.MULTILINE)
    assert (ROOT / "src" / "plait" / "py.typed").is_file()


def test_the_versions_that_the_page_calls_untested_are_in_no_lock():
    (jax, python) = re.search(r"such as JAX (\S+) or Python (\S+), install and", words_of("docs/stability.md")).groups()
    locks = [f"requirements/{file.name}" for file in ROOT.glob("requirements/*.lock")]
    assert [lock for lock in locks if version_in(lock, "jax").startswith(f"{jax}.")] == []
    assert python not in jobs_of("tests")["versions"]["strategy"]["matrix"]["python"]
    assert tomllib.loads(text_of("pyproject.toml"))["project"]["requires-python"].startswith(">=")


def test_each_python_gets_the_lock_that_the_page_says():
    assert "on Python 3.11 the newest that it can have (`requirements/dev.lock`)" in words_of("docs/install.md")
    assert "on Python 3.12 and 3.13 the newest of all (`requirements/dev-newest.lock`)" in words_of("docs/install.md")
    assert '"" if sys.version_info < (3, 12) else "-newest"' in text_of("Makefile")


def test_the_pages_name_the_pythons_that_the_tests_run_on():
    pythons = jobs_of("tests")["versions"]["strategy"]["matrix"]["python"]
    for page in ("docs/stability.md", "docs/should-i.md"):
        assert f"Python {pythons[0]} to {pythons[-1]}" in words_of(page), page


def test_a_stored_checkpoint_of_each_format_is_read():
    from plait.checkpoint import layout

    assert "every later release can read it; the tests have one of each format" in words_of("docs/stability.md")
    for version in range(1, layout.VERSION + 1):
        assert (ROOT / "tests" / "data" / f"checkpoint-v{version}").is_dir()
        assert f'"checkpoint-v{version}"' in text_of("tests/checkpoint/test_orbax.py")


def test_the_random_programs_of_a_night_are_counted():
    (count,) = re.findall(r"`make differential` compares ([\d,]+) random programs", words_of("docs/migrating.md"))
    assert re.search(rf"^differential: N = {count.replace(',', '')}$", text_of("Makefile"), re.MULTILINE)


def test_the_older_tensorflows_of_the_page_are_those_of_the_tests():
    named = re.findall(r"`make older` tests (\S+) and (\S+)\.", words_of("docs/export.md"))
    releases = [version.rpartition(".")[0] for version in default_of("OLDER_TENSORFLOW").split()]
    assert named == [tuple(releases)]


def test_the_packages_of_the_page_have_the_versions_that_are_run():
    shown = dict(
        re.match(r"([\w-]+) ([\d.]+)", row[0]).groups()
        for row in table_after("docs/migrating.md", "`make downstream` runs published packages")
    )
    pins = text_of("tests/downstream/requirements.txt") + text_of("tests/downstream/without_dependencies.txt")
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", pins, re.MULTILINE))
    assert {name: version for name, version in shown.items() if pinned.get(name) != version} == {}
    assert f"once with Flax {pinned['flax']} and once with plait" in words_of("docs/migrating.md")


# Library of a block, as in ``python needs-haiku`` → where its version is pinned, and under which name.
PINNED = {"haiku": "dm-haiku", "flax": "flax", "equinox": "equinox", "torch": "torch", "distrax": "distrax"}


def test_a_library_that_a_page_needs_is_there_in_some_run_of_the_tests():
    needed = {block.needs for page in DOCS.glob("*.md") for block in blocks_of(page)} - {None}
    places = ("requirements/dev.lock", "Makefile", "tests/downstream/requirements.txt")
    pinned = set(re.findall(r"\b([a-z][\w-]+)==\d", "".join(map(text_of, places))))
    assert {name for name in needed if PINNED.get(name, name) not in pinned} == set()


def test_no_budget_is_below_what_was_measured():
    row = next(
        line for line in text_of("docs/design.md").splitlines() if line.startswith("| jitted step that rewrites")
    )
    budgets = [float(each) for each in row.rpartition("never above ")[2].strip(" |").split(" / ")]
    rows = {row[0]: row[1:] for row in table_after("benchmarks/README.md", "--alone`, rel")}
    measured = rows["rewrites all its state"]
    assert len(budgets) == len(measured) == 4
    for budget, cell in zip(budgets, measured, strict=True):
        assert max(map(float, cell.split(" / "))) <= budget


def test_the_formats_of_export_are_counted():
    (count,) = re.findall(r"There are (\w+) formats", text_of("docs/export.md"))
    assert WORDS[len(table_after("docs/export.md", "There are"))] == count
    assert not re.search(r"other (two|three) formats", text_of("docs/export.md"))


def test_the_grace_of_a_launch_is_the_one_of_the_command():
    (seconds,) = re.findall(r"they have (\d+) seconds\s+\(`--grace`\)", text_of("docs/sharding.md"))
    assert re.search(rf"\"--grace\",.{{,60}}default={seconds},", text_of("src/plait/cli.py"), re.DOTALL)
    assert "end training after the current step, with a checkpoint" in " ".join(
        (plait.training.fit.__doc__ or "").split()
    )


@pytest.fixture(scope="module")
def reference():
    return module_of("make_reference")


def taught(page):
    """The names below plait that the code of a page uses, as ``("training", "fit")``."""
    found = set()
    for block in blocks_of(page):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "plait":
                below = tuple((node.module or "").split(".")[1:])
                found |= {(*below, alias.name) for alias in node.names}
        found |= names_in(block.code)
    return found


@by_name
@pytest.mark.parametrize("words", STOPPING)
def test_no_sentence_of_a_page_stops_a_reader(page, words):
    text = page.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if re.search(words, line)] == [], STOPPING[words]


@by_name
def test_a_page_teaches_public_names_alone(page, reference):
    """What is not in the reference may change in any release, so no page shows it."""
    pytest.importorskip("griffe")
    public, secret = reference.public_names(), set()
    for name in taught(page):
        first = next((n for n in range(len(name), 0, -1) if ".".join(name[:n]) in public), 0)
        beyond = public.get(".".join(name[:first])) if first else plait
        if first < len(name) and (not first or inspect.ismodule(beyond)) and name != ("as_flax",):
            secret.add(".".join(name))
    assert secret == set()


@by_name
def test_a_link_named_by_one_word_leads_to_a_page_with_that_word(page):
    """As in [grain](data.md), or in "`plait.diff`, see [debugging.md](debugging.md)"."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    asked = re.findall(r"\[([a-z]\w+)\]\(([\w/-]+\.md)(?:#[\w-]+)?\)", text)
    asked += [
        (name, target)
        for line in re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)
        for name, target in re.findall(r"`plait\.([\w.]+)`,? see\s+\[[\w.-]+\]\(([\w/-]+\.md)", line)
    ]
    lost = [
        (w, to)
        for w, to in asked
        if not re.search(w.rpartition(".")[2].rstrip("s"), (page.parent / to).read_text(), re.I)
    ]
    assert [(word, to) for word, to in lost if word not in NOT_TOPICS] == []


def test_what_flax_takes_by_keyword_plait_takes():
    """All but what is of use to Flax's own functions alone."""
    assert refused(pytest.importorskip("flax.nnx")) == {"flatten": {"ref_outer_index"}}


def refused(nnx):
    """Public functions and layers → what Flax takes by keyword there, and plait by position alone."""
    found = {}
    for name in sorted(set(dir(nnx)) & set(dir(plait))):
        theirs, ours = getattr(nnx, name), getattr(plait, name)
        if inspect.isfunction(theirs) and callable(ours) and not takes_any(ours):
            found[name] = keywords(theirs) - keywords(ours)
        elif inspect.isclass(theirs) and issubclass(theirs, nnx.Module) and "__call__" in vars(theirs):
            found[name] = keywords(theirs.__call__) - keywords(ours.__call__) - {"self"}
    return {name: arguments for name, arguments in found.items() if arguments}


def keywords(function):
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}


def takes_any(function):
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values())


def test_the_example_of_migrate_prints_what_the_page_shows(tmp_path, monkeypatch, capsys):
    pytest.importorskip("libcst")
    program = re.search(r"```python no-run\n(.*?)```", text_of("docs/migrate.md"), re.DOTALL)[1]
    shown = re.search(r"```console\n\$ plait (.*?)\n(.*?)```", text_of("docs/migrate.md"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(program)
    assert main(shown[1].split()) == 0
    assert capsys.readouterr().out == shown[2]


def test_the_page_lists_the_commands_that_there_are(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out.partition("COMMAND\n")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `plait (\w+)", text_of("docs/command-line.md"), re.MULTILINE)
    assert sorted(listed) == sorted(re.findall(r"^    (\w+)", printed, re.MULTILINE))


def test_the_page_lists_the_environment_variables_that_plait_reads():
    read = set()
    for file in (ROOT / "src").rglob("*.py"):
        read |= set(re.findall(r"[\"'](PLAIT_[A-Z_]+)[\"']", file.read_text(encoding="utf-8")))
    assert set(re.findall(r"`(PLAIT_[A-Z_]+)`", text_of("docs/environment.md"))) == read


def test_what_the_pages_print_shows_something():
    """Of two objects one says whether they are the same; everything else is shown as a value, a shape or a loss."""
    blocks = [block for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))] for block in blocks_of(page)]
    outputs = [block.output.split() for block in blocks if block.output]
    assert len([words for words in outputs if words and set(words) <= {"True", "False"}]) <= 9 < len(outputs) / 20


def test_no_page_of_a_user_is_longer_for_what_is_new():
    """Pages may be added if others get shorter: what a page repeats can go. Tables that tests write do not count."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES if page.parent == DOCS]
    words = sum(len(re.sub(r"(?s)<!-- the matrix.*?-->.*?<!-- the end", "", text).split()) for text in texts)
    assert words <= 42_700
