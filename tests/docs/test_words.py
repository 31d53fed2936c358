"""A newcomer reads from the start page through the guides: each word of the glossary is explained at its first use."""

import re

import pytest

from tests.docs.examples import FENCE, ROOT

DOCS = ROOT / "docs"
ORDER = [
    "index",
    "quickstart",
    "variables",
    "graph",
    "layers",
    "stacks",
    "randomness",
    "transforms",
    "jit",
    "autodiff",
    "batching",
    "loops",
    "shapes",
    "training",
    "optimizers",
    "fit",
    "fine-tuning",
    "generating",
    "data",
    "checkpoints",
    "reliability",
    "sharding",
    "scaling",
]
# Word of the glossary → how it looks on a page. Words that everybody knows (array, device, module) are not here.
LOOKS = {
    "host": r"host time|host's part",
    "trace": r"\btrac(e|ed|ing|ers?)\b",
    "retrace": r"\bretrac|traced again",
    "xla": r"\bXLA\b|\blowered\b",
    "buffer": r"\bbuffers?\b",
    "closure": r"clos(e|es|ed|ing) over|\bclosures?\b",
    "pytree": r"\bpytrees?\b",
    "leaf": r"\b(leaf|leaves)\b(?! (yours|them|behind|out))",
    "metadata": r"\bmetadata\b",
    "hook": r"\bhooks?\b",
    "tag": r"\btags?\b",
    "static": r"\bstatic\b",
    "mode": r"\bmodes?\b",
    "structure": r"\bstructures?\b",
    "graphdef": r"\bgraphdefs?\b",
    "state": r"\*\*state\*\*|\ba state\b|\bstates\b",
    "detached": r"\bdetached\b",
    "view": r"\bviews?\b",
    "abstract": r"\babstract\b",
    "filter": r"\bfilters?\b",
    "stream": r"\bstreams?\b",
    "sow": r"\bsow(n|s|ed)?\b",
    "primal": r"\bprimals?\b|tangent",
    "prefix": r"\b[Pp]refix",
    "donation": r"\b[Dd]onat",
    "mesh": r"\bmesh(es)?\b",
    "fsdp": r"\bFSDP\b|fully sharded",
    "lora": r"\bLoRA\b|low-rank|\badapters?\b",
    "manifest": r"\bmanifests?\b",
}
EXPLAINED = re.compile(r"\*{1,2}[^*]+\*{1,2}|^#+ .*$", re.MULTILINE)  # in the text itself, or the subject of a section


def prose_of(text):
    """A page without code and without the targets of its links, in as many characters."""
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])
    text = FENCE.sub(blank, re.sub(r"(?s)\A---.*?---|<!--.*?-->|!\[.*?\]\(.*?\)", blank, text))
    return re.sub(r"`[^`\n]+`", blank, text)


def first_use(looks):
    """Where a newcomer meets a word: page, line, and whether it is linked or explained there."""
    for name in ORDER:
        page = prose_of((DOCS / f"{name}.md").read_text(encoding="utf-8"))
        linked = [(link.span(1), link[2]) for link in re.finditer(r"\[([^]\[]+)\]\(([^)]*)\)", page)]
        told = [found.span() for found in EXPLAINED.finditer(page)]
        targets = [link.span(2) for link in re.finditer(r"\[([^]\[]+)\]\(([^)]*)\)", page)]
        for match in re.finditer(looks, page):
            at = match.start()
            if any(start <= at < end for start, end in targets):
                continue
            is_linked = any(start <= at < end for (start, end), _ in linked)
            return f"{name}.md:{page.count(chr(10), 0, at) + 1}", is_linked or any(a <= at < b for a, b in told)
    return None


@pytest.mark.parametrize("word", LOOKS)
def test_a_word_is_linked_or_explained_where_a_newcomer_meets_it(word):
    met = first_use(LOOKS[word])
    assert met is not None, f"no page of a newcomer uses {word!r}"
    place, is_explained = met
    assert is_explained, f"{place} uses {word!r}: link it to glossary.md#{word}, or explain it there"


def test_the_glossary_has_these_words():
    anchors = re.findall(r'<a id="(\w+)">', (DOCS / "glossary.md").read_text(encoding="utf-8"))
    assert len(set(anchors)) == len(anchors)
    assert set(LOOKS) <= set(anchors)
    linked = set()
    for page in DOCS.rglob("*.md"):
        linked |= set(re.findall(r"glossary\.md#(\w+)", page.read_text(encoding="utf-8")))
    assert linked <= set(anchors)


def test_a_word_in_plain_text_is_found():
    assert re.search(LOOKS["leaf"], prose_of("each leaf of it"))
    assert not re.search(
        LOOKS["leaf"], prose_of("`leaf` and [x](leaf.md)\n```python\nleaf\n```\n").replace("leaf.md", "")
    )
