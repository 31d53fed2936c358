"""Write docs/images/*.svg: the logo, the drawings and the curves of the pages. ``python docs/make_drawings.py``.

Drawings take the colour of the text around them, so they are as good in the dark. The site puts them into its pages
(``generated_pages.py``); elsewhere they are images, with the reader's scheme of colours.
"""

# ruff: noqa: E501 (a row of a drawing is one line)
import importlib
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optax

import plait

DOCS = Path(__file__).resolve().parent
IMAGES = DOCS / "images"
STRANDS = ("#e4a03b", "#d1495b", "#3d7ea6")
STYLE = (
    "svg:root{color:#1f2328}@media(prefers-color-scheme:dark){svg:root{color:#e6edf3}}"
    "text{font:13px sans-serif;fill:currentColor}.m{font-family:monospace}.s{font-size:11px;opacity:.75}"
    ".t{font-weight:bold}.box{fill:currentColor;fill-opacity:.05;stroke:currentColor;stroke-opacity:.5}"
    ".cell{fill:#3d7ea6;fill-opacity:.22;stroke:#3d7ea6}.warm{fill:#e4a03b;fill-opacity:.25;stroke:#e4a03b}"
    ".line{fill:none;stroke:currentColor;stroke-opacity:.6}.curve{fill:none;stroke:#d1495b;stroke-width:2.5}"
)


def svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {width} {height}" role="img" '
        f'style="max-width:{width}px">\n<title>{title}</title>\n<style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def box(x: float, y: float, width: float, height: float, words: str = "", kind: str = "box", of: str = "") -> str:
    shape = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>'
    return shape + (text(x + width / 2, y + height / 2 + 4, words, of, "middle") if words else "")


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    turn = math.atan2(to_y - y, to_x - x)
    ends = [(to_x - 7 * math.cos(turn + side), to_y - 7 * math.sin(turn + side)) for side in (-0.4, 0.4)]
    head = "".join(f"M{to_x:.1f} {to_y:.1f}L{a:.1f} {b:.1f}" for a, b in ends)
    return f'<path class="line" d="M{x:g} {y:g}L{to_x:g} {to_y:g}{head}"/>'


def host_time() -> str:
    """Python overhead of a step, as bars, from the table between FIGURES and END OF FIGURES of the README.

    A bar is solid up to the smallest of the recorded runs, and faint from there to the largest.
    """
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    table = readme.partition("<!-- FIGURES")[2].partition("<!-- END OF FIGURES")[0]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    parts = [
        text(4, 15, "Python overhead of a compiled step", "t"),
        text(4, 32, "jax.jit on a flat list of arrays = 1", "s"),
    ]
    scale, y = 242 / 32, 44
    for column, library in enumerate(rows[0][1:], 1):
        parts.append(text(4, y + 12, library.replace("`", ""), "" if column > 1 else "t"))
        y += 18
        for row in rows[2:]:
            low, high = (float(each) for each in row[column].split(" to "))
            parts.append(text(72, y + 9, row[0], "s", "end"))
            for value in (low, high):
                parts.append(
                    f'<rect fill="{STRANDS[1 if column == 1 else 2]}" fill-opacity=".6" x="78" y="{y}" width="{scale * value:.1f}" height="10"/>'
                )
            parts.append(text(84 + scale * high, y + 9, row[column].replace(" to ", "–"), "s"))
            y += 14
        y += 6
    return svg(380, y, "Python overhead of a compiled step, relative to jax.jit on a flat list of arrays", parts)


def logo() -> str:
    """Three strands of a plait, drawn from back to front."""
    pieces = []
    for strand, colour in enumerate(STRANDS):
        for i in range(36):
            a, b = (3.2 * math.pi * k / 36 for k in (i, i + 1.25))
            phase = 2 * math.pi * strand / 3
            points = [(32 + 17 * math.sin(t + phase), 3 + 58 * t / (3.2 * math.pi)) for t in (a, b)]
            depth = math.sin(2 * ((a + b) / 2 + phase))
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            pieces.append((depth, f'<path d="{path}" stroke="{colour}" stroke-width="10" stroke-linecap="round"/>'))
    parts = "\n".join(piece for _, piece in sorted(pieces))
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><title>plait</title>\n{parts}\n</svg>\n'


