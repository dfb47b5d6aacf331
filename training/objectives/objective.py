"""What an objective is."""

from abc import abstractmethod

from torch import Tensor

from models import Method, Views
from training.settings import Settings


class Objective(Settings):
    """Turns a batch's views into named loss terms, which training sums; a recipe's `objective`."""

    @abstractmethod
    def __call__(
        self, method: Method, images: Views, texts: Views, image_ids: Tensor, epoch: int
    ) -> dict[str, Tensor]:
        """Computes the terms.

        Args:
            method: gives the scores.
            images: views of B images, with the extras that the method gives in training.
            texts: views of B texts; text b belongs to image b.
            image_ids: (B,) ids, equal where the batch holds an image twice.
            epoch: counted from 0.
        """
