"""XLA's flags for programs that compile longer than they run; `python tests/quickly.py` prints them."""

from importlib.metadata import version

FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if version("jaxlib").startswith("0.10."):  # no other has it, and an unknown flag ends a process
    FLAGS += " --xla_cpu_use_fusion_emitters=false"

if __name__ == "__main__":
    print(FLAGS)
