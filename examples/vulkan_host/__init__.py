"""A game in C++ on Vulkan that plays a network in its frames: see README.md for the commands."""
