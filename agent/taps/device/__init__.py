"""Times and memory on CUDA devices.

It may import `taps.modules`, `names`, `storage`.  Invariant: nothing here waits for a device.
"""
