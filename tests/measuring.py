"""What a pack's method reaches on a split, in one call."""

from export.runtime import Runtime
from training.data.split import Split
from training.evaluation.evaluator import image_features, score_metrics, split_views
from training.evaluation.scoring import score_matrix


def measure(runtime: Runtime, method: str, data: Split, folds: int = 1) -> dict[str, float]:
    """The metrics of one method of a pack, as `training.evaluate` measures them."""
    features = image_features(runtime, data, method=method)
    views = split_views(runtime, method, data, features)
    return score_metrics(score_matrix(runtime.methods[method], *views), data, folds)
