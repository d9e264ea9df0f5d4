"""The overlay that shows what the game's frames cost and why, drawn with imgui-bundle."""
