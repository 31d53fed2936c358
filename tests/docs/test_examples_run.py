"""Every code block of the documentation, and every example of a docstring, runs and prints what it says."""

import re

import pytest

from tests.docs.examples import ROOT, SOURCE, blocks_of, docstring_examples, run_docstring, run_page
from tests.sampling import slow_but

# Chapters of the specification whose example runs already.
RUNNING_CHAPTERS = ("graph.md", "tiny.md", "variables.md")

SPECIFICATION = ROOT / "docs" / "spec"
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if page.is_file() and SPECIFICATION not in page.parents and blocks_of(page)
]
LONG = (
    "generating.md",
    "training.md",
    "fit.md",
    "tutorial.md",
    "optimizers.md",
    "flax-differences.md",
    "layers.md",
    "loops.md",
    "linen.md",
    "sharding.md",
    "export.md",
    "ecosystem.md",
    "quickstart.md",
    "data.md",
    "from-pytorch.md",
    "stacks.md",
    "autodiff.md",
    "compare.md",
    "performance.md",
    "from-equinox.md",
    "from-haiku.md",
    "from-linen.md",
    "debugging.md",
    "checkpoints.md",
    "looking-inside.md",
    "explore.md",
    "tiny.md",
    "tour.md",
    "fine-tuning.md",
)
LONG_EXAMPLES = (
    "nn.attention.MultiHeadAttention",
    "nn.stacks.stack.Stack",
    "nn.rotary.apply_rotary_embedding",
    "nn.dot_product.dot_product_attention",
    "nn.recurrent.RNN",
    "training.accumulation.accumulated_value_and_grad",
    "inspect.compare.comparison.compare",
    "nn.attention.MultiHeadAttention.init_cache",
    "nn.reparametrisation.SpectralNorm",
    "nn.stacks.stack.Stack.to_list",
    "transforms.jacobians.hessian",
    "transforms.batching.pmap",
    "training.loss_scaling.DynamicLossScale",
    "training.classification.Precision",
    "training.classification.ConfusionMatrix",
    "checkpoint.checkpoints.Checkpoints",
    "partitioning.creation.create_sharded",
)
is_short = lambda page: page.name not in LONG
CHAPTERS = [SPECIFICATION / name for name in RUNNING_CHAPTERS]
DOCSTRINGS = [test for file in sorted(SOURCE.rglob("*.py")) for test in docstring_examples(file)]

pytestmark = pytest.mark.usefixtures("users_promotion", "empty_folder", "standing_runners")


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", slow_but(is_short, PAGES), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(page):
    ran, left_out = run_page(page)
    assert ran > 0
    if left_out:
        pytest.skip(f"all but those that need {', '.join(sorted({str(block.needs) for block in left_out}))}")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda page: page.name)
def test_the_example_of_a_chapter_runs(chapter):
    assert run_page(chapter)[0] > 0


@pytest.mark.parametrize(
    "test", slow_but(lambda test: test.name not in LONG_EXAMPLES, DOCSTRINGS), ids=lambda test: test.name
)
def test_the_example_of_a_docstring_holds(test):
    run_docstring(test)


def test_a_block_is_compared_with_the_text_that_follows(tmp_path):
    page = tmp_path / "page.md"
    promised = "```python\nx = 2\nprint(x)\n```\n\n```text\n2\n```\n"
    loose = "```python\nprint(x + 1)\n```\n\nand then\n\n```text\n7\n```\n"
    page.write_text(f"# Page\n\n{promised}\n{loose}")
    assert [block.output for block in blocks_of(page)] == ["2\n", None]
    assert run_page(page) == (2, [])


def test_a_block_that_prints_something_else_fails_with_its_place(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError, match=re.escape("page.md:2: the block prints something else")):
        run_page(page)


def test_a_block_whose_library_is_missing_is_left_out(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 2\n```\n\n```python needs-nowhere\nimport nowhere\n```\n\n```python needs-jax\nx\n```\n"
    )
    ran, (left_out,) = run_page(page)
    assert (ran, left_out.needs, left_out.line) == (2, "nowhere", 6)
