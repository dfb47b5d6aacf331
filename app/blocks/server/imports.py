"""Large packages are imported without what this app does not use of them."""

import gc
import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_LATER = (
    # for compiling: which shapes operators would give
    "torch._meta_registrations",
    "torch.distributed._meta_registrations",
    "pandas",  # for gradio's tables and plots
    "faiss",  # small galleries are scored without
)


class _Later(ModuleType):
    """Stands for a module, which is imported once something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # for which some look in all modules
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


@contextmanager
def quick_imports(mcp: bool = True) -> Iterator[None]:
    """Imports take less time and memory meanwhile; what is left out can be imported afterwards.

    - A stand-in takes the place of what is needed late or never, see `_LATER`.
    - No garbage is collected: hundreds of thousands of objects come and stay, and would be looked
      through again and again.
    - gradio's component classes get no `.pyi` file. gradio parses the source of each and renders
      the file beside it anew, at every start: a quarter of what the app computes until its first
      page. It passes over a class whose source it does not find.

    Args:
        mcp: False leaves out the package of this name, too, as if it were not installed.
    """
    find, collects = inspect.getfile, gc.isenabled()

    def find_others(thing: Any) -> str:
        if type(thing).__name__ == "ComponentMeta":
            raise OSError("its source is not looked for")
        return find(thing)

    left_out: dict[str, ModuleType | None] = {name: _Later(name) for name in _LATER}
    if not mcp:
        left_out["mcp"] = None  # importing it fails
    left_out = {name: other for name, other in left_out.items() if name not in sys.modules}
    sys.modules.update(left_out)  # type: ignore[arg-type]
    gc.disable()
    inspect.getfile = find_others  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getfile = find
        for name, other in left_out.items():
            if sys.modules.get(name) is other:
                sys.modules.pop(name, None)
        if collects:
            gc.enable()
