"""Encoders of images and texts into sets of features: small networks and published networks."""

from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.models.encoders.published import (
    BertTextEncoder,
    CLIPImageEncoder,
    CLIPTextEncoder,
    MobileNetV2ImageEncoder,
    ResNetImageEncoder,
    SiglipImageEncoder,
    SiglipTextEncoder,
    ViTImageEncoder,
)
from polyview.models.encoders.scene_net import SceneNet

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
