"""Tests of the allocator that networks and the renderer share: budget, eviction and leaks."""

import gc
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import wgpu
from numpy.testing import assert_array_equal

import cml_engine as cml
from cml_engine.errors import OutOfGpuMemory
from cml_engine.gpu.memory.allocator import Allocator
from cml_engine.scheduler.tools.replay import replay
from tests.fixtures.frames.host import Host, conv_net, run_net
from tests.fixtures.messages import raises

pytestmark = pytest.mark.gpu

U = wgpu.BufferUsage
STORAGE = U.STORAGE | U.COPY_SRC | U.COPY_DST
VERTEX = U.VERTEX | U.COPY_DST
MIB = 1 << 20


@pytest.fixture
def own(gpu):
    """A new :class:`Gpu` on the suite's device, whose memory budget the test may change."""
    return cml.Gpu(device=gpu.device)


@pytest.fixture
def memory(gpu):
    return Allocator(gpu.device, heap_bytes=MIB)


def take(memory, nbytes=64, usage=STORAGE, category="render", owner="a", **options):
    return memory.allocate(nbytes, usage, owner=owner, category=category, **options)


# --- ranges of heaps


def test_small_allocations_share_a_buffer_and_do_not_overlap(memory):
    align = memory.device.limits["min-storage-buffer-offset-alignment"]
    parts = [take(memory, n) for n in (100, 5000, 7)]
    assert len({id(p.buffer) for p in parts}) == 1
    ends = 0
    for part in sorted(parts, key=lambda p: p.offset):
        assert part.offset >= ends and part.offset % align == 0
        ends = part.offset + part.nbytes
    assert memory.held_bytes == sum(p.nbytes for p in parts) >= 5107
    for part in parts:
        part.free()
    assert memory.held_bytes == 0 and memory.report() == ""
    others = [take(memory), take(memory, category="output"), take(memory, 64, VERTEX)]
    assert len({id(p.buffer) for p in others}) == 3, "usages and categories have their own"


def test_double_free_and_leaving_a_with_block(memory):
    with take(memory) as part:
        assert memory.held_bytes == 64
    assert part.freed and memory.held_bytes == 0
    with raises(cml.InputError, "freed twice"):
        part.free()
    with take(memory) as part:
        part.free()


def test_large_allocation_has_its_own_buffer(memory):
    large = take(memory, 3 * MIB)
    small = take(memory)
    assert large.offset == 0 and large.buffer.size == 3 * MIB and small.buffer is not large.buffer
    large.free()
    again = take(memory, 3 * MIB)
    assert again.buffer is large.buffer, "one empty heap is kept"


def test_heaps_grow_and_empty_heaps_are_released(memory):
    parts = [take(memory, 100_000) for _ in range(40)]
    sizes = [heap.nbytes for heap in memory.stats().heaps]
    assert sizes == sorted(sizes) and sizes[-1] == MIB and sizes[0] < MIB
    for part in parts:
        part.free()
    assert len(memory.stats().heaps) == 1
    assert memory.reserved_bytes == memory.stats().heaps[0].nbytes
    assert memory.peak_bytes >= 4_000_000


@pytest.mark.parametrize(
    "options, message",
    [
        ({"category": "things"}, "unknown memory category"),
        ({"nbytes": -1}, "bytes for render: wanted a whole number of 0"),
        ({"alignment": 4}, "alignment 4"),
        ({"nbytes": 1 << 50}, "largest buffer of this device"),
    ],
)
def test_invalid_allocations_are_refused(memory, options, message):
    with pytest.raises(cml.CmlError, match=message):
        take(memory, **options)


