"""Import torch in four fifths of the time, collecting garbage but once: an import makes what stays.  Without that, a
target would go through all of it at some later moment, such as the attach.

A target imports this before torch, with what its first optimizer would import.  One that does can be forked from a
process that has done so already (tests/forked.py).
"""

import gc

gc.disable()
import torch._dynamo  # noqa: E402
import torch.distributed  # noqa: E402, F401

gc.collect()
gc.enable()
