"""Notices that another program has destroyed the game's window on X11.

glfw does not tell it. Xlib ends the process with lines about a failed request, and wgpu with a
panic when it configures the window's surface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import glfw


class _Error(ctypes.Structure):
    """The beginning of an ``XErrorEvent``."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("display", ctypes.c_void_p),
        ("resource", ctypes.c_ulong),
    )


_HANDLER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Error))
#: bytes; more than an XWindowAttributes has
_ATTRIBUTES_BYTES = 512
#: Xlib keeps pointers to them
_handlers: list[object] = []


def call_if_destroyed(canvas: Any, context: Any, end: Callable[[], None]) -> None:
    """Calls ``end`` instead of failing, once another program has destroyed the canvas's window.

    ``end`` must not return. ``context`` is the canvas's context of wgpu.
    """
    handle_of_glfw = getattr(canvas, "_window", None)  # other canvases have none
    if handle_of_glfw is None or glfw.get_platform() != glfw.PLATFORM_X11:
        return
    library = ctypes.CDLL("libX11.so.6")  # glfw has loaded it
    display = ctypes.c_void_p(glfw.get_x11_display())
    window = ctypes.c_ulong(glfw.get_x11_window(handle_of_glfw))
    library.XSetErrorHandler.restype = _HANDLER

    def handle(display: int, error: Any) -> int:
        if error.contents.resource == window.value:
            end()
        return int(before(display, error))

    _handlers.append(_HANDLER(handle))
    before = library.XSetErrorHandler(_handlers[-1])
    # wgpu-py configures a surface again that was lost; where that private method has another name,
    # the panic stays
    surface = getattr(context, "_wgpu_context", None)
    configure = getattr(surface, "_configure_screen_real", None)
    if surface is None or configure is None:
        return

    def ask_and_configure() -> None:
        attributes = ctypes.create_string_buffer(_ATTRIBUTES_BYTES)
        library.XGetWindowAttributes(display, window, attributes)  # an error reaches ``handle``
        configure()

    surface._configure_screen_real = ask_and_configure
