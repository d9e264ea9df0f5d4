"""The camera.

Everything is drawn relative to it, so nothing loses precision far from the world's origin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cml_engine.demo_game.arrays import Array

Point = tuple[float, float, float]


@dataclass(frozen=True)
class Camera:
    """A camera: position in metres (x east, y up, z south) and direction of view in radians.

    ``yaw`` 0 looks north (-z) and grows to the east, ``pitch`` grows upwards. ``fov`` is the
    vertical angle of view, ``aspect`` is width over height, ``far`` is the distance in metres
    beyond which nothing is drawn.
    """

    position: Point
    yaw: float
    pitch: float
    fov: float = 1.0
    near: float = 1.0
    far: float = 24_000.0
    aspect: float = 16 / 9

    @cached_property
    def axes(self) -> Array:
        """The camera's right, up and forward vectors of length 1, as rows of a 3 x 3 matrix."""
        sin_y, cos_y = math.sin(self.yaw), math.cos(self.yaw)
        sin_p, cos_p = math.sin(self.pitch), math.cos(self.pitch)
        return np.array(
            [
                [cos_y, 0.0, sin_y],
                [-sin_p * sin_y, cos_p, sin_p * cos_y],
                [cos_p * sin_y, sin_p, -cos_p * cos_y],
            ]
        )

    @cached_property
    def view_projection(self) -> Array:
        """The 4 x 4 matrix from a position relative to the camera (a column) to clip space.

        Depth is 1 at ``near`` and 0 at infinity: reversed depth has its precision where it is
        needed.
        """
        right, up, forward = self.axes
        scale = 1.0 / math.tan(self.fov / 2)
        matrix = np.zeros((4, 4))
        matrix[0, :3] = right * (scale / self.aspect)
        matrix[1, :3] = up * scale
        matrix[2, 3] = self.near
        matrix[3, :3] = forward
        return matrix

    def rays(self, width: int, height: int) -> Array:
        """Returns a 3 x 3 matrix of the rays through the pixels of a picture.

        The ray through pixel (x, y), counted from the upper left, is ``rows[0] + x * rows[1] + y
        * rows[2]``. Its component along the direction of view is 1.
        """
        right, up, forward = self.axes
        half_height = math.tan(self.fov / 2)
        half_width = half_height * self.aspect
        return np.array(
            [
                forward - half_width * right + half_height * up,
                2 * half_width / width * right,
                -2 * half_height / height * up,
            ]
        )

    @cached_property
    def _planes(self) -> Array:
        """The inward normals of the view's left, right, lower and upper planes: ``[4, 3]``."""
        x, y, _, w = self.view_projection[:, :3]
        return np.array([w + x, w - x, w + y, w - y])

    def sees_boxes(self, centre: Array, half: Array) -> Array:
        """Returns a bool array ``[n]``: True for each box that may be in view.

        ``centre`` and ``half`` are the boxes' centres and half their sides in metres, ``[n, 3]``.
        """
        planes, from_eye = self._planes, centre - self.position
        # the corner that lies furthest along each normal
        furthest = from_eye @ planes.T + half @ np.abs(planes).T
        distance = np.maximum(np.abs(from_eye) - half, 0.0)
        visible: Array = (furthest.min(1) >= 0) & (
            (distance * distance).sum(1) <= self.far * self.far
        )
        return visible
