"""Message equations: pure functions, Gaussians in, Gaussian out. They know no layers, files or logs."""
