"""How a private name of MXNet is registered, reached and checked."""

from __future__ import annotations

import inspect
from operator import attrgetter
from types import ModuleType
from typing import Any, Dict, List, NamedTuple, Optional, Set

import mxnet as mx

from ..errors import DependencyError

EXPECTED = "1.9.1"  # the version of MXNet whose private names these are


class PrivateName(NamedTuple):
    """A private name that mxmp relies on."""

    owner: Any  # the class or module of MXNet that has it
    name: str
    purpose: str  # what it is relied on for
    is_assigned: bool = False  # whether instances of the class have it; what its methods name then counts as there

    @property
    def label(self) -> str:
        """The name with its owner's, such as 'mxnet.gluon.block.Block._children'."""
        module = getattr(self.owner, "__module__", None)
        return ".".join(part for part in (module, self.owner.__name__, self.name) if part)

    @property
    def is_there(self) -> bool:
        """Whether MXNet has it."""
        return hasattr(self.owner, self.name) or (self.is_assigned and self.name in _named_in(self.owner))


REGISTERED: List[PrivateName] = []


class attribute(property):
    """An attribute of MXNet's objects: a function of any of them, or a property in a class that inherits."""

    def __init__(self, owner: Any, name: str, purpose: str) -> None:
        _register(owner, name, purpose, is_assigned=True)
        self.name, self.read = name, attrgetter(name)
        super().__init__(self.read, self.set, doc=purpose)

    def __call__(self, value_of: Any) -> Any:
        """Return the value that an object has."""
        return self.read(value_of)

    def set(self, value_of: Any, value: Any) -> None:
        """Give an object another value."""
        setattr(value_of, self.name, value)


class method:
    """A method of MXNet's objects, as a function of any of them and the method's arguments."""

    def __init__(self, owner: Any, name: str, purpose: str) -> None:
        _register(owner, name, purpose)
        self.name, self.__doc__ = name, purpose

    def __call__(self, called_on: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the method of an object."""
        return getattr(called_on, self.name)(*args, **kwargs)


OVERRIDES: Dict[type, Dict[str, str]] = {}  # of each class with overrides, the private names by those given here


class _Override:
    """See `override`."""

    def __init__(self, name: str, purpose: str) -> None:
        self.name, self.purpose = name, purpose

    def __set_name__(self, base: type, public: str) -> None:
        name = self.name

        def arriving(self: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(self, public)(*args, **kwargs)

        def original(self: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(super(base, self), name)(*args, **kwargs)

        original.__doc__ = self.purpose
        setattr(base, name, arriving)
        setattr(base, public, original)
        OVERRIDES.setdefault(base, {})[public] = name


def override(owner: Any, name: str, purpose: str) -> Any:
    """Register a method that MXNet calls; in a base class the call arrives under the name given there.

    What stands under that name calls MXNet's own, so that a method of ours reaches it by ``super()``.
    """
    _register(owner, name, purpose)
    return _Override(name, purpose)


def global_name(module: Optional[ModuleType], name: str, purpose: str) -> Any:
    """Register a name of a module and return its value, None where it is missing."""
    _register(module, name, purpose)
    return getattr(module, name, None)


def check(version: str = mx.__version__) -> None:
    """Check that MXNet has all names registered so far; raise a DependencyError that names those that are missing."""
    missing = sorted({entry.label for entry in REGISTERED if not entry.is_there})
    if missing:
        raise DependencyError(
            f"MXNet {version} lacks what mxmp relies on in MXNet {EXPECTED}: {', '.join(missing)}. Install MXNet "
            f"{EXPECTED}."
        )


def _register(owner: Any, name: str, purpose: str, is_assigned: bool = False) -> None:
    if owner is not None:  # itself a private name that is missing, and reported
        REGISTERED.append(PrivateName(owner, name, purpose, is_assigned))


def _named_in(kind: type) -> Set[str]:
    """Return the names of attributes that the methods of a class and its bases read or assign."""
    functions = [value for each in kind.__mro__ for value in vars(each).values() if inspect.isfunction(value)]
    return {name for function in functions for name in function.__code__.co_names}
