"""Import torch in four fifths of the time, without collecting garbage: an import makes what stays.

A target imports this before torch, with what its first optimizer would import.
"""

import gc

gc.disable()
import torch._dynamo  # noqa: E402, F401

gc.enable()
