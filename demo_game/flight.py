"""The camera's pose over time: on a scripted path, or flown by the player."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from cml_engine.demo_game.render.camera import Point
from cml_engine.demo_game.world import noise
from cml_engine.demo_game.world.bounds import ground
from cml_engine.demo_game.world.noise import Cells
from cml_engine.demo_game.world.tile import TileId

#: metres above the land, and metres per second
ALTITUDE_M, SPEED = 160.0, 70.0
#: metres per second of a player who flies fast; a camera that moves faster has jumped
FASTEST = 6.0 * SPEED
#: the number of positions that are predicted of the camera's way
_MOMENTS = 4
#: radii of the path's two loops, in metres
_LOOP_M = (2600.0, 1700.0)
#: the path looks down a little
_PITCH = -0.13
#: seconds between the points where the land under the path is looked up
_STEP_S = 2.0
_LOOKAHEAD = 4
_TURN_PER_PIXEL = 0.004
#: the search for the start: the level and the number of its cells along a side
_START_LEVEL, _START_CELLS = 6, 256
#: samples along a side of a neighbourhood, about 4 km
_AROUND = 17


def find_start(seed: int) -> tuple[float, float]:
    """Returns where a flight begins: a coast under mountains, at most 32 km from the origin.

    World x and z are in metres.
    """
    cells = np.arange(-_START_CELLS // 2, _START_CELLS // 2, dtype=np.int32)
    z, x = np.meshgrid(cells, cells, indexing="ij")
    heights = noise.height(Cells(x, z, _START_LEVEL, seed))
    windows = np.lib.stride_tricks.sliding_window_view(heights, (_AROUND, _AROUND))
    sea = (windows < 0).mean((2, 3))
    is_start = (sea > 0.15) & (sea < 0.45) & (windows[..., _AROUND // 2, _AROUND // 2] > 0)
    relief = np.where(is_start, windows.max((2, 3)), -np.inf)
    best_z, best_x = np.unravel_index(int(relief.argmax()), relief.shape)
    size = TileId(_START_LEVEL, 0, 0).cell_m
    return (
        float(cells[best_x + _AROUND // 2]) * size,
        float(cells[best_z + _AROUND // 2]) * size,
    )


@dataclass(frozen=True, slots=True)
class Pose:
    """A position in metres (x east, y up, z south) and a direction of view in radians.

    ``yaw`` 0 looks north (-z) and grows to the east; ``pitch`` grows upwards.
    """

    position: Point
    yaw: float
    pitch: float

    @property
    def forward(self) -> tuple[float, float, float]:
        """The direction of view as a vector of length 1."""
        flat = math.cos(self.pitch)
        return flat * math.sin(self.yaw), math.sin(self.pitch), -flat * math.cos(self.yaw)


class ScriptedFlight:
    """A scripted path of loops: the pose depends only on the seed and the time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.start = find_start(seed)
        self._lifts: dict[int, float] = {}

    def pose(self, seconds: float) -> Pose:
        """Returns the camera's pose ``seconds`` after the start."""
        x, z = self._position(seconds)
        ahead_x, ahead_z = self._position(seconds + 1.0)
        yaw = math.atan2(ahead_x - x, -(ahead_z - z))
        return Pose((x, self._height(seconds), z), yaw, _PITCH)

    def _position(self, seconds: float) -> tuple[float, float]:
        loop_x, loop_z = _LOOP_M
        angle = SPEED / loop_x * seconds
        return (
            self.start[0] + loop_x * math.sin(angle),
            self.start[1] + loop_z * math.sin(2 * angle) * 0.5 - loop_z * 0.3,
        )

    def _height(self, seconds: float) -> float:
        """Returns the height in metres, smooth and above the highest land of the next seconds."""
        step = math.floor(seconds / _STEP_S)
        t = seconds / _STEP_S - step
        before, after = self._lift(step), self._lift(step + 1)
        return before + (after - before) * t * t * (3 - 2 * t)

    def _lift(self, step: int) -> float:
        if step not in self._lifts:
            points = [self._position((step + k) * _STEP_S) for k in range(-1, _LOOKAHEAD)]
            x, z = np.array(points).T
            self._lifts[step] = float(ground(x, z, self.seed).max()) + ALTITUDE_M
        return self._lifts[step]


class CameraWay:
    """Predicts the camera's next positions from the last two that it was given."""

    def __init__(self) -> None:
        self._before: tuple[Point, float] = (0.0, 0.0, 0.0), math.inf

    def predict(self, position: Point, now_s: float, lead_s: float) -> list[tuple[float, Point]]:
        """Returns some positions of the next ``lead_s`` seconds, each with the seconds until then.

        There are none if the camera stands still or has jumped.
        """
        (before, before_s), self._before = self._before, (position, now_s)
        passed_s = now_s - before_s
        if passed_s <= 0 or not 0 < math.dist(before, position) <= FASTEST * passed_s:
            return []
        steps = [b - a for a, b in zip(before, position, strict=True)]
        moments = []
        for number in range(1, _MOMENTS + 1):
            seconds = lead_s * number / _MOMENTS
            x, y, z = (p + s * seconds / passed_s for p, s in zip(position, steps, strict=True))
            moments.append((seconds, (x, y, z)))
        return moments


@dataclass
class FreeFlight:
    """A flight by the player. ``keys`` are the pressed keys by glfw's names, such as ``"W"``."""

    pose: Pose
    seed: int
    keys: set[str] = field(default_factory=set)
    _floor: float = 0.0
    _asked_s: float = -math.inf

    def look(self, dx: float, dy: float) -> None:
        """Turns the view by a mouse movement in pixels; the pitch stays within 1.5 radians."""
        pitch = max(-1.5, min(1.5, self.pose.pitch - dy * _TURN_PER_PIXEL))
        self.pose = Pose(self.pose.position, self.pose.yaw + dx * _TURN_PER_PIXEL, pitch)

    def move(self, dt_s: float, now_s: float) -> Pose:
        """Moves the camera ``dt_s`` seconds in the direction of the pressed keys.

        Returns the new pose. It never goes into the ground. ``now_s`` limits how often the
        ground's height is computed.
        """
        forward = np.array(self.pose.forward)
        right = np.array([math.cos(self.pose.yaw), 0.0, math.sin(self.pose.yaw)])
        pressed = self.keys
        direction = forward * (("W" in pressed) - ("S" in pressed)) + right * (
            ("D" in pressed) - ("A" in pressed)
        )
        direction[1] += ("E" in pressed) - ("Q" in pressed)
        speed = FASTEST if "LEFT_SHIFT" in pressed else SPEED
        position = np.array(self.pose.position) + direction * speed * dt_s
        if now_s - self._asked_s > 0.25:
            self._asked_s = now_s
            points = np.stack([position, position + forward * speed])
            self._floor = float(ground(points[:, 0], points[:, 2], self.seed).max()) + 8.0
        position[1] = max(position[1], self._floor)
        self.pose = Pose(
            (float(position[0]), float(position[1]), float(position[2])),
            self.pose.yaw,
            self.pose.pitch,
        )
        return self.pose
