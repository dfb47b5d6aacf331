"""Published text backbones as encoders; see `models/encoders/pretrained_image.py`."""

from typing import Any, ClassVar

from torch import Tensor, nn

from models.encoders.encoder import TextEncoder
from models.encoders.huggingface import build_network
from models.views import lengths_to_mask


class BertTextEncoder(TextEncoder):
    """BERT (Devlin et al., NAACL 2019) and its kin, such as MiniLM: the last hidden states.

    The first element is [CLS], the last one of each text [SEP].

    Args:
        config: the network's Hugging Face configuration as JSON, `model_type` included; see
            `export/encoders/` for the types.
    """

    summary_token: ClassVar[bool] = True

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model = build_network("AutoModel", config)
        self.model.pooler = None  # [CLS]'s extra layer, which a set of features has no use for
        self.dim = int(self.model.config.hidden_size)
        # RoBERTa counts positions from its padding id on
        offset = 2 if self.model.config.model_type == "roberta" else 0
        self.max_length = int(self.model.config.max_position_embeddings) - offset

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """See `TextEncoder.forward`."""
        real = lengths_to_mask(lengths, ids.shape[1])  # (B, L)
        hidden: Tensor = self.model(ids, attention_mask=real.long()).last_hidden_state  # (B, L, d)
        return hidden * real[..., None]


class CLIPTextEncoder(TextEncoder):
    """CLIP's text transformer (Radford et al., ICML 2021), after its last layer norm.

    It reads from left to right, so that the last element of each text, [EOS], has seen all of it:
    `models.layers.last_element` gives CLIP's pooled text. The first one has seen nothing.

    Args:
        config: a `CLIPTextConfig` as JSON.
        projected: map every element into the space that images and texts share.
    """

    def __init__(self, config: dict[str, Any], projected: bool = False) -> None:
        super().__init__()
        self.model = build_network("CLIPTextModel", config)
        width, shared = self.model.config.hidden_size, self.model.config.projection_dim
        self.projection: nn.Linear | None = None
        if projected:
            self.projection = nn.Linear(width, shared, bias=False)
        self.dim = int(shared if projected else width)
        self.max_length = int(self.model.config.max_position_embeddings)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """See `TextEncoder.forward`."""
        real = lengths_to_mask(lengths, ids.shape[1])  # (B, L)
        hidden: Tensor = self.model(ids, attention_mask=real.long()).last_hidden_state  # (B, L, h)
        if self.projection is not None:
            hidden = self.projection(hidden)
        return hidden * real[..., None]
