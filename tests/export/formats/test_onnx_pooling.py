"""Pooling over fewer axes means the same."""

import numpy as np
import pytest

from plait.export.formats.onnx_pooling import narrow_pools
from tests.lazily import Lazily

onnx = Lazily("onnx")
runtime = Lazily("onnxruntime")
pytestmark = pytest.mark.oracle

# shape of the array, then for each axis the window, the stride, the padding before and after, the dilation
CASES = {
    "images": ((2, 6, 5, 3), (1, 2, 2, 1), (1, 2, 1, 1), ((0, 0), (0, 0), (1, 0), (0, 0)), (1, 1, 1, 1)),
    "channels first": ((2, 3, 6, 5), (1, 1, 3, 2), (1, 1, 1, 1), ((0, 0), (0, 0), (1, 1), (0, 0)), (1, 1, 2, 1)),
    "one pooled axis": ((2, 6, 4, 3), (1, 3, 1, 1), (1, 2, 1, 1), ((0, 0),) * 4, (1, 1, 1, 1)),
    "volumes": ((2, 4, 5, 4, 3), (1, 2, 3, 2, 1), (1, 1, 2, 1, 1), ((0, 0),) * 5, (1, 1, 1, 1, 1)),
}


def pooling_model(shape, kernel, strides, padding, dilations):
    node, axes = onnx.helper.make_node, onnx.numpy_helper.from_array(np.array([0, 1]), "axes")
    pads = [before for before, _ in padding] + [after for _, after in padding]
    window = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    nodes = [
        node("Unsqueeze", ["x", "axes"], ["wide"]),
        node("MaxPool", ["wide"], ["pooled"], **window),
        node("Squeeze", ["pooled", "axes"], ["y"]),
    ]
    value = onnx.helper.make_tensor_value_info
    x, y = value("x", 1, shape), value("y", 1, [None] * len(shape))
    graph = onnx.helper.make_graph(nodes, "pooling", [x], [y], [axes])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)


def max_pool(x, kernel, strides, padding, dilations):
    """The slow, obvious one: the maximum over each offset within the window."""
    x = np.pad(x, padding, constant_values=-np.inf)
    reach = [(size - 1) * dilation for size, dilation in zip(kernel, dilations, strict=True)]
    shifted = []
    for offset in np.ndindex(*kernel):
        starts = [place * dilation for place, dilation in zip(offset, dilations, strict=True)]
        cut = zip(starts, x.shape, reach, strides, strict=True)
        shifted.append(x[tuple(slice(start, start + size - far, step) for start, size, far, step in cut)])
    return np.max(shifted, axis=0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_narrowed_pool_gives_the_same_maxima(case):
    shape, *window = case
    model = pooling_model(shape, *window)
    narrow_pools(model, onnx)
    onnx.checker.check_model(model)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], max_pool(x, *window))


@pytest.mark.parametrize("kernel", [(2, 2, 1), (2, 2, 2, 1), (2, 1, 2, 2)])
def test_a_pool_that_is_narrow_or_cannot_be_narrowed_is_left_alone(kernel):
    ones, zeros = (1,) * len(kernel), ((0, 0),) * len(kernel)
    model = pooling_model((4,) * len(kernel), kernel, ones, zeros, ones)
    before = model.SerializeToString()
    narrow_pools(model, onnx)
    assert model.SerializeToString() == before
