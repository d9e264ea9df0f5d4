"""Tests of ``map_network``: each row equals the network's result for its input.

This holds for any batching and after any number of restarts.
"""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

import cml_engine as cml
from cml_engine import InputError
from cml_engine.distributed import Report, map_network, run
from cml_engine.distributed import map as map_module
from cml_engine.distributed import report as reports
from cml_engine.distributed.cluster import connect
from cml_engine.distributed.map import NetworkWork, _graphs
from cml_engine.distributed.sources import ItemSource, ZarrSource, open_source
from cml_engine.ir.graph import Fact, Graph, Node
from cml_engine.tools import cli
from tests.fixtures.models import write_model
from tests.fixtures.pages import example

pytest.importorskip("distributed")
zarr = pytest.importorskip("zarr")
google_crc32c = pytest.importorskip("google_crc32c")

PAGE = "docs/cluster.md"
CONV = """version 1.0;
graph net(image) -> (out)
{
    image = external<scalar>(shape = [1, 3, 8, 8]);
    filter = variable<scalar>(shape = [4, 3, 3, 3], label = 'filter');
    sums = conv(image, filter, 0.0);
    out = relu(sums);
}
"""
TWO = """version 1.0;
graph two(a, b) -> (sum, big)
{
    a = external<scalar>(shape = [2, 3]);
    b = external<scalar>(shape = [2, 3]);
    sum = add(a, b);
    big = gt(a, b);
}
"""
PLACES = """version 1.0;
graph places(x) -> (found, count)
{
    x = external<scalar>(shape = [1, 4]);
    places, count = nonzero(x, capacity = 4);
    found = keep_first(places, count, axis = 1);
}
"""
COUNTER = """version 1.0;
graph counter(x) -> (y)
{
    x = external<scalar>(shape = [1, 2]);
    state = variable<scalar>(shape = [1, 2], label = 'state');
    y = add(x, state);
    state1 = update(state, y);
}
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    filters = np.random.default_rng(1).random((4, 3, 3, 3), np.float32) - 0.5
    return write_model(tmp_path / "net.nnef", CONV, filter=filters)


def images(folder: Path, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    folder.mkdir()
    made = [rng.random((1, 3, 8, 8), np.float32) for _ in range(count)]
    for number, image in enumerate(made):
        np.save(folder / f"{number:03}.npy", image)
    return made


def expected(model: Path, inputs: list[Any]) -> list[dict[str, np.ndarray]]:
    session = cml.Session(cml.load(model), "cpu")
    return [session.run(item) for item in inputs]


@pytest.fixture
def mapped(client: Any, net: Path, tmp_path: Path) -> Callable[..., Report]:
    """A function that maps a network over the arrays in the folder ``in`` into ``out.zarr``."""

    def map_here(
        model: Path = net, inputs: Any = "in/*.npy", out: str = "out.zarr", **more: Any
    ) -> Report:
        source, store = str(tmp_path / inputs), tmp_path / out
        return map_network(cml.load(model), source, store, client, **{"backend": "cpu", **more})

    return map_here


@pytest.mark.parametrize("batch, per_task", [(1, 1), (4, 8), (None, None)])
def test_map_rows_equal_session_outputs(mapped, net, tmp_path, rng, batch, per_task):
    inputs = images(tmp_path / "in", 19, rng)
    report = mapped(batch=batch, per_task=per_task)
    assert report.complete and report.made == 19 and report.device == "CPU (NumPy)"
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    for row, outputs in enumerate(expected(net, [{"image": image} for image in inputs])):
        assert_array_equal(group["out"][row], outputs["out"])
    assert list(group["input_names"][:]) == [f"{tmp_path}/in/{i:03}.npy" for i in range(19)]
    again = mapped()
    assert (again.made, again.kept) == (0, 19)


def test_names_of_inputs_are_any_text(mapped, tmp_path, rng):
    images(tmp_path / "in", 2, rng)
    (tmp_path / "in/000.npy").rename(tmp_path / "in" / os.fsdecode("ä 'q' ÿ.npy".encode("latin-1")))
    (tmp_path / "in/001.npy").rename(tmp_path / "in/höhe 'q'.npy")
    mapped(inputs="in/*'q'*")
    names = zarr.open_group(tmp_path / "out.zarr", mode="r")["input_names"][:]
    assert list(names) == [f"{tmp_path}/in/höhe 'q'.npy", f"{tmp_path}/in/\\udce4 'q' \\udcff.npy"]


def test_a_complete_store_needs_no_cluster(mapped, net, tmp_path, rng, monkeypatch):
    """A map into a complete store starts no workers and no GPU, and still finds damaged chunks."""
    images(tmp_path / "in", 9, rng)
    first = mapped(batch=1, per_task=2)
    more = {"backend": "cpu"}

    def start(*given, **options):
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(run, "connect", start)
    monkeypatch.setattr(map_module, "default_workers", start)
    for verify in (True, False):
        report = map_network(
            cml.load(net), str(tmp_path / "in/*.npy"), tmp_path / "out.zarr", verify=verify, **more
        )
        assert (report.made, report.kept, report.total) == (0, 9, 9)
        assert report.complete and report.device == first.device
    with monkeypatch.context() as patched:
        patched.setattr(map_module, "device_name", lambda session: "another")
        with pytest.raises(InputError, match="with another device"):
            map_network(cml.load(net), str(tmp_path / "in/*.npy"), tmp_path / "out.zarr", **more)
    (chunk,) = (tmp_path / "out.zarr/out").glob("c.1.*")
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"\0")
    with pytest.raises(AssertionError, match="a cluster was started"):
        map_network(cml.load(net), str(tmp_path / "in/*.npy"), tmp_path / "out.zarr", **more)


def test_progress_without_a_terminal(monkeypatch):
    """A line after a second, then every half minute, and one for every lost worker at once."""
    now, stream = [100.0], io.StringIO()
    monkeypatch.setattr(reports.time, "monotonic", lambda: now[0])
    report = Report("out.zarr", total=10, what="inputs")
    with reports.show_progress("inputs", stream) as show:
        for now[0], made in ((100.5, 0), (101.5, 0), (110.0, 1), (132.0, 4)):
            report.made, report.seconds = made, now[0] - 100
            show(report)
        report.lose_worker("tcp://a")
        for now[0] in (133.0, 134.0):
            show(report)
    assert [line.split("workers", 1)[1] for line in stream.getvalue().splitlines()] == [
        ": 0 of 10", ": 4 of 10, 0.1/s, 0:48 left", ", workers lost: 1: 4 of 10, 0.1/s, 0:48 left",
    ]  # fmt: skip
    assert "lost: tcp://a: its process ended, and its tasks were repeated" in str(report)
    assert report.to_json()["lost"] == ["tcp://a"]


def test_a_trace_has_every_task_its_steps_and_their_operators(mapped, tmp_path, rng):
    images(tmp_path / "in", 6, rng)
    file = tmp_path / "trace.json"
    mapped(trace=file, batch=1, per_task=2)
    events = json.loads(file.read_text())["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    slices = [event for event in events if event["ph"] == "X"]
    assert {e["pid"] for e in slices} == set(named) and all("tcp" in n for n in named.values())
    kinds = {kind: [e for e in slices if e["cat"] == kind] for kind in ("unit", "step", "operator")}
    assert sorted(e["name"] for e in kinds["unit"]) == ["(0)", "(1)", "(2)"]
    assert {e["name"] for e in kinds["step"]} == {"check", "read", "run", "write"}
    assert len(kinds["operator"]) == 6 and "conv" in kinds["operator"][0]["name"]
    runs = [e for e in kinds["step"] if e["name"] == "run"]
    builder = [e for e in kinds["step"] if e["name"] != "write"]
    for inner, outer in ((kinds["operator"], runs), (builder, kinds["unit"])):
        assert all(any(lies_in(small, large) for large in outer) for small in inner)


def lies_in(small: dict[str, Any], large: dict[str, Any]) -> bool:
    """Returns True if trace event ``small`` lies within ``large`` on the same thread, or nearly."""
    end = small["ts"] + small["dur"], large["ts"] + large["dur"]
    return small["tid"] == large["tid"] and large["ts"] <= small["ts"] + 1 and end[0] <= end[1] + 1


def test_bad_inputs_do_not_affect_others(mapped, tmp_path, rng):
    images(tmp_path / "in", 9, rng)
    np.save(tmp_path / "in/004.npy", np.zeros((1, 3, 9, 9), np.float32))
    (tmp_path / "in/007.npy").write_bytes(b"no array")
    report = mapped(batch=2, per_task=4)
    assert (report.made, report.aside_count) == (7, 2)
    shape, damaged = report.aside.values()
    assert "wanted shape [1, 3, 8, 8], got [1, 3, 9, 9]" in shape and "cannot read" in damaged
    with pytest.raises(InputError, match=r"set aside: 2 of 9 inputs(.|\n)*004.npy(.|\n)*007.npy"):
        report.check()
    for number in (4, 7):
        np.save(tmp_path / f"in/{number:03}.npy", np.ones((1, 3, 8, 8), np.float32))
    mended = mapped()
    assert mended.complete and mended.made == 4 and mended.kept == 5  # the task of four has both


def test_pictures_and_several_inputs_and_zarr_chunks(mapped, net, tmp_path, rng):
    pixels = rng.integers(0, 255, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    mapped(inputs="*.png", out="p.zarr")
    image = (pixels.transpose(2, 0, 1)[None] / np.float32(255)).astype(np.float32)
    (outputs,) = expected(net, [{"image": image}])
    assert_allclose(zarr.open(tmp_path / "p.zarr")["out"][0], outputs["out"], atol=1e-6)

    a, b = rng.random((2, 2, 3), np.float32)
    np.savez(tmp_path / "x.npz", a=a, b=b)
    mapped(write_model(tmp_path / "two.nnef", TWO), "*.npz", "t.zarr")
    group = zarr.open(tmp_path / "t.zarr")
    assert_array_equal(group["sum"][0], a + b)
    assert_array_equal(group["big"][0], a > b)

    data = rng.random((3, 16, 24), np.float32)
    zarr.create_array(tmp_path / "big.zarr", data=data, chunks=(3, 8, 8))
    mapped(inputs="big.zarr", out="z.zarr")
    chunk = {"image": data[None, :, 8:16, 16:24]}
    got = zarr.open(tmp_path / "z.zarr")["out"]
    assert_array_equal(got[5], expected(net, [chunk])[0]["out"])
    assert got.shape[0] == 6


def test_an_output_with_a_counted_axis_has_its_largest_extent(mapped, tmp_path):
    """Zeros follow the elements of each row, and another array has the number of elements."""
    for name, x in (("a", [0, 2, 0, 5]), ("b", [0, 0, 0, 0])):
        np.savez(tmp_path / f"{name}.npz", x=np.float32([x]))
    mapped(write_model(tmp_path / "places.nnef", PLACES), "*.npz", "n.zarr")
    group = zarr.open(tmp_path / "n.zarr")
    assert group["count"][...].reshape(-1).tolist() == [2, 0]
    assert group["found"][:, 1].tolist() == [[1, 3, 0, 0], [0, 0, 0, 0]]


def test_inputs_are_batched_only_if_bit_identical(net, monkeypatch) -> None:
    from cml_engine.distributed.map import NetworkProducer
    from cml_engine.runtime.session import CompileOptions, Session

    graph = cml.load(net)
    graphs = _graphs(graph, (1, 2, 4))
    assert sorted(graphs) == [1, 2, 4]
    work = NetworkWork(graphs, ItemSource([]), "cpu", CompileOptions(), "k")
    assert NetworkProducer(work)._batched_session(4) is not None
    assert 1 in NetworkProducer(work).measure().seconds
    run = Session.run

    def other(session: Session, inputs: Any) -> Any:
        outputs = run(session, inputs)
        size = len(next(iter(inputs.values())))
        return {name: value + (size > 1) for name, value in outputs.items()}

    monkeypatch.setattr(Session, "run", other)
    assert NetworkProducer(work)._batched_session(4) is None


def test_a_cooked_network_needs_no_compiler_on_its_workers(client, net, tmp_path, rng):
    cooked = tmp_path / "net.cml"
    assert cli.main(["cook", str(net), "-o", str(cooked), "--devices", "software"]) == 0
    inputs = images(tmp_path / "in", 3, rng)
    pattern = str(tmp_path / "in/*.npy")
    report = map_network(cooked, pattern, tmp_path / "out.zarr", client, backend="cpu")
    assert report.complete
    outputs = expected(net, [{"image": image} for image in inputs])
    rows = zarr.open(tmp_path / "out.zarr")["out"][...]
    assert_array_equal(rows, [row["out"] for row in outputs])
    with pytest.raises(InputError, match="give its place instead"):
        map_network(cml.load_cooked(cooked), pattern, tmp_path / "o.zarr", client)


def test_other_models_or_inputs_are_refused(mapped, net, tmp_path, rng):
    images(tmp_path / "in", 2, rng)
    mapped()
    cml.save(cml.load(net), tmp_path / "copy.nnef")
    assert mapped(tmp_path / "copy.nnef").kept == 2
    np.save(tmp_path / "in/9.npy", np.zeros((1, 3, 8, 8), np.float32))
    with pytest.raises(InputError, match="was made with another inputs"):
        mapped()
    (tmp_path / "in/9.npy").unlink()
    filter = cml.load(net).constants["filter"]
    for text, weights in ((CONV, 0 * filter), (CONV.replace("relu(", "tanh("), filter)):
        other = write_model(tmp_path / "other.nnef", text, filter=weights)
        with pytest.raises(InputError, match="was made with another model"):
            mapped(other)


def test_another_shape_is_named(mapped, net, tmp_path, rng):
    images(tmp_path / "in", 2, rng)
    mapped()
    cml.save(cml.load(net, shapes=(1, 3, 9, 9)), tmp_path / "wide.nnef")
    expected = "with another shape: image=1,3,8,8 there, image=1,3,9,9 here"
    with pytest.raises(InputError, match=expected):
        mapped(tmp_path / "wide.nnef")


@pytest.mark.parametrize(
    "source, message",
    [
        ("{tmp}/nothing/*.npy", "no such file. Wanted .npy, .npz or .png files"),
        ("{tmp}/*.txt", "wanted one of .npy, .npz, .png"),
        ("{tmp}/z.zarr", "is a Zarr group: name one of its arrays, .*z.zarr/NAME: flat"),
        ("{tmp}/z.zarr/flat", r"has chunks of \[5\], the model's input 'image' is scalar"),
        (7, "cannot take inputs from int"),
        ([], "there are no inputs"),
    ],
)
def test_invalid_sources_are_refused(net, tmp_path, source, message):
    (tmp_path / "a.txt").write_text("")
    group = zarr.open_group(tmp_path / "z.zarr", mode="w")
    group.create_array("flat", data=np.zeros(10, np.float32), chunks=(5,))
    if isinstance(source, str):
        source = source.format(tmp=tmp_path)
    with pytest.raises(InputError, match=message):
        map_network(cml.load(net), source, tmp_path / "out.zarr", backend="cpu")
    assert not (tmp_path / "out.zarr").exists()


def test_network_with_variables_is_refused(tmp_path):
    folder = write_model(tmp_path / "c.nnef", COUNTER, state=np.zeros((1, 2), np.float32))
    with pytest.raises(InputError, match=r"updates its variables \('state'\)"):
        map_network(cml.load(folder), [np.zeros((1, 2))], tmp_path / "o.zarr", backend="cpu")


@pytest.fixture
def words(net: Path, tmp_path: Path) -> list[object]:
    """The words of ``cml map`` over the arrays in the folder ``in``."""
    return ["map", net, "--inputs", tmp_path / "in/*.npy", "-o", tmp_path / "out.zarr"]


def test_map_command_reports_results_and_errors(client, words, tmp_path, rng, run_cml):
    images(tmp_path / "in", 3, rng)
    words += ["--backend", "cpu"]
    report, there = tmp_path / "report.json", ["--scheduler", client.scheduler.address]
    printed = run_cml(*words, *there, "--price", "0.5", "--report", report).out
    assert "3 of 3 inputs" in printed and "a million inputs" in printed
    assert json.loads(report.read_text())["made"] == 3
    np.save(tmp_path / "in/001.npy", np.zeros((1, 3, 9, 9), np.float32))
    message = run_cml(*words, *there, "-o", tmp_path / "other.zarr", ends=2).err
    assert "set aside: 1 of 3 inputs" in message and "001.npy" in message
    for wrong in (
        ["--half"], ["--scheduler", "tcp://nowhere", "--workers", "2"], ["--workers", "0"],
        ["--batch", "x"], ["--price", "-1"],
    ):  # fmt: skip
        run_cml(*words, *wrong, ends=2)


def test_map_command_runs_in_onnx_runtime(client, words, tmp_path, rng, run_cml):
    pytest.importorskip("onnxruntime")
    images(tmp_path / "in", 2, rng)
    words += ["--backend", "onnxruntime"]
    printed = run_cml(*words, "--scheduler", client.scheduler.address).out
    assert "2 of 2 inputs" in printed and "CPU (ONNX Runtime)" in printed
    run_cml(*words, "--half", ends=2)


def test_missing_dask_gives_an_install_message(words, tmp_path, rng, refused, monkeypatch):
    images(tmp_path / "in", 1, rng)
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert 'distributed not installed: pip install "cml-engine[bake]"' in refused(*words)


NAMES = ["../../evil", "", ".", "/evil", "a/../b", "a/./b", "a\0b", "\ud800", "x" * 300,
         "sha256", "input_names", "zarr.json", "sha256/x"]  # fmt: skip


@pytest.mark.parametrize("names", [*((name,) for name in NAMES), ("a", "a/b"), ("a/b", "a")])
def test_output_names_outside_the_store_are_refused(tmp_path, names):
    """A network is refused if an output's name cannot be an array of the store; nothing is written.

    An ONNX file may name its outputs anything, such as ``../../evil``.
    """
    facts = {"x": Fact("scalar", (2,)), **{name: Fact("scalar", (2,)) for name in names}}
    nodes = tuple(Node("relu", ("x",), (name,)) for name in names)
    graph = Graph("net", ("x",), tuple(names), nodes, facts, {})
    with pytest.raises(InputError, match="no array of the store can have its name"):
        map_network(graph, [np.zeros(2, np.float32)], tmp_path / "in/out.zarr")
    assert not list(tmp_path.iterdir())


class Evil:
    """An object whose unpickling creates a file, as a stand-in for malicious code."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


