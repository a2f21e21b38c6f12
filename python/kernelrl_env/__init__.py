"""The taskset of kernelrl under a name that verifiers takes: `vf-eval kernelrl_env`."""

from kernelrl.for_verifiers import KernelTaskset

__all__ = ["KernelTaskset"]
