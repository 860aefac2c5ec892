"""Print the table of CUDA features: executed by the CPU backend, or refused with which error.

    python tests/bench/cuda_features.py [--check]

Every feature is a small kernel that is compiled for the host, executed and compared with its
expected result; `--check` uses the check build. `tests/cuda_on_host/test_cuda_features.py` has
the table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_feature_cases import GROUPS, LACKING, lacking_sentence

from engine.cuda_on_host.client import Client


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, usage="%(prog)s [--check]")
    parser.add_argument("--check", action="store_true", help="the check build")
    check = parser.parse_args().check
    wrong = 0
    client = Client()
    with tempfile.TemporaryDirectory() as folder:
        for group in GROUPS:
            print(f"\n{group.name}")
            for name, trouble in group.run(client, Path(folder), check).items():
                print(f"  {'executed' if not trouble else 'WRONG':<10}{name}")
                if trouble:
                    print(f"{'':<12}{trouble}")
                wrong += bool(trouble)
        print("\nrefused, with the sentence that the page and the command line show")
        for name, (top, body, _) in LACKING.items():
            print(f"  {name}\n{'':<12}{lacking_sentence(top, body, Path(folder))}")
    client.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