def variables() -> str:
    parts = [text(10, 20, "your objects", "t"), box(10, 30, 300, 170), text(22, 50, "model", "m t")]
    for y, name in ((62, "conv"), (130, "out")):
        parts += [box(24, y, 272, 58), text(36, y + 18, f"{name} (a layer)", "m")]
        parts += [
            box(36, y + 26, 110, 24, "Param bias", "cell", "m"),
            box(156, y + 26, 130, 24, "Param kernel", "cell", "m"),
        ]
    parts += [text(452, 20, "arrays on the device", "t")]
    for y, size in ((88, "float32[3,3,1,16]"), (156, "float32[256,10]")):
        parts += [box(450, y, 160, 24, size, "warm", "m"), arrow(287, y + 12, 446, y + 12)]
    parts += [text(324, 92, "a variable holds", "s"), text(324, 116, "an array;", "s")]
    parts += [text(324, 160, "a write puts another", "s"), text(324, 184, "array there", "s")]
    return svg(620, 210, "A model is objects; a variable is a cell that holds an array", parts)


def graph() -> str:
    parts = [text(10, 20, "model", "t"), box(10, 30, 150, 110), text(22, 50, "Net", "m t")]
    parts += [box(24, 60, 120, 28, "layers[0]", of="m"), box(24, 98, 120, 28, "layers[1]", of="m")]
    parts += [arrow(165, 70, 245, 70), text(205, 60, "split", "m", "middle"), arrow(245, 100, 165, 100)]
    parts += [text(205, 118, "merge", "m", "middle"), text(255, 20, "graphdef: static, hashable", "t")]
    parts += [box(255, 30, 345, 34, "Net · layers: [Linear, Linear] · sharing", of="m")]
    parts += [text(255, 90, "state: arrays by path", "t")]
    for i, name in enumerate(("layers/0/bias", "layers/0/kernel", "layers/1/kernel")):
        parts.append(box(255 + 117 * i, 100, 111, 30, name, "cell", "m s"))
    return svg(610, 150, "An object graph, and its flat form: a graphdef and a state", parts)


def call() -> str:
    steps = (("gather", "arrays out of", "your objects"), ("enter", "private copies", "around tracers"),
             ("leave", "what did the", "function change?"), ("write back", "new arrays into", "your objects"))  # fmt: skip
    parts = []
    for i, (name, *lines) in enumerate(steps):
        x = 8 + 152 * i
        inside = i in (1, 2)
        parts += [
            box(x, 30, 132, 78, kind="cell" if inside else "box"),
            text(x + 66, 52, f"{i + 1}. {name}", "t", "middle"),
        ]
        parts += [text(x + 66, 72 + 16 * n, line, "s", "middle") for n, line in enumerate(lines)]
        parts += [arrow(x + 133, 69, x + 150, 69)] if i < 3 else []
    parts += [text(312, 18, "inside the JAX transform: traced once, then compiled", "s", "middle")]
    return svg(612, 116, "The four steps of a call: gather, enter, leave, write back", parts)


def rooms() -> str:
    """The rooms of src/plait; each imports from the rows below it."""
    rows = (
        ("cli",), ("training", "generation", "flax"), ("inspect", "models"), ("convert", "export"), ("edit", "checkpoint"),
        ("nn",), ("transforms", "partitioning"), ("core",), ("util",),
    )  # fmt: skip
    parts = []
    for i, row in enumerate(rows):
        width = (600 - 10 * (len(row) - 1)) / len(row)
        for n, name in enumerate(row):
            heart = name in ("core", "transforms")
            parts.append(box(8 + n * (width + 10), 8 + 34 * i, width, 26, name, "cell" if heart else "box", "m"))
    return svg(616, 34 * len(rows) + 8, "The rooms of src/plait; each imports only from rows below it", parts)


def stack() -> str:
    parts = [text(10, 20, "a list: three programs", "t"), text(330, 20, "a Stack: one program, three layers", "t")]
    for i in range(3):
        parts += [box(10 + 92 * i, 32, 76, 44, f"Block {i}", of="m")]
        parts += [arrow(87 + 92 * i, 54, 101 + 92 * i, 54)] if i < 2 else []
        parts += [box(20 + 92 * i, 86, 56, 22, "(8, 8)", "warm", "m s")]
    parts += [
        box(330, 32, 110, 44, "Block", of="m"),
        '<path class="line" d="M440 44c34 -22 34 42 4 24m0 0l9 -1m-9 1l3 -8"/>',
    ]
    parts += [text(478, 58, "scan, 3 times", "s"), box(330, 86, 110, 22, "(3, 8, 8)", "warm", "m s")]
    parts += [text(450, 101, "arrays with a layer axis", "s")]
    return svg(620, 118, "A list of blocks is compiled block by block; a stack once", parts)


