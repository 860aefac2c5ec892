"""Replace CuPy's runtime module by the one built on the public API, in every Python that has this
folder on its path. Another sitecustomize, which this one hides, is run afterwards."""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_NAME = "cupy_backends.cuda.api.runtime"
_FILE = os.environ.get("ATTUNE_SOFTWARE_GPU_RUNTIME", "")


class _Runtime:
    @staticmethod
    def find_spec(name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name != _NAME:
            return None
        loader = importlib.machinery.ExtensionFileLoader(name, _FILE)
        return importlib.util.spec_from_file_location(name, _FILE, loader=loader)


if _FILE:
    sys.meta_path.insert(0, _Runtime)
_others = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
_hidden = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(importlib.util.module_from_spec(_hidden))
