"""Which faults are planted, and which changes are none."""

import random
from pathlib import Path

import pytest

pytest.importorskip("mutmut")

from tools.mutants import judged
from tools.mutants.areas import AREAS
from tools.mutants.faults import places_of, sample

ROOT = Path(__file__).resolve().parents[2]

# A function body, and what may be planted in it: each the changed line, as far as it is known by heart.
PLANTED = {
    "comparison": ("return x < 3", {"return x <= 3", "return x < 4", "return None"}),
    "and": ("return x and y", {"return x or y", "return (x)", "return (y)", "return None"}),
    "not": ("return not x", {"return x", "return None"}),
    "tuple": ("return x, y", {"return (x,)", "return (y,)", "return x,", "return y,", "return None"}),
    "call": ("f(x, y)[0]", {"f(None, y)[0]", "f(y)[0]", "f(x, None)[0]", "f(x, )[0]", "f(x, y)[1]"}),
    "statement": ("x.clear()", {"pass"}),
    "deletion": ("del x[y]", {"pass"}),
    "if": ("if x: y()", {"if True: y()", "if False: y()"}),
    "filter": ("[i for i in x if i]", {"[i for i in x if True]", "[i for i in x if False]"}),
    "assignment": ("x = y", {"x = None"}),
    "string": ("return x['key']", {"return x['XXkeyXX']", "return x['KEY']", "return None"}),
    "sum": ("x += y", {"x -= y", "x = y"}),
    "index": ("return x[-1]", {"return x[+1]", "return x[-2]", "return None"}),
    "where an error is": ("raise SomeError('text', at=f(x), found=g(x))", {
        "raise SomeError('text', at=f(None), found=g(x))", "raise SomeError('text', at=f(x), found=None)",
    }),
    "what an error says": ("raise SomeError(f'one {x}', found=f'{y!r}')", {
        "raise SomeError(f'one ', found=f'{y!r}')", "raise SomeError(f'one {y}', found=f'{y!r}')",
        "raise SomeError(f'one {x}', found=f'')", "raise SomeError(f'one {x}', found=f'{x!r}')",
    }),
    "what an error says in a part": ("raise SomeError(('one' f'{x}' if y else 'two') + f(x))", {
        "raise SomeError(('one' f'' if y else 'two') + f(x))",
    }),
    "what a warning says": ("x = warn(Some, f'{x}')", {"x = warn(Some, f'')", "x = None"}),
}  # fmt: skip

LEFT_ALONE = {
    "docstring": '"""Text."""',
    "annotation": "x: Sequence[tuple[str, 3]]",
    "text of an error": "raise SomeError('one', found='two', do=f'three')",
    "text of an error that a function makes": "raise damaged('one')",
    "text of a warning": "x = warnings.warn('one', stacklevel=3)",
    "text that is chosen": "raise SomeError('one' + f(x), expected='two' if y else 'three')",
    "assertion": "assert x < 3, 'one'",
    "an assertion about lengths": "x = zip(x, y, strict=True)",
    "type checking": "if TYPE_CHECKING:\n    x = 3",
    "cast": "x = cast('str', y)\nreturn",
    "import": "from x import y",
}


def places(text, tmp_path):
    file = tmp_path / "file.py"
    file.write_text("def f(x, y):\n    " + text.replace("\n", "\n    ") + "\n")
    return places_of(file)


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted(name, tmp_path):
    text, expected = PLANTED[name]
    choose = random.Random(0)
    found = {fault.after for place in places(text, tmp_path) for fault in place.faults(tmp_path, choose)}
    assert found <= expected
    assert len(found) >= min(2, len(expected))


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_left_alone(name, tmp_path):
    choose = random.Random(0)
    found = [fault.after for place in places(LEFT_ALONE[name], tmp_path) for fault in place.faults(tmp_path, choose)]
    assert [text for text in found if text != "x = None"] == []


def test_what_is_judged_is_found_again(tmp_path):
    """By what the entry under a survivor says, with the reason that somebody added."""
    (tmp_path / "file.py").write_text("x = f(\n    'it', y)\n")
    for fault in sample(tmp_path, [tmp_path / "file.py"], 9, 0):
        (tmp_path / "judged.toml").write_text(judged.entry(fault) + "\nreason = 'because'\n")
        assert judged.read(tmp_path / "judged.toml") == {(fault.file, fault.before, fault.after): "because"}


def test_what_is_judged_is_still_there():
    """An entry whose lines have gone is taken out; each says why."""
    for (file, before, after), reason in judged.read().items():
        lines = [line.strip() for line in (ROOT / file).read_text().splitlines()]
        wanted = before.split("\n") if before else []
        assert any(lines[i : i + len(wanted)] == wanted for i in range(len(lines))), (file, before)
        assert before != after
        assert len(reason) > 20, (file, before)


@pytest.mark.parametrize("name", AREAS)
def test_an_area_has_a_source_and_tests(name):
    area = AREAS[name]
    assert (ROOT / area.source).is_dir()
    assert all((ROOT / test).exists() for test in area.tests)
    assert list((ROOT / area.source).glob(area.pattern))
