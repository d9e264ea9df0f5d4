"""Machine code as text: what the judge of hardware's kernels reads in it."""

import pytest

from benchmarks.hardware import nvidia
from benchmarks.hardware.listing import (
    FMA,
    JUMP,
    MEMORY,
    SCALAR,
    SCALAR_LOAD,
    SHARED,
    VECTOR,
    WAIT,
    Latencies,
    Nest,
    amd_listing,
    nvidia_listing,
)
from benchmarks.hardware.networks import plan_for
from cml_engine.gpu.shaders import compilers
from cml_engine.gpu.shaders.hlsl import step_key
from tests.fixtures.cooked import wide_model

RDNA = """\
BB0:
\ts_load_dwordx4 s[8:11], s[2:3], null                        ; f4080201 fa000000
\ts_waitcnt lgkmcnt(0)                                        ; bf8cc07f
\tv_mul_lo_u32 v2, 36, v2                                     ; d5690002
BB1:
\ts_cmp_ge_u32 s7, s10                                        ; bf090a07
\ts_cbranch_scc1 BB3                                          ; bf850105
BB2:
\tbuffer_load_dwordx4 v[20:23], v18, s[12:15], 0 offen        ; e0381000
(invalid instruction)                                        ; f4281a08
(invalid instruction)                                        ; d0000000
\ts_waitcnt vmcnt(0) lgkmcnt(0)                               ; bf8c0070
\tv_fmac_f32_e32 v17, s12, v20                                ; 5622280c
\tv_fmac_f32_e32 v16, s13, v20                                ; 5620280d
\ts_branch BB1                                                ; bf82fef1
BB3:
\tds_write_b128 v1, v[2:5]                                    ; d9bc0000
\ts_endpgm                                                    ; bf810000
"""
SASS = """\
        .section .text.main
.text.main:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E.128.CONSTANT R4, [R2.64] ;
        /*0020*/                   FFMA R8, R4, R5, R8 ;
        /*0030*/              @!P0 BRA `(.L_x_1) ;
        /*0040*/                   EXIT ;
.L_x_2:
        /*0050*/                   BRA `(.L_x_2);
"""


def test_a_loop_of_rdna_counts_its_turns():
    listing = amd_listing(RDNA)
    assert listing.loops == [(1, 2)]
    counts = listing.counts(Nest([10]))
    assert counts[FMA] == 20 and counts[MEMORY] == 10
    assert counts[SCALAR_LOAD] == 11  # one is unknown to the disassembler
    assert counts[VECTOR] == 1 and counts[SHARED] == 1
    assert counts[SCALAR] == 10 and counts[WAIT] == 11 and counts[JUMP] == 21
    moved = listing.moved(Nest([10]))
    assert moved[MEMORY] == 160 and moved[SHARED] == 16 and moved[SCALAR_LOAD] == 16 + 160


def test_a_wave_alone_waits_for_its_loads():
    listing = amd_listing(RDNA)
    free, slow = (Latencies(2, dict.fromkeys((SCALAR_LOAD, MEMORY, SHARED), n)) for n in (0, 100))
    turns = Nest([10])
    waits = listing.cycles_alone(turns, slow) - listing.cycles_alone(turns, free)
    assert 1000 < waits < 1200  # once before the loop, once in each turn
    busy, alone = listing.cycles_by_depth(slow, 0.0)
    assert busy == [8.0, 4.0]  # a 32-bit product takes four times as long as others
    assert alone[1] == pytest.approx(100 + 4, abs=8)
    loading, waiting = listing.cycles_by_depth(slow, 2.0)
    assert loading[1] > busy[1] and waiting == alone  # loads can take longer than products


def test_a_loop_without_turns_takes_no_time():
    latencies = Latencies(2, dict.fromkeys((SCALAR_LOAD, MEMORY, SHARED), 100))
    none, one, two = (amd_listing(RDNA).cycles_alone(Nest([n]), latencies) for n in (0, 1, 2))
    outside = amd_listing(RDNA).cycles_by_depth(latencies, 0.0)[1][0]
    assert none == outside
    assert one > none + 100 and two > one


def test_one_of_two_waves_executes_what_stands_behind_their_barrier():
    code = "BB0:\n" + "".join(
        f"\t{line}   ; bf8a0000\n"
        for line in ("v_add_f32_e32 v1, v1, v2", "s_barrier", *["v_add_f32_e32 v1, v1, v3"] * 4)
    )
    listing, latencies = amd_listing(code), Latencies(2, {})
    assert listing.counts(Nest())[VECTOR] == 5
    assert listing.counts(Nest(tail=1 / 2))[VECTOR] == 1 + 4 / 2
    assert listing.cycles_by_depth(latencies, 0.0, 1 / 2) == ([6.0], [11.0])


