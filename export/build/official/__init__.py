"""The authors' checkpoints as packs: `python -m export.official --help`.

checkpoint.py    reads a released file: weights and options
renaming.py      strict loading: every key is mapped or named as never read
networks.py      ResNet, BERT and ViT from the shapes of released weights
vocabulary.py    word lists and word pieces as tokenizers
releases.py      VSE-infinity, PVSE, MV-VSE, AVSE: their tables, sizes and options
convert.py       the command
"""
