"""Tests that the time to read a model is linear in its text."""

import time

from cml_engine import nnef


def text_of(count):
    lines = [
        f"    x{i + 1} = conv(x{i}, w, 0.0, stride = [1, 1], dilation = [1, 1], "
        "padding = [(1, 1), (1, 1)], border = 'constant', groups = 1);"
        for i in range(count)
    ]
    head = (
        "version 1.0;\ngraph big(x) -> (y)\n{\n    x = external(shape = [1, 8, 32, 32]);\n"
        "    w = constant(shape = [8, 8, 3, 3], value = [0.5]);\n    x0 = relu(x);\n"
    )
    return head + "\n".join(lines) + f"\n    y = relu(x{count});\n}}\n"


def test_the_time_is_linear(write_model):
    seconds = []
    for count in (1_000, 4_000):
        path = write_model(text_of(count))
        start = time.process_time()
        graph = nnef.load(path, lambda op: True)
        seconds.append(time.process_time() - start)
        assert len(graph.nodes) == count + 2
    assert seconds[1] < 2  # about 0.4 s; the rest is for slow and busy machines
    assert seconds[1] < 10 * seconds[0]  # 4 if linear, 16 if quadratic
