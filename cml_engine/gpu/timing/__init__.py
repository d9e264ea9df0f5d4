"""GPU time measured by timestamps: single steps, and passes of frames."""
