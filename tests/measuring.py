"""What a pack's method reaches on a split, in one call."""

from polyview.export.runtime import Runtime
from polyview.training.data.split import Split
from polyview.training.evaluation.kinds import score_metrics
from polyview.training.evaluation.scoring import image_features, score_matrix, split_views


def measure(runtime: Runtime, method: str, data: Split, folds: int = 1) -> dict[str, float]:
    """The metrics of one method of a pack, as `training.evaluate` measures them."""
    features = image_features(runtime, data, method=method)
    views = split_views(runtime, method, data, features)
    return score_metrics(score_matrix(runtime.methods[method], *views), data, folds)
