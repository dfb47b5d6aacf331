"""Convolutional networks under torchvision's names, their architecture read off the shapes."""

import re

from export.build.official.checkpoint import OfficialError, State
from export.build.official.keys import Table, shape_of
from models.encoders.resnet import STAGES, ResNet

# The classifier behind the pooling is stored by some releases and never called.
TABLE = Table(
    {
        "conv1.": "conv1.",
        "bn1.": "bn1.",
        "layer*.*.conv*.": "layer*.*.conv*.",
        "layer*.*.bn*.": "layer*.*.bn*.",
        "layer*.*.downsample.0.": "layer*.*.downsample.0.",
        "layer*.*.downsample.1.": "layer*.*.downsample.1.",
    },
    ("fc.",),
)


def build_resnet(
    state: State, prefix: str, source: str, layout: str = "torchvision", *, pooled: bool = False
) -> ResNet:
    """The network that the shapes describe, with random weights.

    Args:
        state: released weights.
        prefix: of the network's keys.
        source: where they are from, for messages.
        layout: see `ResNet`; shapes do not tell.
        pooled: see `ResNet`.

    Raises:
        OfficialError: a weight that sizes are read from is missing.
    """
    bottleneck = f"{prefix}layer1.0.conv3.weight" in state
    last = "conv3" if bottleneck else "conv2"
    stages = [f"{prefix}layer{stage + 1}" for stage in range(STAGES)]
    inner = [shape_of(state, f"{stage}.0.conv1.weight", source, 4)[0] for stage in stages]
    outer = [shape_of(state, f"{stage}.0.{last}.weight", source, 4)[0] for stage in stages]
    grouped = shape_of(state, f"{stages[0]}.0.conv2.weight", source, 4)
    groups = grouped[0] // grouped[1] if bottleneck else 1
    if layout == "caffe" and groups > 1:
        raise OfficialError(
            f"{source} holds grouped convolutions, but its options name a backbone without groups"
        )
    return ResNet(
        stem=shape_of(state, f"{prefix}conv1.weight", source, 4)[0],
        widths=inner,
        channels=outer,
        blocks=[_count(state, stage) for stage in stages],
        bottleneck=bottleneck,
        groups=groups,
        layout=layout,
        pooled=pooled,
    )


def _count(state: State, stage: str) -> int:
    blocks = {m[1] for key in state if (m := re.match(re.escape(stage) + r"\.(\d+)\.", key))}
    return len(blocks)
