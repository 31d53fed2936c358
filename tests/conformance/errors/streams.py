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
    "squeeze of several splits": Row("plait.split_rngs(rngs, splits=4, squeeze=True)", ArgumentError,
        "squeeze=True and splits=4"),
    "two rules for one stream": Row("plait.with_rngs(rngs, split={'default': 4}, fork='default')", ArgumentError,
        ("at +default", "split by 'default' and fork by 'default'")),
    "an unknown policy": Row("plait.reseed(rngs, default=1, policy='all')", ArgumentError, "policy='all'"),
    "a tag that no stream has": Row("plait.reseed(model, dropout=1)", NothingSelectedWarning,
        ("at +a Two", r"found +dropout= and streams with the tags \['default'\]")),
    "another tag that no stream has": Row("plait.reseed(plait.Rngs(noise=0), dropout=1)", NothingSelectedWarning,
        ("at +a Rngs", r"found +dropout= and streams with the tags \['noise'\]")),
    "many keys in a stream": Row("plait.reseed(many, default=1)", ArgumentError,
        ("at +default", r"found +keys of shape \(4,\), and policy='scalars_only'"), setup=MANY),
    "a key in a reference": Row("plait.split_rngs(node, splits=4)", ArgumentError,
        r"found +a key of shape \(\) that would become \(4,\)",
        setup="node = plait.Rngs(0); node.default.key = plait.RngKey(jax.random.key(0), ref=True, tag='default')"),
    "a word as a seed": Row("plait.Rngs('zero')", ArgumentError, "'zero' of type str"),
    "a shape of a word": Row("rngs.split('four')", ArgumentTypeError, "'four' of type str"),
    "a negative length": Row("rngs.split(-1)", ArgumentError, "found +-1"),
    "a draw from many keys": Row("many.default()", StreamError,
        ("the stream 'default' has an array of keys", r"keys of shape \(4,\)", r"at +many\.default"), setup=MANY),
    "a stream that is not there": Row("plait.Rngs(noise=0).dropout", StreamAttributeError,
        ("no random stream 'dropout'", r"found +the streams \['noise'\]")),
    "an item that is not there": Row("plait.Rngs(noise=0)['dropout']", StreamKeyError,
        ("no random stream 'dropout'", r"found +the streams \['noise'\]")),
    "a call without a default stream": Row("plait.Rngs(noise=0)()", StreamAttributeError,
        ("expected +a stream 'default'", r"found +the streams \['noise'\]")),
    "fork with split": Row("rngs.fork(split=k)", DeprecationWarning, "since plait 0.1", setup="k = 4"),
}  # fmt: skip
