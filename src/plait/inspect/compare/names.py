"""Which module of one model corresponds to which module of another.

Equal paths match first, then paths that are equal after usual names are normalised (``self_attn`` is ``attention``,
``q_proj`` is ``query``, ``Dense_0`` is ``dense.0``). A name map takes precedence over both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable

from ...convert.name_map import NameMap, Names
from ...errors import ArgumentError
from ...util.paths import Path
from ...util.words import first_few
from .calls import Call, Run

_WORDS = {
    "attention": "attn self_attn self_attention selfattention mha multi_head_attention multihead_attention "
    "multiheadattention multi_head_dot_product_attention",
    "query": "q q_proj wq to_q query_proj q_lin",
    "key": "k k_proj wk to_k key_proj k_lin",
    "value": "v v_proj wv to_v value_proj v_lin",
    "qkv": "c_attn in_proj qkv_proj query_key_value wqkv to_qkv",
    "out": "o o_proj out_proj wo to_out out_lin",
    "mlp": "ffn feed_forward feedforward ff",
    "up": "fc1 linear1 dense1 up_proj c_fc w1 wi lin1 fc_1 fc_in linear_1 dense_1",
    "down": "fc2 linear2 dense2 down_proj w2 lin2 fc_2 fc_out linear_2 dense_2",
    "gate": "gate_proj wi_gate",
    "norm1": "ln1 ln_1 norm_1 layer_norm1 layer_norm_1 input_layernorm attention_norm attn_norm pre_attention_norm",
    "norm2": "ln2 ln_2 norm_2 layer_norm2 layer_norm_2 post_attention_layernorm ffn_norm mlp_norm pre_mlp_norm",
    "norm": "ln ln_f final_norm final_layernorm final_layer_norm norm_f layernorm layer_norm",
    "layers": "layer blocks block h",
    "embed": "embedding embeddings tok_embeddings token_embedding tok_embed token_embed wte embed_tokens "
    "word_embeddings embedder",
    "positions": "wpe pos pos_embed pos_embedding position_embedding position_embeddings positional_embedding",
    "head": "lm_head classifier output_projection unembed logits",
}
_USUAL = {word: name for name, words in _WORDS.items() for word in words.split()}
_OF_THREE = {"w1": "gate", "w3": "up"}  # where there are w1, w2 and w3, as in LLaMA


@dataclasses.dataclass(frozen=True)
class Matching:
    """Corresponding calls of two runs.

    Attributes:
        pairs: in the order in which the calls of the first run ended.
        unmatched_a, unmatched_b: paths without a counterpart.
    """

    pairs: tuple[tuple[Call, Call], ...]
    unmatched_a: tuple[str, ...]
    unmatched_b: tuple[str, ...]


Place = tuple[Path, str]  # path and method


def match(a: Run, b: Run, names: Names = None) -> Matching:
    """Match the calls of two runs.

    Args:
        a, b: the runs.
        names: a map from names of ``b`` to those of ``a``, both dotted; ``None`` drops a name.

    Raises:
        ArgumentError: a rule of ``names`` matches nothing or has no target, or no module has a counterpart.
    """
    ours, theirs = _places(a), _places(b)
    found: dict[Place, Place] = {((), ""): ((), "")}
    _by_map(ours, theirs, names, found)
    dropped = {place for place in theirs if _renamed(place, names) is None}
    theirs = {place: calls for place, calls in theirs.items() if place not in dropped}
    _by_name(ours, theirs, _dotted, _dotted, found)
    _by_name(ours, theirs, _usual_names(ours), _usual_names(theirs), found)
    _check_some(ours, theirs, found, dropped)
    counterpart = {}
    for place, other in found.items():
        counterpart.update(zip(ours[place], theirs[other], strict=False))
    taken = set(found.values())
    return Matching(
        tuple((call, counterpart[call]) for call in a.calls if call in counterpart),
        tuple(calls[0].place for place, calls in ours.items() if place not in found),
        tuple(calls[0].place for place, calls in theirs.items() if place not in taken),
    )


def _places(run: Run) -> dict[Place, list[Call]]:
    """The calls of each method of each module, in order."""
    places: dict[Place, list[Call]] = {}
    for call in run.calls:
        places.setdefault((call.path, call.method), []).append(call)
    return places


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _usual_names(places: Iterable[Place]) -> Callable[[Path], str]:
    """``usual_name`` for the modules of one model."""
    gated = frozenset(path[:-1] for path, _ in places if path[-1:] == ("w3",))
    return lambda path: usual_name(path, gated)


def usual_name(path: Path, gated: frozenset[Path] = frozenset()) -> str:
    """The path with usual names normalised; ``gated`` are the paths of modules with three numbered layers."""
    words: list[str] = []
    for end, part in enumerate(path):
        word = _snake(str(part))
        word = _OF_THREE.get(word, word) if path[:end] in gated else word
        word = _USUAL.get(word, word)
        if word not in _WORDS and (numbered := re.fullmatch(r"(.+?)_?(\d+)", word)):
            words += [_USUAL.get(numbered[1], numbered[1]), numbered[2]]
        else:
            words.append(word)
    while len(words) > 1 and words[0] in ("model", "transformer", "module", "backbone", "net"):
        del words[0]
    return ".".join(words)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _by_map(
    ours: dict[Place, list[Call]], theirs: dict[Place, list[Call]], names: Names, found: dict[Place, Place]
) -> None:
    if names is None:
        return
    rename = NameMap(names)
    by_name = {_dotted((*path, method) if method else path): (path, method) for path, method in ours}
    by_name |= {_dotted(path): (path, "") for path, method in ours if not method}
    lost = []
    for path, method in theirs:
        name = _dotted((*path, method) if method else path)
        new = rename(name)
        if new is None or new == name:
            continue
        if new in by_name:
            found[by_name[new]] = (path, method)
        else:
            lost.append(f"{name} -> {new}")
    if rename.unused or (lost and len(found) == 1):
        raise ArgumentError(
            "the name map does not fit the models",
            at="names",
            found=first_few([*(f"{rule!r}, which matches nothing in b" for rule in rename.unused), *lost]),
            expected=f"names of b ({first_few([_dotted(path) for path, _ in theirs if path], 5)}) mapped to those of "
            f"a ({first_few([_dotted(path) for path, _ in ours if path], 5)})",
            do="names={'their.name': 'our.name'}, with dots between all keys: 'layers.0.attention'",
        )


def _renamed(place: Place, names: Names) -> str | None:
    name = _dotted((*place[0], place[1]) if place[1] else place[0])
    return name if names is None or not name else NameMap(names)(name)


def _by_name(
    ours: dict[Place, list[Call]],
    theirs: dict[Place, list[Call]],
    spelling: Callable[[Path], str],
    other_spelling: Callable[[Path], str],
    found: dict[Place, Place],
) -> None:
    """Match equal names; a name that several modules of one model have is ignored."""
    taken = set(found.values())
    mine = _names(ours, [place for place in ours if place not in found], spelling)
    others = _names(theirs, [place for place in theirs if place not in taken], other_spelling)
    for name, place in mine.items():
        if place is not None and others.get(name) is not None and place not in found:
            other = others[name]
            if other is not None and other not in taken:
                found[place] = other
                taken.add(other)


def _names(
    places: dict[Place, list[Call]], left: Iterable[Place], spelling: Callable[[Path], str]
) -> dict[str, Place | None]:
    names: dict[str, Place | None] = {}
    for place in left:
        for alias in dict.fromkeys(spelling(path) for path in places[place][0].aliases):
            name = f"{alias}:{place[1]}"
            names[name] = None if name in names else place
    return names


def _check_some(
    ours: dict[Place, list[Call]], theirs: dict[Place, list[Call]], found: dict[Place, Place], dropped: set[Place]
) -> None:
    if len(found) > 1 or len(ours) == 1 or len(theirs) + len(dropped) == 1:
        return
    raise ArgumentError(
        "no module of one model corresponds to one of the other",
        found=f"a has {first_few([_dotted(path) for path, _ in ours if path], 5)}; "
        f"b has {first_few([_dotted(path) for path, _ in theirs if path], 5)}",
        expected="equal names, usual names (self_attn for attention), or a map of names",
        do="plait.compare(a, b, x, names={'transformer.h.*': 'blocks.*'}), with names of b on the left",
    )