V2 = {"zarr_format": 2, "shape": [8], "chunks": [8], "dtype": "<f4", "compressor": None,
      "fill_value": 0, "order": "C", "filters": None}  # fmt: skip
PICKLE = {"id": "pickle", "protocol": 5}


@pytest.mark.parametrize(
    "more",
    [
        {"filters": [PICKLE]},
        {"compressor": PICKLE},
        {"dtype": "|O", "filters": [{"id": "vlen-utf8"}, PICKLE], "fill_value": ""},
        {"dtype": "|O", "filters": [{"id": "vlen-utf8"}], "fill_value": ""},
        {"filters": [{"id": "packbits"}], "dtype": "|b1"},
        {"dtype": "<c8"},
        {"filters": [{"id": "zlib", "level": 1}], "compressor": {"id": "zlib", "level": 1}},
        {"dtype": "<U4", "fill_value": ""},
    ],
)
def test_zarr_with_other_codecs_is_refused_before_reading(tmp_path, more, monkeypatch):
    monkeypatch.setattr("numcodecs.pickles.ALLOW_UNSAFE_PICKLE_DECODE", True)
    folder, ran = tmp_path / "in.zarr", tmp_path / "ran"
    folder.mkdir()
    (folder / ".zarray").write_text(json.dumps({**V2, **more}))
    (folder / "0").write_bytes(pickle.dumps(Evil(ran)))
    facts = {"x": Fact("scalar", (8,))}
    message = "codec|items of type|twice|no Zarr array that can be read"
    with pytest.raises(InputError, match=message):
        open_source(str(folder), facts)
    with pytest.raises(InputError, match=message):
        ZarrSource(str(folder), (8,), (1,)).read(0, facts)
    assert not ran.exists()


