"""Word-level tokenizers in the format of the Hugging Face `tokenizers` library."""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

PAD, UNKNOWN = "[PAD]", "[UNK]"
PAD_ID, UNKNOWN_ID = 0, 1


def build_tokenizer(captions: Iterable[str], min_count: int = 1) -> Tokenizer:
    """A lower-casing word tokenizer over the words of the captions.

    Args:
        captions: training captions.
        min_count: words seen less often become [UNK].

    Returns:
        A tokenizer with [PAD] = 0 and [UNK] = 1; other words by falling count, then by alphabet.
    """
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    words = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("removed")]
    )
    counts: Counter[str] = Counter()
    for caption in captions:
        pieces = words.pre_tokenize_str(normalizer.normalize_str(caption))
        counts.update(piece for piece, _ in pieces)
    if not counts:
        raise ValueError("there are no captions to build a vocabulary from")
    frequent = sorted(
        (w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w)
    )
    vocabulary = {word: i for i, word in enumerate([PAD, UNKNOWN, *frequent])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = words
    return tokenizer
