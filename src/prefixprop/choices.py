"""What the library's options may be, by name.

Nothing is imported here, so that the command line can tell the choices before PyTorch is loaded.
"""

LAYOUTS = ("paper", "reference")
POOLINGS = ("cls", "prefix")
INITS = ("normal", "vocab")
ALPHA_MODES = ("fixed", "layer", "head", "query")
BACKENDS = ("sdpa", "triton")  # that compute the fast attention
CHUNK_REDUCTIONS = ("mean", "sum")  # of a candidate's scores (WikiHop)
EMBEDDED_MODELS = ("embedded", "embedded-512")
