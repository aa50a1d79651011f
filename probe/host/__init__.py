"""This machine as /proc and NVML show it: processes, threads, limits, devices, and the memory of agents.

It may import the leaves; the standard library, and nvidia-ml-py where NVML is asked.
Invariant: nothing here talks to an agent or stops a process.
"""
