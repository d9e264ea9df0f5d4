"""A game engine on OpenGL as the host, Panda3D: ``python -m examples.panda3d_host``."""
