"""The overlay, drawn with imgui-bundle: what the game's frames cost, and the player's controls."""
