"""Tests that the demo's picture and world fit the machine, by times of fast and slow ones."""

from dataclasses import replace

import pytest

from cml_engine.demo_game.fitting import FINISHED_S, PICTURE_SHARE, MachineFit
from cml_engine.demo_game.flight import ScriptedFlight
from cml_engine.demo_game.render.pace import EFFORTS
from cml_engine.demo_game.render.quality import SOFTWARE
from cml_engine.demo_game.world.quadtree import fit_detail, select

SEED, FRAME_MS, LEAST_MS = 7, 1000 / 60, 1.0
FLIGHT = ScriptedFlight(SEED)
EYE = FLIGHT.pose(0.0).position
#: milliseconds of a picture at the preset's first effort, and of a tile's networks
FAST, SLOW = (8.0, 22.0), (25.0, 110.0)


def measure_like(first_ms, measured):
    """Returns a function that measures pictures on a machine by their pixels.

    Half of the first picture's time is its own pixels, a quarter those of the target.
    """
    own = EFFORTS[SOFTWARE.effort].pixels

    def measure(share, effort):
        measured.append((share, effort))
        area = share * share
        return first_ms * (0.25 + 0.25 * area + 0.5 * area * EFFORTS[effort].pixels / own)

    return measure


def fitted(machine, **options):
    """Returns the fit to a machine (ms of a picture, ms of a tile), and its measured pictures."""
    picture_ms, tile_ms = machine
    fit, measured = MachineFit(SOFTWARE, SOFTWARE.detail, FRAME_MS, LEAST_MS, **options), []
    fit.fit_picture(measure_like(picture_ms, measured))
    if not fit.keeps_tiles:
        fit.fit_tiles(dict.fromkeys(range(7), tile_ms), EYE, SEED)
    assert fit.is_done
    return fit, measured


def missing_after_flight(detail, max_tiles, free_ms, tile_ms):
    """Returns the number of missing tiles after :data:`FINISHED_S` of the scripted flight.

    Networks have ``free_ms`` in each frame, and begin without any tile.
    """
    ready, done_ms, wanted = set(), 0.0, {}
    looks = 5  # in a second
    for look in range(int(FINISHED_S * looks) + 1):
        eye = FLIGHT.pose(look / looks).position
        done_ms += free_ms * 1e3 / FRAME_MS / looks
        for tile in sorted(wanted, key=lambda tile: (-tile.level, wanted[tile])):
            if done_ms < tile_ms:
                break
            done_ms -= tile_ms
            ready.add(tile)
        now = fit_detail(eye, SEED, detail, max_tiles)
        wanted = select(eye, SEED, now, ready.__contains__).wanted
        done_ms = min(done_ms, tile_ms) if not wanted else done_ms
    return len(wanted)


def test_a_machine_that_keeps_up_has_its_preset_after_one_measurement():
    fit, measured = fitted(FAST)
    assert (fit.quality, fit.detail, fit.max_tiles) == (SOFTWARE, SOFTWARE.detail, None)
    assert measured[0] == (1.0, SOFTWARE.effort) and len(measured) <= 2
    assert fit.describe().startswith("fits this machine: a picture takes 8.0 of 16.7 ms")


def test_on_a_slow_machine_the_picture_and_the_world_are_smaller():
    fit, _ = fitted(SLOW)
    assert fit.quality.width < SOFTWARE.width and fit.quality.height < SOFTWARE.height
    assert fit.quality.width / fit.quality.height == pytest.approx(16 / 9)
    assert fit.max_tiles is not None and fit.max_tiles < 100
    said = fit.describe()
    for part in ("25.0 of 16.7 ms", "a tile's networks 110 ms", f"{fit.max_tiles} tiles",
                 f"{fit.quality.width}x{fit.quality.height}", "--quality software"):  # fmt: skip
        assert part in said


@pytest.mark.parametrize(("cheapest_ms", "share"), [(7.4, 1.0), (8.5, 2 / 3)])
def test_the_cheapest_effort_of_a_picture_leaves_time_for_the_networks(cheapest_ms, share):
    fit = MachineFit(SOFTWARE, SOFTWARE.detail, FRAME_MS, LEAST_MS)
    ms = {(1.0, SOFTWARE.effort): 12.0, (1.0, len(EFFORTS) - 1): cheapest_ms}
    fit.fit_picture(lambda *picture: ms.get(picture, 8.0))
    assert fit.quality.width == round(share * SOFTWARE.width)


@pytest.mark.parametrize("machine", [FAST, SLOW, (12.0, 40.0), (16.0, 60.0), (40.0, 110.0)])
def test_the_first_flight_ends_with_a_finished_world(machine):
    fit, _ = fitted(machine)
    free_ms = max(LEAST_MS, 0.7 * (FRAME_MS - fit.picture_ms))
    slots = SOFTWARE.slots - 8
    most = slots if fit.max_tiles is None else fit.max_tiles
    missing = missing_after_flight(fit.detail, most, free_ms, machine[1])
    assert missing <= 2, "those of the last second may be missing"
    if machine[1] > 50:
        assert missing_after_flight(SOFTWARE.detail, slots, free_ms, machine[1]) > 10


def test_a_picture_that_is_never_fast_enough_is_the_fastest():
    fit, measured = fitted((500.0, 20.0))
    share, effort = measured[-1]
    assert effort == len(EFFORTS) - 1 and fit.quality.effort == effort
    assert fit.quality.width == round(share * SOFTWARE.width)
    assert fit.picture_ms > PICTURE_SHARE * FRAME_MS


def test_what_the_player_or_the_world_fixes_is_kept():
    fit, measured = fitted(SLOW, keeps_size=True)
    assert {share for share, _ in measured} == {1.0} and fit.quality.width == SOFTWARE.width
    assert fit.quality.effort == len(EFFORTS) - 1
    fit, _ = fitted(SLOW, keeps_tiles=True)
    assert fit.detail == SOFTWARE.detail and fit.max_tiles is None
    assert "tile" not in fit.describe()


def test_slower_machines_never_get_more():
    sizes = [fitted((ms, 20.0))[0].quality.width for ms in (6, 10, 15, 20, 30, 50, 80)]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) > 2
    tiles = [fitted((6.0, ms))[0].max_tiles or SOFTWARE.slots for ms in (10, 30, 60, 120, 300)]
    assert tiles == sorted(tiles, reverse=True) and len(set(tiles)) > 3


def test_a_fit_of_another_preset_keeps_its_other_choices():
    quality = replace(SOFTWARE, mesh_step=2, samples=4)
    fit = MachineFit(quality, quality.detail, FRAME_MS, LEAST_MS)
    fit.fit_picture(measure_like(25.0, []))
    assert (fit.quality.mesh_step, fit.quality.samples) == (2, 4)
