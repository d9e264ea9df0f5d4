"""Tests that driver threads are assigned to cores, with folders like those of Linux's ``/proc``."""

from demo_game.cores import assign_cores


def test_driver_threads_are_pinned_to_cores(tmp_path):
    names = {11: "python", 12: "llvmpipe-0", 13: "llvmpipe-1", 14: "llvmpipe-2", 15: "llvmpipe-x"}
    for thread, name in names.items():
        folder = tmp_path / str(thread)
        folder.mkdir()
        (folder / "comm").write_text(f"{name}\n")
    (tmp_path / "16").mkdir()  # a thread that has just ended
    assert assign_cores(tmp_path, [4, 7]) == {12: 4, 13: 7, 14: 4}
    assert assign_cores(tmp_path / "none", [0]) == {}
