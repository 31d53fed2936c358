"""Rewrites ONNX pooling to few enough axes for the runtimes.

jax2onnx converts JAX's windowed reductions to an ONNX pooling over *every* axis of the array, including batch and
features, with a window of 1 there. ONNX allows that, but ONNX Runtime pools over at most three axes, so it rejects the
2-d pooling of a ``(batch, height, width, features)`` array, which has four.

ONNX pooling does not pool two axes, the batch and the channels. So two of the axes with a trivial window (size and
stride 1, no padding) are moved there, and the other axes are pooled::

    (1, 1, b, h, w, c) --Pool[1, k, k, 1]-->   becomes
    (1, 1, b, h, w, c) --Squeeze, Transpose--> (b, c, h, w) --Pool[k, k]--> --Transpose, Unsqueeze-->

which is the same sum or maximum over the same elements. The pairs of Unsqueeze and Squeeze that now meet cancel in
every runtime's own optimiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

POOLS = ("MaxPool", "LpPool")
MOST_AXES = 3


def narrow_pools(model: Any, onnx: Any) -> None:
    """Rewrite, in place, each pooling of ``model`` (a ``ModelProto``) over more axes than runtimes pool over."""
    rewritten = []
    for node in model.graph.node:
        rewritten += _narrowed(node, model.graph, onnx) if node.op_type in POOLS else [node]
    if len(rewritten) != len(model.graph.node):
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in rewritten]
        del model.graph.node[:]
        model.graph.node.extend(nodes)


def _narrowed(pool: Any, graph: Any, onnx: Any) -> Sequence[Any]:
    """The nodes that replace ``pool``: itself if it has few enough axes, or if no two axes are trivial."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in pool.attribute}
    kernel = list(attributes["kernel_shape"])
    rank = len(kernel)
    strides = list(attributes.get("strides", [1] * rank))
    pads = list(attributes.get("pads", [0] * 2 * rank))
    dilations = list(attributes.get("dilations", [1] * rank))
    trivial = [
        axis for axis in range(rank) if kernel[axis] == strides[axis] == 1 and pads[axis] == pads[axis + rank] == 0
    ]
    if rank <= MOST_AXES or len(trivial) < 2 or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        return [pool]
    still = [trivial[0], trivial[-1]]
    pooled = [axis for axis in range(rank) if axis not in still]
    order = still + pooled
    attributes.update(
        kernel_shape=[kernel[axis] for axis in pooled],
        strides=[strides[axis] for axis in pooled],
        pads=[pads[axis] for axis in pooled] + [pads[axis + rank] for axis in pooled],
        dilations=[dilations[axis] for axis in pooled],
    )
    start, end = pool.input[0], pool.output[0]
    axes = f"{end}_outer_axes"
    graph.initializer.append(onnx.helper.make_tensor(axes, onnx.TensorProto.INT64, [2], [0, 1]))
    node = onnx.helper.make_node
    return [
        node("Squeeze", [start, axes], [f"{end}_squeezed"]),
        node("Transpose", [f"{end}_squeezed"], [f"{end}_channels_first"], perm=order),
        node(pool.op_type, [f"{end}_channels_first"], [f"{end}_pooled"], name=pool.name, **attributes),
        node("Transpose", [f"{end}_pooled"], [f"{end}_in_order"], perm=[order.index(axis) for axis in range(rank)]),
        node("Unsqueeze", [f"{end}_in_order", axes], [end]),
    ]
