"""The StyleGAN2-ADA generator as an NNEF network: ``python -m examples.stylegan2``."""
