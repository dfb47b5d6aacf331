"""Trains a CLIP model of `transformers` from random weights with InfoNCE on captioned images.

`python -m polyview train --recipe scenes/clip_tiny --out RUN`

The loss is from Alec Radford et al., ICML 2021, section 2.3. RUN/model holds the best weights in
the layout of the Hub's CLIP models; `python -m polyview clip --from RUN/model --out PACK` packs it.
"""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polyview.models.encoders.huggingface import build_network, quiet
from polyview.models.files import atomic_write
from polyview.models.preprocess import Preprocess
from polyview.training.data.batches import Batch, batches
from polyview.training.data.image_files import prefetch
from polyview.training.data.open_split import describe_data, open_split
from polyview.training.data.texts import END, PAD, START, TokenTable, build_tokenizer
from polyview.training.evaluation.metrics import retrieval_metrics
from polyview.training.loop.config import TrainConfig
from polyview.training.loop.loop import CONFIG, LOG, TOKENIZER, Loop
from polyview.training.objectives.losses import info_nce, same_image

MODEL = "model"  # folder of the best weights in a run
_MAX_LOGIT_SCALE = math.log(100)  # maximum logarithm of the inverse temperature (the paper's)
_MAX_TOKENS = 77  # maximum number of tokens of a text if the recipe states none


class ClipTraining(Loop[TrainConfig, Batch]):
    """Trains the CLIP model that `config.network` describes, on images stretched to squares.

    Only these settings apply: data, optimizer, epochs, batch_size, captions_per_image, precision,
    seed, train_images, text.min_count and text.unknown_rate.
    """

    def __init__(self, config: TrainConfig, out: Path, *, resume: bool) -> None:
        super().__init__(config, out, resume=resume)
        data, network = Path(config.data), config.network
        train, val = open_split(data, "train").head(config.train_images), open_split(data, "val")
        train.require_images()
        text_config = {"max_position_embeddings": _MAX_TOKENS, **network.get("text_config", {})}
        self.tokenizer = build_tokenizer(train.captions, config.text.min_count, marks=True)
        self.tokenizer.enable_truncation(text_config["max_position_embeddings"])
        self.tables = [TokenTable(self.tokenizer, split.captions) for split in (train, val)]
        marks = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
        text_config |= {name: self.tokenizer.token_to_id(mark) for name, mark in marks.items()}
        text_config["vocab_size"] = self.tokenizer.get_vocab_size()
        settings = {**network, "model_type": "clip", "text_config": text_config}
        self.model = build_network("CLIPModel", settings).to(self.device)
        self.preprocess = Preprocess(self.model.config.vision_config.image_size)
        self.train, self.val = train.with_pixels(self.preprocess), val.with_pixels(self.preprocess)
        self.start(self.model, item_count=len(train.captions))

    def batches(self, epoch: int) -> Iterator[Batch]:
        config, seed = self.config, (self.config.seed, epoch)
        options = config.text.unknown_rate, config.captions_per_image
        return prefetch(batches(self.train, self.tables[0], config.batch_size, seed, *options))

    def losses(self, batch: Batch, epoch: int) -> dict[str, Tensor]:  # noqa: ARG002
        batch = batch.to(self.device)
        with self.autocast():
            output = self.model(input_ids=batch.ids, pixel_values=batch.features)
        images, texts = output.image_embeds.float()[batch.rows], output.text_embeds.float()
        temperature = (-self.model.logit_scale).exp()
        positives = same_image(batch.image_ids)
        return {"contrastive": info_nce(images @ texts.mT, positives, temperature)}

    @torch.no_grad()
    def after_step(self) -> None:
        self.model.logit_scale.clamp_(max=_MAX_LOGIT_SCALE)

    @torch.no_grad()
    def validate(self, epoch: int) -> dict[str, float]:  # noqa: ARG002
        self.model.eval()
        images, texts = [], []
        for start in range(0, self.val.image_count, 100):
            pixels = torch.from_numpy(np.asarray(self.val.features[start : start + 100]))
            images.append(self.model.get_image_features(pixels.to(self.device)).pooler_output)
        for rows in np.array_split(np.arange(len(self.val.captions)), 10):
            ids = torch.from_numpy(self.tables[1].rows(rows)[0]).to(self.device)
            texts.append(self.model.get_text_features(ids).pooler_output)
        image_rows, text_rows = (F.normalize(torch.cat(side), dim=1) for side in (images, texts))
        return retrieval_metrics((image_rows @ text_rows.mT).cpu().numpy(), self.val.image_of)

    def checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns weights and metadata, see `Loop`; also writes RUN/model."""
        folder = self.out / MODEL
        with quiet():
            self.model.save_pretrained(folder)
        self.tokenizer.no_truncation()
        self.tokenizer.save(str(folder / TOKENIZER))
        processor = {
            "image_processor_type": "CLIPImageProcessor",
            "do_center_crop": False,
            "size": {"height": self.preprocess.size, "width": self.preprocess.size},
            "image_mean": self.preprocess.mean,
            "image_std": self.preprocess.std,
        }
        atomic_write(folder / "preprocessor_config.json", json.dumps(processor, indent=1) + "\n")
        for name in (CONFIG, LOG):
            shutil.copyfile(self.out / name, folder / name)
        data = describe_data(Path(self.config.data), (), self.train)
        return self.model.state_dict(), {"kind": "clip", "data": data}
