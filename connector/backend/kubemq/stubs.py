"""KubeMQ's generated protobuf classes, without the SDK around them.

Owns how ``kubemq.grpc.kubemq_pb2`` is imported and the paths of the calls.  The package's ``__init__`` pulls in the
whole SDK (128 modules, 6 MB and 60 ms of start-up time, measured with 4.1.5) and the stubs need none of it, so the one
generated module is run by its path and left out of ``sys.modules``.  Code that imports the SDK as well gets the same
classes: protobuf keeps one per message type.  QueuesInfo, which the published stubs lack, is in ``queues_info.py``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import PurePath
from types import ModuleType
from typing import TYPE_CHECKING


def _load_alone(name: str) -> ModuleType:
    """Import one module of a package without running the ``__init__`` of the packages it lies in.

    Falls back to a plain import where the file is not found that way.  Raises ModuleNotFoundError.
    """
    root, *folders, _ = name.split(".")
    if root in sys.modules or name in sys.modules:
        return importlib.import_module(name)
    package = importlib.util.find_spec(root)  # finds only: a top level package is not run
    places = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec(name, [str(PurePath(place, *folders)) for place in places or ()])
    if spec is None or spec.loader is None:
        return importlib.import_module(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from kubemq.grpc import kubemq_pb2
else:
    kubemq_pb2 = _load_alone("kubemq.grpc.kubemq_pb2")

#: Where the service's calls lie: ``SERVICE + "Ping"``.
SERVICE = f"/{kubemq_pb2.DESCRIPTOR.services_by_name['kubemq'].full_name}/"

__all__ = ["SERVICE", "kubemq_pb2"]
