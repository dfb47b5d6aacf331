"""The data that all packages exchange: sets of features, and views.

Legend of shape letters, used in every docstring and trailing comment of this code base:

    B   items in a batch (B_img images, B_txt texts)
    V   views of one item (1 for single-vector methods)
    W   views of a query, as distinct from the V views of an image
    N   elements of an image's set: grid cells, patches or detector regions
    M   elements of a text's set: words or word pieces
    d   width of the encoder's features
    D   width of one view's embedding
    K   a paper's own name for its number of views
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Views:
    """The views of a batch of images or texts."""

    embeddings: Tensor  # (B, V, D); unit length along D unless a method says otherwise
    # (B, V, N) weights of elements, or cosines, 0 on padding; None if not requested or undefined
    attention: Tensor | None = None
    # further tensors (B, ...) by name, for the loss; a method adds them only in training mode
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.embeddings.dim() != 3:
            raise ValueError(
                f"view embeddings must be (B, V, D), not {tuple(self.embeddings.shape)}; "
                "add the view axis with .unsqueeze(1)"
            )

    def __len__(self) -> int:
        return self.embeddings.shape[0]

    def __getitem__(self, rows: slice | Tensor | list[int]) -> Views:
        """Selects items of the batch; an integer, which would remove axis B, raises ValueError."""
        return self.apply(lambda tensor: tensor[rows])

    def to(self, device: torch.device | str) -> Views:
        """Moves the views to another device."""
        return self.apply(lambda tensor: tensor.to(device))

    def apply(self, function: Callable[[Tensor], Tensor]) -> Views:
        """Returns views with `function` applied to every tensor."""
        return Views(
            function(self.embeddings),
            None if self.attention is None else function(self.attention),
            {name: function(tensor) for name, tensor in self.extras.items()},
        )


@dataclass(frozen=True)
class NamedArray:
    """An intermediate array of a method for an image and a text; clients label and draw it."""

    name: str  # such as "plan"
    values: Tensor  # (rows, columns), or () for a number
    # the meaning of a row and of a column, such as ("view", "text_view"); empty for a number
    axes: tuple[str, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()  # the cells (row, column) that determine the score


def lengths_to_mask(lengths: Tensor, size: int) -> Tensor:
    """Turns set sizes (B,), each in 1..`size`, into a mask (B, `size`), True on real elements.

    >>> lengths_to_mask(torch.tensor([1, 3]), 3).int().tolist()
    [[1, 0, 0], [1, 1, 1]]
    """
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]  # (B, N)


def pad_sets(sets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pads B sets (N_b, d) to N = max(N_b); returns features (B, N, d) and mask (B, N)."""
    padded = pad_sequence(list(sets), batch_first=True)  # (B, N, d)
    sizes = torch.tensor([len(features) for features in sets], device=padded.device)
    return padded, lengths_to_mask(sizes, padded.shape[1])


def grid_boxes(rows: int, columns: int) -> Tensor:
    """Returns a box x0, y0, x1, y1 in 0..1 for each cell: (rows * columns, 4), row-major.

    >>> grid_boxes(1, 2).tolist()
    [[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]]
    """
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    grid_size = torch.tensor([columns, rows, columns, rows])
    return torch.stack([x, y, x + 1, y + 1], dim=-1).reshape(-1, 4) / grid_size  # (N, 4)
