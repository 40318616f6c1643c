"""The choices of the library's options, by name.

Nothing is imported here, so that the command line can list the choices before PyTorch is loaded.
"""

LAYOUTS = ("paper", "reference")
POOLINGS = ("cls", "prefix")
INITS = ("normal", "vocab")
ALPHA_MODES = ("fixed", "layer", "head", "query")
BACKENDS = ("sdpa", "triton")  # that compute the fast attention
CHUNK_REDUCTIONS = ("mean", "sum")  # of a candidate's scores (WikiHop)
DEFAULT_MODEL = "longformer-mini-4096"
EMBEDDED_MODELS = (DEFAULT_MODEL, "longformer-mini-4096-mlm", "roberta-mini-512")
LONG_DOCUMENTS = ("truncate", "chunk-average")  # what `predict` does with those over the limit
EXPLANATION_WAYS = ("occlusion", "reading")  # of doing without a passage
SHOWN_METRICS = (  # of `metrics.json`, which has more
    "average_precision",
    "accuracy",
    "micro_f1",
    "macro_f1",
    "macro_precision",
    "macro_recall",
    "binary_f1",
    "ece",
    "nll",
)
PREDICTION_FORMATS = ("jsonl", "csv")
MOST_ROWS = 65_536  # of a prefix, and of other trained matrices
MOST_ALPHA = 1_000_000
MOST_TEMPERATURE = 5  # above it, or below its inverse, calibrated probabilities are not to be trusted