def test_a_load_ahead_of_its_turn_costs_no_wait():
    ahead = RDNA.replace("vmcnt(0)", "vmcnt(1)").replace("v[20:23], v18", "v[24:27], v18")
    latencies = Latencies(2, {SCALAR_LOAD: 0, MEMORY: 10, SHARED: 0})
    assert (
        amd_listing(ahead).cycles_alone(Nest([10]), latencies)
        < amd_listing(RDNA).cycles_alone(Nest([10]), latencies) - 50
    )


STORES = """\
BB0:
\tbuffer_load_dword v1, v0, s[4:7], 0 offen                    ; e0301000
\tbuffer_store_dword v1, v0, s[8:11], 0 offen glc              ; e0705000
{wait}
\tv_add_f32_e32 v2, v2, v1                                     ; 06040302
"""


@pytest.mark.parametrize(
    ("wait", "on_rdna", "on_gcn"),
    [
        ("\ts_waitcnt vmcnt(1)                            ; bf8c3f71", 4, 102),
        ("\ts_waitcnt vmcnt(0)                            ; bf8c3f70", 102, 103),
        ("\ts_waitcnt_vscnt null, 0x0                     ; bbfd0000", 103, 4),
        ("\ts_nop 0                                       ; bf800000", 4, 4),
    ],
)
def test_stores_of_rdna_have_a_counter_of_their_own(wait, on_rdna, on_gcn):
    text = STORES.format(wait=wait)
    latencies = Latencies(1, {SCALAR_LOAD: 0, MEMORY: 100, SHARED: 0})
    for is_rdna, expected in ((True, on_rdna), (False, on_gcn)):
        alone = amd_listing(text, is_rdna).cycles_alone(Nest(), latencies)
        assert alone == expected, is_rdna


def test_merged_loops_keep_their_products():
    assert amd_listing(RDNA).counts(Nest([3, 5]))[FMA] == 30


def test_loops_in_a_row_have_turns_of_their_own():
    """One loop around two; if the code has another number of them, all count as the longest."""
    lines = RDNA.splitlines()
    loop = "\n".join(lines[lines.index("BB1:") : lines.index("BB3:")])
    second = loop.replace("BB1", "BB4").replace("BB2", "BB5").replace("BB3", "BB6")
    text = f"BB0:\n{loop}\n{second}\nBB6:\n\ts_branch BB0 ; bf82fef1\n"
    listing = amd_listing(text.replace("BB3", "BB4"))
    assert listing.counts(Nest([2], each=[10, 3]))[FMA] == 2 * 2 * 13
    assert listing.counts(Nest([2], each=[10, 3, 7]))[FMA] == 2 * 2 * 20


def test_sass_has_loops_and_wide_loads():
    listing = nvidia_listing(SASS)
    assert listing.loops == [(1, 1)]
    counts = listing.counts(Nest([4]))
    assert counts[FMA] == 4 and counts[MEMORY] == 4
    assert listing.moved(Nest([4]))[MEMORY] == 64


def test_sass_of_halves_takes_the_time_of_its_card():
    halves = SASS.replace("FFMA", "HFMA2")
    assert nvidia_listing(halves).counts(Nest([4]))[FMA] == 4
    in_floats, *in_halves = (
        nvidia_listing(text, time).vector_cycles(Nest([4]), 1)
        for text, time in ((SASS, 2), (halves, 1), (halves, 2))
    )
    assert in_halves == [in_floats, in_floats + 4]


@pytest.mark.skipif(not nvidia.is_installed(), reason="NVIDIA's nvrtc is not installed")
@pytest.mark.skipif(compilers.version() is None, reason="no HLSL compiler")
def test_nvidias_compiler_takes_products_of_16_bits():
    contents: dict[tuple[str, str], str] = {}
    steps = plan_for(wide_model(), "discrete", halves=True).steps
    keys = [step_key(step, contents) for step in steps if step.defines.get("HALVES")]
    assert len(keys) == 4  # three of Winograd's tiles, one of windows
    for key, family in zip(keys[1::2], ("sm_89", "sm_90"), strict=True):
        assert "0 bytes spill stores" in nvidia.assemble(key, family)[1], key.label