def test_memory_freed_in_a_frame_is_not_reused_before_its_submit(memory):
    parts = [take(memory, MIB // 16)]
    memory.open_frame(memory)
    parts[0].free()
    parts.append(take(memory, MIB // 16))
    memory.close_frame(memory)
    parts.append(take(memory, MIB // 16))
    first, second, third = ((part.buffer, part.offset) for part in parts)
    assert second != first == third


# --- textures


def test_textures_are_counted_until_they_are_destroyed_or_collected(memory):
    usage = wgpu.TextureUsage.TEXTURE_BINDING
    options = {"size": (64, 64, 1), "format": "rgba8unorm", "usage": usage}
    texture = memory.create_texture(owner="sky", mip_level_count=2, **options)
    assert memory.held_bytes == memory.reserved_bytes == 4 * (64 * 64 + 32 * 32)
    assert ("sky", "render") in memory.stats().holdings
    texture.create_view()
    texture.destroy()
    texture.destroy()
    assert memory.held_bytes == 0
    del texture
    lost = memory.create_texture(owner="sky", **options)
    assert memory.held_bytes == 4 * 64 * 64
    del lost
    gc.collect()
    assert memory.held_bytes == memory.reserved_bytes == 0


def test_textures_obey_the_budget(gpu):
    memory = Allocator(gpu.device, budget_bytes=100_000)
    options = {"size": (128, 128), "format": "rgba8unorm", "usage": 4, "owner": "sky"}
    texture = memory.create_texture(**options)
    with pytest.raises(OutOfGpuMemory, match="wanted 64.00 KiB for render"):
        memory.create_texture(**options)
    texture.destroy()
    memory.create_texture(**options)


# --- the budget


def test_exhaustion_names_everybody(gpu):
    memory = Allocator(gpu.device, budget_bytes=4 * MIB)
    terrain = take(memory, 2 * MIB, VERTEX, owner="terrain")
    kept = take(memory, MIB, category="weights", owner="upres")
    with pytest.raises(OutOfGpuMemory) as caught:
        take(memory, 2 * MIB, category="weights", owner="textures")
    message = str(caught.value)
    assert "'textures' wanted 2.00 MiB for weights; budget 4.00 MiB, of which 1.00 MiB" in message
    assert "terrain" in message and "upres" in message and "raise the budget" in message
    terrain.free()
    take(memory, 2 * MIB, category="weights")
    assert memory.reserved_bytes <= 4 * MIB and not kept.freed


class Pressure:
    """A list of allocations of a host, of which a callback of the allocator frees the last one.

    ``requested`` lists the bytes of its calls.
    """

    def __init__(self, memory, count, nbytes):
        self.tiles = [take(memory, nbytes, VERTEX, owner="tiles") for _ in range(count)]
        self.requested = []
        self.stop = memory.on_pressure(self.spare)

    def spare(self, nbytes):
        self.requested.append(nbytes)
        tile = self.tiles.pop()
        tile.free()
        return tile.nbytes


def test_pressure_callback_is_called_before_failure(gpu):
    memory = Allocator(gpu.device, budget_bytes=2 * MIB)
    pressure = Pressure(memory, 3, MIB // 2)
    take(memory, MIB, category="weights")
    assert pressure.requested == [MIB] and len(pressure.tiles) == 2
    pressure.stop()
    with pytest.raises(OutOfGpuMemory):
        take(memory, MIB, category="weights")
    assert len(pressure.requested) == 1


@pytest.mark.parametrize(
    "error", [wgpu.GPUOutOfMemoryError(""), wgpu.GPUValidationError("Not enough memory left.")]
)
def test_driver_out_of_memory_raises_the_same_error(gpu, monkeypatch, error):
    memory, full = Allocator(gpu.device), Mock(side_effect=error)
    with monkeypatch.context() as patch:
        patch.setattr(gpu.device, "create_buffer", full)
        patch.setattr(gpu.device, "create_texture", full)
        with raises(OutOfGpuMemory, "the GPU has no memory for a buffer"):
            take(memory)
        with raises(OutOfGpuMemory, "texture of 16384 bytes"):
            memory.create_texture(size=(64, 64), format="rgba8unorm", usage=4, owner="a")
    take(memory).free()


# --- loading and eviction of models


def holding(gpu, *owner_and_category):
    """Returns the bytes that an owner holds in a category."""
    holdings = gpu.memory.stats().holdings
    return holdings[owner_and_category].nbytes if owner_and_category in holdings else 0


def test_evicted_model_is_restored_bit_identical(own, image):
    session, host = cml.Session(conv_net(layers=2), own), Host(own, budget_ms=2.0)
    expected = run_net(session, image)
    for run in (
        lambda: run_net(session, image),
        lambda: host.finish(host.submit(session, {"x": image}))[0],
    ):
        session.program.evict()
        assert holding(own, "net", "weights") == holding(own, "net", "activations") == 0
        assert not session.program.ready
        assert_array_equal(run(), expected)
        assert holding(own, "net", "weights") > 0
    assert "preparing" in {report.reason for report in host.reports}


def big_net(name, seed=0):
    """Returns a graph with about 0.6 MiB of weights."""
    return conv_net(name, layers=1, size=8, channels=128, seed=seed)


@pytest.fixture
def big_image(rng):
    return rng.standard_normal((1, 128, 8, 8), np.float32)


def room_for(gpu, models):
    """Returns a new :class:`Gpu` whose budget fits ``models`` networks of :func:`big_net`.

    It also fits the parameters of three, which are larger where the device aligns uniforms to more
    bytes.
    """
    probe = cml.Gpu(device=gpu.device)
    session = cml.Session(big_net("probe"), probe)
    parameters = probe.memory.stats().holdings["probe", "uniform"].nbytes
    session.program.evict()
    budget_bytes = models * 590_000 + 575_000 + 3 * parameters
    return cml.Gpu(device=gpu.device, budget_bytes=budget_bytes)


def test_least_recently_used_model_is_evicted_first(gpu, big_image):
    own = room_for(gpu, 2)
    sessions = [cml.Session(big_net(name, seed), own) for seed, name in enumerate("ab")]
    expected = [run_net(session, big_image) for session in sessions]
    sessions[0].run({"x": big_image})
    third = cml.Session(big_net("c", 7), own)
    assert own.memory.evictions == 1
    assert sessions[0].program.ready and not sessions[1].program.ready
    third.run({"x": big_image})
    for session, want in zip(sessions, expected, strict=True):
        assert_array_equal(run_net(session, big_image), want)
    assert own.memory.reserved_bytes <= own.memory.budget_bytes


@pytest.mark.parametrize("cancelled", [False, True])
def test_model_of_a_running_job_is_never_evicted(gpu, big_image, cancelled):
    own = room_for(gpu, 1)
    session = cml.Session(big_net("runs"), own)
    expected = run_net(session, big_image)
    host = Host(own, budget_ms=0.02)
    job = host.submit(session, {"x": big_image})
    host.until(lambda: job.state == "running")
    assert not job.ended
    with raises(OutOfGpuMemory, "runs"):
        cml.Session(big_net("wants", 1), own)
    with raises(cml.InputError, "cannot be evicted: it is running"):
        session.program.evict()
    with raises(cml.InputError, "has a running job"):
        session.run({"x": big_image})
    if cancelled:
        job.cancel()
        host.frame()
    else:
        assert_array_equal(*host.finish(job), expected)
    cml.Session(big_net("wants", 1), own)
    assert not session.program.ready


def test_models_exceeding_memory_together_run_alternately(gpu, big_image):
    graphs = [big_net(name, seed) for seed, name in enumerate("abc")]
    expected = [run_net(cml.Session(graph, gpu), big_image) for graph in graphs]
    own = room_for(gpu, 1)
    sessions = [cml.Session(graph, own, deferred=True) for graph in graphs]
    host = Host(own, budget_ms=2.0)
    recording = host.scheduler.record()
    for _ in range(2):
        jobs = [host.submit(session, {"x": big_image}) for session in sessions]
        for job, want in zip(jobs, expected, strict=True):
            assert_array_equal(*host.finish(job), want)
            job.release()
    assert own.memory.evictions >= 4
    assert own.memory.reserved_bytes <= own.memory.budget_bytes
    assert replay(recording) == recording.decisions


def test_model_with_variables_is_not_evicted(own):
    session = cml.Session(conv_net(layers=2), own)
    object.__setattr__(session.program.plan, "updates", ((None, None),))
    assert not session.program.evictable
    with raises(cml.InputError, "variables that would be lost"):
        session.program.evict()


# --- shared arenas


@pytest.fixture
def wide(rng):
    """A random input of a network of size 48."""
    return rng.standard_normal((1, 8, 48, 48), np.float32)


def two_sizes(gpu, **options):
    """Yields a session of a network of size 24 and one of size 48."""
    for name, size in (("small", 24), ("large", 48)):
        yield cml.Session(conv_net(name, size=size, layers=2), gpu, **options)


def test_sessions_of_a_shared_arena_have_the_largest_one(own, image, wide):
    images = image, wide
    expected = [run_net(s, x) for s, x in zip(two_sizes(own), images, strict=True)]
    sizes, sessions = [], []
    for session in two_sizes(own, arena="shared:agents"):
        sessions.append(session)
        sizes.append(holding(own, "shared:agents", "activations"))
    assert sizes[0] < sizes[1] < sizes[0] * 5
    for session, x, want in 2 * list(zip(sessions, images, expected, strict=True)):
        assert_array_equal(run_net(session, x), want)
    assert len({session.program.residency.arena for session in sessions}) == 1
    assert own.memory.stats().holdings["shared:agents", "activations"].count == 1
    sessions.clear()
    del session
    gc.collect()
    assert holding(own, "shared:agents", "activations") == 0


def test_a_larger_member_joins_while_a_job_runs(own, image, wide):
    sessions = two_sizes(own, arena="shared:agents")
    small = next(sessions)
    expected = run_net(small, image)
    host = Host(own, budget_ms=0.02)
    job = host.submit(small, {"x": image})
    host.until(lambda: job.state == "running")
    large = next(sessions)
    assert not job.ended
    with raises(cml.InputError, "'shared:agents' has a running job"):
        large.run({"x": wide})
    assert_array_equal(*host.finish(job), expected)
    assert not small.program.ready, "it moves to the larger arena"
    large.run({"x": wide})
    assert_array_equal(run_net(small, image), expected)
    assert own.memory.stats().holdings["shared:agents", "activations"].count == 1


# --- a host's own allocator


class _Pool:
    """A GPU buffer from which ranges are taken from front to back; raises ``MemoryError`` when
    full."""

    def __init__(self, device, nbytes, usage):
        self.buffer = device.create_buffer(size=nbytes, usage=usage)
        self.end, self.live = 0, 0

    def take(self, nbytes, alignment):
        offset = -(-self.end // alignment) * alignment
        if offset + nbytes > self.buffer.size:
            raise MemoryError("the pool is used up")
        self.end, self.live = offset + nbytes, self.live + 1
        return SimpleNamespace(buffer=self.buffer, offset=offset, nbytes=nbytes, free=self.release)

    def release(self):
        self.live -= 1


class HostMemory:
    """A stand-in for a game engine's allocator, with a pool for each usage and category.

    Each allocation of mapped memory has a buffer of its own. ``owners`` records all requests.
    """

    def __init__(self, device, nbytes=4 * MIB):
        self.device, self.nbytes, self.pools, self.owners = device, nbytes, {}, []

    def allocate(self, nbytes, usage, alignment, owner, category):
        self.owners.append((owner, category))
        if usage & U.MAP_READ:
            return _Pool(self.device, nbytes, usage).take(nbytes, 1)
        key = (usage, category)
        if key not in self.pools:
            self.pools[key] = _Pool(self.device, self.nbytes, usage)
        return self.pools[key].take(nbytes, alignment)


def test_host_allocator_is_used(gpu, image):
    expected = run_net(cml.Session(conv_net(layers=2), gpu), image)
    mine = HostMemory(gpu.device)
    own = cml.Gpu(device=gpu.device, memory=mine)
    filler = take(own.memory, 1000, category="weights", owner="engine")
    session = cml.Session(conv_net(layers=2), own)
    assert session.program.residency.weights.buffer is filler.buffer
    assert session.program.residency.weights.offset > 0
    assert_array_equal(run_net(session, image), expected)
    host = Host(own, budget_ms=2.0)
    job = host.submit(session, {"x": image})
    assert_array_equal(*host.finish(job), expected)
    assert ("net", "output") in mine.owners and ("net", "weights") in mine.owners
    assert own.memory.held_bytes > 0 and "net" in str(own.memory)
    filler.free()
    del session, host, job
    gc.collect()
    assert own.memory.held_bytes == 0
    assert all(pool.live == 0 for pool in mine.pools.values())


def test_exhausted_host_allocator_evicts(gpu, big_image):
    own = cml.Gpu(device=gpu.device, memory=HostMemory(gpu.device, MIB))
    cml.Session(big_net("a"), own).run({"x": big_image})
    with raises(OutOfGpuMemory, "the pool is used up"):
        cml.Session(big_net("b"), own)


def test_host_allocator_errors_are_named(gpu):
    class Faulty(HostMemory):
        def allocate(self, nbytes, usage, alignment, owner, category):
            short = 8 if category == "staging" else 0
            return super().allocate(nbytes - short, usage, alignment, owner, "any")

    memory = Allocator(gpu.device, source=Faulty(gpu.device))
    take(memory, category="weights")
    with raises(cml.DeviceError, "one buffer for weights and for output"):
        take(memory, category="output")
    with raises(cml.DeviceError, "host's allocator gave"):
        take(memory, category="staging")


# --- lowering the budget


class Model:
    """A stand-in for a network in memory: it allocates ``nbytes`` bytes and can be evicted."""

    last_used, evictable_later, running = 0, False, False

    def __init__(self, memory, name, nbytes):
        self.name = name
        self.held = take(memory, nbytes, category="weights", owner=name)
        memory.add_tenant(self)

    @property
    def resident(self):
        return [] if self.held is None else [self.held]

    @property
    def evictable(self):
        return self.held is not None and not self.running

    def evict(self, *, wait=True):
        self.held.free(now=True)
        self.held = None


def test_lowered_budget_evicts_idle_models_and_reports_the_rest(gpu):
    memory = Allocator(gpu.device)
    idle, used = (Model(memory, name, 4 * MIB) for name in ("idle", "used"))
    used.running = True
    memory.budget_bytes = 3 * MIB
    assert idle.held is None and used.held is not None
    over = memory.over_budget_bytes
    assert over == memory.reserved_bytes - 3 * MIB > 0
    assert "exceeded by" in str(memory) and "used" in str(memory)
    assert memory.stats().to_json()["over_budget_bytes"] == over
    used.running = False
    memory.open_frame(used)
    memory.close_frame(used)
    assert used.held is None and memory.over_budget_bytes == 0
    assert "exceeded" not in str(memory)


def test_memory_freed_over_budget_is_returned_to_the_driver(gpu):
    memory = Allocator(gpu.device)
    held = take(memory, 2 << 20)
    memory.budget_bytes = 1 << 20
    assert memory.over_budget_bytes
    held.free()
    assert memory.reserved_bytes == 0


def test_lowered_budget_calls_pressure_before_eviction(gpu):
    memory = Allocator(gpu.device)
    pressure = Pressure(memory, 1, 2 * MIB)
    model = Model(memory, "model", 2 * MIB)
    memory.budget_bytes = memory.reserved_bytes - MIB
    assert pressure.requested == [MIB]
    assert model.held is not None and not memory.over_budget_bytes


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "64", True])
def test_invalid_memory_budget_is_refused(gpu, value):
    memory = Allocator(gpu.device, 1 << 20)
    with raises(cml.InputError, "memory budget"):
        memory.budget_bytes = value
    assert memory.budget_bytes == 1 << 20
    with raises(cml.InputError, "memory budget"):
        Allocator(gpu.device, value)


def test_errors_while_releasing_memory_are_logged(gpu, caplog):
    memory, done = Allocator(gpu.device), []
    memory.free_later(lambda: 1 / 0)
    memory.free_later(lambda: done.append("after"))
    held = take(memory)
    assert done == ["after"]
    (record,) = caplog.records
    assert "giving GPU memory back" in record.getMessage()
    assert record.exc_info[0] is ZeroDivisionError
    held.free()
    assert memory.held_bytes == 0


def test_mappable_buffers_are_separate_and_reused(memory):
    """Buffers of past readbacks are retained, so that a repeated readback creates no buffer."""
    usage = U.MAP_READ | U.COPY_DST
    past = [take(memory, 100_000 << k % 3, usage, "staging") for k in range(24)]
    assert len({part.buffer for part in past}) == 24 and not any(part.offset for part in past)
    for allocation in past:
        allocation.free(now=True)
    used = set()
    for _ in range(10):
        with take(memory, 64, usage, "staging") as readback:
            used.add(readback.buffer)
    assert len(used) == 1
    assert take(memory, 90_000, usage, "staging").buffer in {part.buffer for part in past}


@pytest.mark.parametrize("deferred_by", ["a frame", "a finalizer"])
def test_many_allocations_are_released_without_recursion(gpu, caplog, deferred_by):
    """Two thousand allocations are released at once without deep recursion."""
    memory, in_frame = Allocator(gpu.device), deferred_by == "a frame"
    allocations = [take(memory, 16) for _ in range(2000)]
    if in_frame:
        memory.open_frame(memory)
    for allocation in allocations:
        allocation.free() if in_frame else memory.free_later(allocation.free)
    memory.close_frame(memory) if in_frame else memory.free_deferred()
    assert memory.held_bytes == 0 and not caplog.records
