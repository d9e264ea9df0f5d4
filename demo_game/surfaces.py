"""Finds out whether the system's Vulkan drivers can draw to a window.

wgpu ends the process with a panic where none can.
"""

from __future__ import annotations

import ctypes
import os
import sys

#: a Vulkan extension's name and version
_NAME_BYTES, _RECORD_BYTES = 256, 260
#: the extension that a display's windows need, by the variable that names the display
_SURFACES = {"DISPLAY": b"VK_KHR_xlib_surface", "WAYLAND_DISPLAY": b"VK_KHR_wayland_surface"}


def has_surfaces() -> bool:
    """Returns False if no Vulkan driver can draw to windows of this display.

    Chromium's SwiftShader cannot, on X11. Returns True if Vulkan cannot be asked.
    """
    if sys.platform != "linux":
        return True
    try:
        list_extensions = ctypes.CDLL("libvulkan.so.1").vkEnumerateInstanceExtensionProperties
    except (OSError, AttributeError):
        return True
    count = ctypes.c_uint32()
    if list_extensions(None, ctypes.byref(count), None) != 0:
        return True
    records = ctypes.create_string_buffer(_RECORD_BYTES * count.value)
    if list_extensions(None, ctypes.byref(count), records) < 0:
        return True
    starts = range(0, _RECORD_BYTES * count.value, _RECORD_BYTES)
    names = {records.raw[at : at + _NAME_BYTES].partition(b"\0")[0] for at in starts}
    return any(os.environ.get(display) and name in names for display, name in _SURFACES.items())
