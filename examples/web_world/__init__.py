"""The demo game's world in a browser: a flight over tiles that networks compute on the way."""