#: the codecs that are read, each with its version of the Zarr format
PACKED = {**dict.fromkeys(("zlib", "gzip", "lz4", "blosc", "zstd"), 2),
          **dict.fromkeys(("zstd 3", "gzip 3", "shards"), 3)}  # fmt: skip


@pytest.mark.parametrize("codec", PACKED)
def test_a_chunk_that_unpacks_to_more_than_its_shape_is_refused(tmp_path, codec):
    """A chunk of any codec is read, but not if its kilobytes unpack to 64 MiB.

    The error comes before the memory is allocated.
    """
    import numcodecs

    name, place, more = codec.split()[0], tmp_path / "in.zarr", {}
    if name == "shards":
        name, more = "zstd", {"shards": (8,)}
    elif codec.endswith("3"):
        more["compressors"] = zarr.codecs.GzipCodec() if name == "gzip" else zarr.codecs.ZstdCodec()
    else:
        more["compressors"] = numcodecs.get_codec({"id": name})
    array = zarr.create_array(str(place), shape=(8,), chunks=(4,), dtype="f4",
                              zarr_format=PACKED[codec], **more)  # fmt: skip
    array[...] = np.arange(8)
    facts = {"x": Fact("scalar", (4,))}
    source = open_source(str(place), facts)
    assert source.read(1, facts)["x"].tolist() == [4, 5, 6, 7]
    file = place / ("1" if PACKED[codec] == 2 else "c/0" if codec == "shards" else "c/1")
    bomb = bytes(numcodecs.get_codec({"id": name}).encode(bytes(1 << 26)))
    if codec == "shards":
        index = np.array([[0, len(bomb)]] * 2, "<u8").tobytes()
        bomb += index + google_crc32c.value(index).to_bytes(4, "little")
    file.write_bytes(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="unpacks to .* its shape takes 16"):
            source.read(1, facts)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_local_cluster_listens_on_localhost_only():
    psutil = pytest.importorskip("psutil")
    with connect(workers=1, dashboard=True):
        this = psutil.Process()
        listening = {
            connection.laddr.ip
            for process in (this, *this.children(recursive=True))
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
    assert listening == {"127.0.0.1"}


def test_chunks_of_gigabytes_of_zeros_are_refused(tmp_path, monkeypatch) -> None:
    """A Zarr chunk larger than the load limits' memory is refused, on opening and on reading."""
    place, shape = tmp_path / "x.zarr", (1, 5_000_000)
    zarr.create_array(str(place), data=np.ones(shape, np.float32), chunks=shape)
    facts = {"x": Fact("scalar", shape)}
    source = open_source(str(place), facts)
    monkeypatch.setenv("CML_LOAD_LIMITS", "memory=10M")
    for read in (lambda: source.read(0, facts), lambda: open_source(str(place), facts)):
        with pytest.raises(InputError, match=r"a chunk of '.*x.zarr' needs 20,000,000 bytes"):
            read()


def test_the_first_example_of_the_page_runs(client, net, tmp_path, rng, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cml.save(cml.load(net), "net.nnef", overwrite=True)
    images(tmp_path / "tiles", 3, rng)
    here = functools.partial(map_network, client=client, backend="cpu")
    monkeypatch.setattr("cml_engine.distributed.map_network", here)
    exec(example(PAGE, "report.check()"), {"__name__": "__main__"})
    assert "3" in capsys.readouterr().out and (tmp_path / "out.zarr").is_dir()


def test_the_example_of_slurm_maps_on_its_cluster(monkeypatch):
    options, mapped = {}, []
    cluster = SimpleNamespace(adapt=options.update)
    jobqueue = ModuleType("dask_jobqueue")
    jobqueue.SLURMCluster = lambda **given: options.update(given) or cluster
    monkeypatch.setitem(sys.modules, "dask_jobqueue", jobqueue)
    monkeypatch.setattr("distributed.Client", lambda cluster: cluster)
    names = {"graph": "graph", "map_network": lambda *given: mapped.append(given)}
    exec(example(PAGE, "SLURMCluster"), names)
    assert mapped == [("graph", "/shared/tiles/*.npy", "/shared/out.zarr", cluster)]


def test_relative_places_do_not_depend_on_the_workers_folder(client, net, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    volume = zarr.create_array(
        "in.zarr", data=np.ones((2, 3, 8, 8), np.float32), chunks=(1, 3, 8, 8)
    )
    report = map_network(cml.load(net), "in.zarr", "out.zarr", client, backend="cpu")
    assert report.complete and volume.shape[0] == report.made
