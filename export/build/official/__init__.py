"""The authors' checkpoints as packs: `python -m export.official --help`.

checkpoint.py    reads what was released, weights alone
keys.py          strict renaming: every key is mapped or named as never read
cnn.py, transformer.py, pooling.py    the parts that releases share
vse_infty.py, pvse.py, mv_vse.py, avse.py    one release a file: its table, sizes and options
vocabulary.py    word lists and word pieces as tokenizers
conversion.py    what a release gives: modules, tokenizer, and what must be said about them
"""