def curve(title: str, losses: Sequence[float], unit: str = "loss") -> str:
    """A training curve on a logarithmic axis."""
    low, high = math.floor(math.log10(min(losses))), math.ceil(math.log10(max(losses)))
    place = lambda i, loss: (46 + 420 * i / (len(losses) - 1), 20 + 150 * (high - math.log10(loss)) / (high - low))
    parts = []
    for power in range(low, high + 1):
        _, y = place(0, 10.0**power)
        parts += [
            f'<path class="line" stroke-dasharray="2 4" d="M46 {y:.1f}H466"/>',
            text(40, y + 4, f"{10.0**power:g}", "s", "end"),
        ]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(i, loss) for i, loss in enumerate(losses)))
    parts += [f'<polyline class="curve" points="{points}"/>', text(46, 12, unit, "s")]
    parts += [text(466, 190, f"{len(losses)} steps", "s", "end"), text(46, 190, "1", "s")]
    return svg(480, 196, title, parts)


def images(title: str, pictures: Sequence[Sequence[Sequence[float]]], columns: int, pixel: int = 6) -> str:
    """Small pictures of values from 0 to 1, in rows; each grey level is one path."""
    levels = 9
    paths: dict[int, list[str]] = {}
    size = len(pictures[0])
    for n, picture in enumerate(pictures):
        left, top = (n % columns) * (size + 1), n // columns * (size + 1)
        for i, row in enumerate(picture):
            for j, value in enumerate(row):
                place = f"M{pixel * (left + j)} {pixel * (top + i)}h{pixel}v{pixel}h-{pixel}z"
                paths.setdefault(round(levels * float(value)), []).append(place)
    parts = [
        f'<path fill="currentColor" fill-opacity="{level / levels:.2f}" d="{"".join(places)}"/>'
        for level, places in sorted(paths.items())
        if level
    ]
    rows = -(-len(pictures) // columns)
    return svg(pixel * (columns * (size + 1) - 1), pixel * (rows * (size + 1) - 1), title, parts)


def points(title: str, clouds: Sequence[Sequence[Sequence[float]]]) -> str:
    """Clouds of points in the plane, side by side, each with the circle of radius 1."""
    parts = []
    for n, cloud in enumerate(clouds):
        x0 = 100 + 210 * n
        parts.append(f'<circle class="line" stroke-dasharray="2 4" cx="{x0}" cy="100" r="40"/>')
        dots = "".join(f"M{x0 + 40 * x:.1f} {100 - 40 * y:.1f}h0" for x, y in cloud if max(abs(x), abs(y)) < 2.4)
        parts.append(f'<path stroke="#d1495b" stroke-width="2.5" stroke-linecap="round" d="{dots}"/>')
    return svg(210 * len(clouds) - 10, 200, title, parts)


def example(name: str) -> Any:
    """The module of an example program."""
    sys.path.insert(0, str(DOCS.parent / "examples"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def digits_of_the_vae() -> str:
    model, _ = example("vae").train(40)
    return images("Digits that the autoencoder has drawn", model.draw(24).tolist(), columns=12)


def points_of_the_diffusion() -> str:
    diffusion, steps, levels = example("diffusion"), 2000, 40
    rngs = plait.Rngs(0)
    model = diffusion.Denoiser(64, levels, rngs=rngs)
    optimizer = plait.Optimizer(model, optax.adam(optax.cosine_decay_schedule(3e-3, steps)), wrt=plait.Param)
    for _ in range(steps):
        diffusion.train_step(model, optimizer, rngs, levels=levels, batch=256)
    noise = rngs.noise.normal((400, 2))
    made = diffusion.sample(model, rngs, levels=levels, count=400)
    return points("400 points of noise, and 400 that the model has made of noise", [noise.tolist(), made.tolist()])


def first_block(page: str, print_of: str) -> dict[str, object]:
    """Run the first blocks of a page, and return its names."""
    names: dict[str, object] = {}
    for code in re.findall(
        r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        exec(code, names)
        if print_of in names:
            break
    return names


STATIC = {
    "logo": logo,
    "host-time": host_time,
    "variables": variables,
    "graph": graph,
    "call": call,
    "stack": stack,
    "rooms": rooms,
}


def main() -> None:
    """Write all of them; the curves come from the programs on their pages."""
    IMAGES.mkdir(exist_ok=True)
    drawn = {name: draw() for name, draw in STATIC.items()}
    drawn["quickstart-curve"] = curve(
        "The loss of the quickstart's classifier", first_block("quickstart.md", "losses")["losses"]
    )
    drawn |= {"vae": digits_of_the_vae(), "diffusion": points_of_the_diffusion()}
    for name, drawing in drawn.items():
        (IMAGES / f"{name}.svg").write_text(drawing, encoding="utf-8")


if __name__ == "__main__":
    main()
