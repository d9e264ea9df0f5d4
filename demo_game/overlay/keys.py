"""The canvas's key names as imgui's."""

from __future__ import annotations

from imgui_bundle import imgui

_KEY = imgui.Key
#: what typing a number into a slider takes
KEYS = {
    "Backspace": _KEY.backspace,
    "Delete": _KEY.delete,
    "Enter": _KEY.enter,
    "Escape": _KEY.escape,
    "Tab": _KEY.tab,
    "Home": _KEY.home,
    "End": _KEY.end,
    "ArrowLeft": _KEY.left_arrow,
    "ArrowRight": _KEY.right_arrow,
    "ArrowUp": _KEY.up_arrow,
    "ArrowDown": _KEY.down_arrow,
    "Control": _KEY.mod_ctrl,
    "Shift": _KEY.mod_shift,
    "Alt": _KEY.mod_alt,
}
