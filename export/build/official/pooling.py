"""Tables of parts that several releases store under the same names."""

from export.build.official.keys import Table

_GRU = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def gpo_table(theirs: str, ours: str) -> Table:
    """A released GPO: its BiGRU and its one linear map."""
    return Table({f"{theirs}gru.": f"{ours}gru.", f"{theirs}linear.": f"{ours}score."})


def projection_table(theirs: str, ours: str) -> Table:
    """The map to the joint space and its residual MLP, whose second batch-norm is never read."""
    return Table(
        {
            f"{theirs}fc.": f"{ours}linear.",
            f"{theirs}mlp.layers.0.": f"{ours}mlp.0.",
            f"{theirs}mlp.bns.0.": f"{ours}mlp.1.",
            f"{theirs}mlp.layers.1.": f"{ours}mlp.3.",
        },
        (f"{theirs}mlp.bns.1.",),
    )


def words_table(theirs: str, ours: str, *, both: bool) -> Table:
    """Word embeddings and a GRU, which reads in both directions or forward alone."""
    back = {f"{theirs}rnn.{k}_reverse": f"{ours}backward_gru.{k}" for k in _GRU} if both else {}
    ahead = {f"{theirs}rnn.{k}": f"{ours}forward_gru.{k}" for k in _GRU}
    return Table({f"{theirs}embed.": f"{ours}embed.", **back, **ahead})
