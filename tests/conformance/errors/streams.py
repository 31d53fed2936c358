"""Mistakes with random streams: seeds, splitting, reseeding."""

from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    NothingSelectedWarning,
    StreamAttributeError,
    StreamError,
    StreamKeyError,
)

from .rows import Row

MANY = "many = plait.with_rngs(rngs, split=4)\n"

ROWS = {
    "squeeze of several splits": Row(
        "plait.split_rngs(rngs, splits=4, squeeze=True)",
        ArgumentError,
        "squeeze=True and splits=4",
        "plait.split_rngs(plait.Rngs(0), splits=1, squeeze=True)\nplait.split_rngs(plait.Rngs(0), $)",
        fix="splits=1",
    ),
    "two rules for one stream": Row(
        "plait.with_rngs(rngs, split={'default': 4}, fork='default')",
        ArgumentError,
        (r"at +default", "split by 'default' and fork by 'default'"),
        "plait.with_rngs(rngs, split={'default': 4})",
    ),
    "an unknown policy": Row(
        "plait.reseed(rngs, default=1, policy='all')",
        ArgumentError,
        "policy='all'",
        fix="policy='match_shape'",
        cure="plait.reseed(rngs, default=1, $)",
    ),
    "a tag that no stream has": Row(
        "plait.reseed(model, dropout=1)",
        NothingSelectedWarning,
        ("dropout=", r"\['default'\]"),
        fix="plait.reseed(node, default=seed)",
        cure="node, seed = model, 1; $",
    ),
    "another tag that no stream has": Row(
        "plait.reseed(plait.Rngs(noise=0), dropout=1)",
        NothingSelectedWarning,
        ("dropout=", r"\['noise'\]"),
        "plait.reseed(plait.Rngs(noise=0), noise=1)",
    ),
    "many keys in a stream": Row(
        "plait.reseed(many, default=1)",
        ArgumentError,
        (r"at +default", r"keys of shape \(4,\)"),
        setup=MANY,
        fix="policy='match_shape'",
        cure="plait.reseed(many, default=1, $)\n"
        "plait.reseed(many, default=1, policy=lambda path, key, shape: jax.random.split(key, shape))",
    ),
    "a key in a reference": Row(
        "plait.split_rngs(node, splits=4)",
        ArgumentError,
        r"that would become \(4,\)",
        setup="node = plait.Rngs(0); node.default.key = plait.RngKey(jax.random.key(0), ref=True, tag='default')",
        fix="plait.split_rngs(node, splits=(4,), graph_updates=False)",
    ),
    "a word as a seed": Row(
        "plait.Rngs('zero')",
        ArgumentError,
        "'zero' of type str",
        fix="plait.Rngs(params=0, dropout=1)",
    ),
    "a shape of a word": Row(
        "rngs.split('four')", ArgumentTypeError, "'four' of type str", "rngs.split(4)\nplait.Rngs(0).split((2, 4))"
    ),
    "a negative length": Row("rngs.split(-1)", ArgumentError, "found +-1", "rngs.split(4)"),
    "a draw from many keys": Row(
        "many.default()",
        StreamError,
        (r"the stream 'default' has an array of keys", r"keys of shape \(4,\)"),
        setup="many = plait.Rngs(0); backups = plait.split_rngs(many, splits=4)",
        fix="plait.restore_rngs(backups)",
        cure="$; many.default()",
    ),
    "a stream that is not there": Row(
        "plait.Rngs(noise=0).dropout",
        StreamAttributeError,
        ("no random stream 'dropout'", r"\['noise'\]"),
        fix="plait.Rngs(dropout=0)",
        cure="$.dropout()",
    ),
    "an item that is not there": Row(
        "plait.Rngs(noise=0)['dropout']",
        StreamKeyError,
        "no random stream 'dropout'",
        fix="plait.Rngs(0)",
        cure="$['dropout']()",
    ),
    "a call without a default stream": Row(
        "plait.Rngs(noise=0)()",
        StreamAttributeError,
        "expected +a stream 'default'",
        fix="plait.Rngs(default=0)",
        cure="$()",
    ),
    "fork with split": Row(
        "rngs.fork(split=k)", DeprecationWarning, "since plait 0.1", "rngs.$", fix="split(k)", setup="k = 4"
    ),
}
