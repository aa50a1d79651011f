"""Builds the played runtime: libplayed.so, and libcuda.so.1 and libnvidia-ml.so.1, which only load it.

python build.py FOLDER
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

RUNTIME = Path(__file__).parent / "runtime"
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")  # which torch, triton and nvidia-ml-py open by name


def main() -> None:
    folder, packages = Path(sys.argv[1]), Path(sysconfig.get_path("purelib"))
    folder.mkdir(exist_ok=True)
    headers = ("nvidia/cu13/include", "nvidia/nccl/include", "triton/backends/nvidia/include")
    include = [f"-I{packages / each}" for each in headers] + [f"-I{sysconfig.get_path('include')}"]
    shared = ["g++", "-std=c++17", "-O1", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Werror"]
    sources = [str(path) for path in sorted(RUNTIME.glob("*.cpp"))]
    library = folder / "libplayed.so"
    subprocess.run([*shared, "-Wl,-soname,libplayed.so", *include, *sources, "-o", str(library)], check=True)
    for name in NAMES:
        into = ["-Wl,--no-as-needed", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run(
            [*shared, *into, "-x", "c++", "/dev/null", "-x", "none", f"-L{folder}", "-l:libplayed.so"], check=True
        )


if __name__ == "__main__":
    main()
