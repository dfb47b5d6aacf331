"""Files of an evaluation for other programs: JSON, score matrices and TREC runs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from models.files import replacing, write_whole
from training.data.image_files import ImageFiles
from training.data.split import Split
from training.evaluation.metrics import retrieval_ranks

DEPTH = 100  # items of each query in a TREC run


def write_scores(path: Path, scores: Mapping[str, np.ndarray], data: Split) -> None:
    """Writes the score matrices of all methods, and the rank of each query's best right item.

    The file is a NumPy archive. For each method `NAME` it holds `NAME` (N_img, N_txt) float32,
    `NAME:i2t_ranks` (N_img,) and `NAME:t2i_ranks` (N_txt,), counted from 0; and besides `captions`
    (N_txt,), `image_of` (N_txt,), the row of each caption's image, and `files` (N_img,), the names
    of photographs.

    Args:
        path: ends in ".npz".
        scores: of each method.
        data: what was scored.

    Raises:
        ValueError: `path` has another ending.
    """
    if path.suffix != ".npz":
        raise ValueError(f"--scores writes a NumPy archive; end its name in .npz, not {path}")
    arrays = {"captions": np.array(data.captions), "image_of": data.image_of}
    if isinstance(data.images, ImageFiles):
        arrays["files"] = np.array([file.name for file in data.images.paths])
    for name, matrix in scores.items():
        i2t, t2i = retrieval_ranks(matrix, data.image_of)
        arrays |= {name: matrix, f"{name}:i2t_ranks": i2t, f"{name}:t2i_ranks": t2i}
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def write_trec(folder: Path, scores: Mapping[str, np.ndarray], data: Split) -> None:
    """Writes runs and relevance judgements as `trec_eval` and `ranx` read them.

    `NAME.t2i.trec` and `NAME.i2t.trec` hold the best `DEPTH` items of each query of a method, a
    line `qid Q0 docid rank score tag` each, rank from 1; `t2i.qrels` and `i2t.qrels` the right
    items, `qid 0 docid 1`. Images are `i0`, `i1`, ... and captions `t0`, `t1`, ... by their rows.

    Args:
        folder: is made if need be.
        scores: (N_img, N_txt) of each method.
        data: what was scored; an image's own captions are right, and where all relevant images are
            known, those.
    """
    own = [np.array([row]) for row in data.image_of]
    relevant = own if data.relevant is None else data.relevant()
    right = [(f"t{text}", f"i{row}") for text, rows in enumerate(relevant) for row in rows.tolist()]
    for way, pairs in (("t2i", right), ("i2t", [(image, text) for text, image in right])):
        write_whole(folder / f"{way}.qrels", "".join(f"{q} 0 {d} 1\n" for q, d in pairs))
        for name, matrix in scores.items():
            tag = name.replace("/", "_").replace(" ", "_")
            table = matrix if way == "i2t" else matrix.T  # (Q, G)
            query, item = way[0], way[2]
            lines = []
            for number, row in enumerate(table):
                best = np.argsort(-row, kind="stable")[:DEPTH]
                lines += [
                    f"{query}{number} Q0 {item}{doc} {rank} {row[doc]:.6f} {tag}\n"
                    for rank, doc in enumerate(best.tolist(), 1)
                ]
            write_whole(folder / f"{tag}.{way}.trec", "".join(lines))
