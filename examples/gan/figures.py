"""What tells how good drawn images are: a distance, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Tuple

import numpy as np
from matplotlib.image import imsave

PIXELS = 8  # each way, that images are compared at: as many as the digits had


def frechet_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the Frechet distance of two sets of images, as if their pixels were normally distributed.

    0 for the same mean and covariance. Pixels take the place of the Inception network's features in
    the usual measure, so that values compare only with each other.

    Args:
        first: Images (N, 1, size, size), from -1 to 1; size is a multiple of 8. They are compared at 8x8.
        second: Others.

    References:
        Dowson and Landau, "The Frechet distance between multivariate normal distributions", 1982.
        Heusel et al., "GANs Trained by a Two Time-Scale Update Rule", 2017, https://arxiv.org/abs/1706.08500
    """
    (mean, covariance), (other_mean, other_covariance) = _moments(first), _moments(second)
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    overlap = np.sqrt(np.linalg.eigvalsh(root @ other_covariance @ root).clip(0)).sum()
    distance = ((mean - other_mean) ** 2).sum() + np.trace(covariance) + np.trace(other_covariance) - 2 * overlap
    return float(distance)


def save_grid(images: np.ndarray, path: Path, columns: int = 8) -> None:
    """Write images (N, 1, H, W), from -1 to 1, into one PNG, row by row; those that do not fill a row are left out."""
    count, _, height, width = images.shape
    rows = count // columns
    grid = images[: rows * columns].reshape(rows, columns, height, width).transpose(0, 2, 1, 3)
    imsave(path, grid.reshape(rows * height, columns * width), cmap="gray", vmin=-1, vmax=1)


def _moments(images: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of the pixels of images, at 8x8."""
    step = images.shape[-1] // PIXELS
    pooled = images.reshape(len(images), PIXELS, step, PIXELS, step).mean(axis=(2, 4), dtype=np.float64)
    pixels = pooled.reshape(len(images), -1)
    return pixels.mean(axis=0), np.cov(pixels, rowvar=False)
