"""Encoders: images and word ids to sets of features, our own and published ones."""

from models.encoders.bigru import BiGRUTextEncoder
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.encoders.pretrained_image import (
    CLIPImageEncoder,
    MobileNetV2ImageEncoder,
    ResNetImageEncoder,
    ViTImageEncoder,
)
from models.encoders.pretrained_text import BertTextEncoder, CLIPTextEncoder
from models.encoders.scene_net import SceneNet
from models.encoders.siglip import SiglipImageEncoder, SiglipTextEncoder

IMAGE_ENCODERS: dict[str, type[ImageEncoder]] = {
    "scene_net": SceneNet,
    "mobilenet_v2": MobileNetV2ImageEncoder,
    "resnet": ResNetImageEncoder,
    "vit": ViTImageEncoder,
    "clip_vision": CLIPImageEncoder,
    "siglip_vision": SiglipImageEncoder,
}
TEXT_ENCODERS: dict[str, type[TextEncoder]] = {
    "bigru": BiGRUTextEncoder,
    "bert": BertTextEncoder,
    "clip_text": CLIPTextEncoder,
    "siglip_text": SiglipTextEncoder,
}
