"""A jaxpr of plain JAX code that reads arrays on disk, without the type of arrays on disk.

While plain code is traced, an array on disk that it closes over is read through an identity
call. Here these calls are removed, and the inputs they read get the ordinary array type, so that
the planner sees an ordinary jaxpr. Loops and branches are treated alike, through their params.
"""

from collections.abc import Sequence
from typing import Any

from jask_zarr import _compat


def lowered(closed_jaxpr: Any, reader: type) -> Any:
    """The jaxpr with all arrays of ordinary type; `reader` is the class of the identity calls."""
    if not closed_jaxpr.jaxpr.is_high:
        return closed_jaxpr
    return _compat.closed(_Lowering(reader).jaxpr(closed_jaxpr.jaxpr))


class _Lowering:
    def __init__(self, reader: type) -> None:
        self.reader = reader
        self.atoms: dict[Any, Any] = {}

    def jaxpr(self, jaxpr: Any) -> Any:
        inputs = {"invars": [*map(self.atom, jaxpr.invars)]}
        if jaxpr.constvars:
            inputs["constvars"] = [*map(self.atom, jaxpr.constvars)]
        eqns = [new for eqn in jaxpr.eqns for new in self.equation(eqn)]
        outvars = [*map(self.atom, jaxpr.outvars)]
        return jaxpr.replace(**inputs, eqns=eqns, outvars=outvars, is_high=False)

    def atom(self, atom: Any) -> Any:
        if not isinstance(atom, _compat.Var) or not atom.aval.is_high:
            return self.atoms.get(atom, atom) if isinstance(atom, _compat.Var) else atom
        if atom not in self.atoms:
            aval = atom.aval
            self.atoms[atom] = _compat.Var(_compat.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type))
        return self.atoms[atom]

    def equation(self, eqn: Any) -> list[Any]:
        reader = eqn.params.get("_prim")
        if isinstance(reader, self.reader):
            return self.inlined(reader.function.jaxpr.jaxpr, eqn)
        params = {name: self.param(value) for name, value in eqn.params.items()}
        return [self.renamed(eqn, self.atom, params)]

    def inlined(self, jaxpr: Any, eqn: Any) -> list[Any]:
        """The equations of a call (of the identity, or of what `vmap` made of it)."""
        names = dict(zip(jaxpr.invars, map(self.atom, eqn.invars), strict=True))

        def atom(inner: Any) -> Any:
            if not isinstance(inner, _compat.Var):
                return inner
            if inner not in names:
                names[inner] = _compat.Var(inner.aval)
            return names[inner]

        eqns = [self.renamed(inner, atom, inner.params) for inner in jaxpr.eqns]
        self.atoms.update(zip(eqn.outvars, map(atom, jaxpr.outvars), strict=True))
        return eqns

    def renamed(self, eqn: Any, atom: Any, params: dict[str, Any]) -> Any:
        return eqn.replace(invars=[*map(atom, eqn.invars)], outvars=[*map(atom, eqn.outvars)], params=params)

    def param(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(self.param, value)) if _holds_jaxprs(value) else value
        if isinstance(value, _compat.Jaxpr):
            return _Lowering(self.reader).jaxpr(value) if value.is_high else value
        if isinstance(value, _compat.ClosedJaxpr):
            inner = value.jaxpr
            return value.replace(jaxpr=self.param(inner)) if inner.is_high else value
        return value


def _holds_jaxprs(values: Sequence[Any]) -> bool:
    return any(isinstance(value, _compat.Jaxpr | _compat.ClosedJaxpr) for value in values)


def reordered(closed_jaxpr: Any, first: Sequence[int]) -> Any:
    """The jaxpr with some inputs moved to the front."""
    invars = closed_jaxpr.jaxpr.invars
    if list(first) == list(range(len(first))):
        return closed_jaxpr
    chosen = set(first)
    rest = [var for k, var in enumerate(invars) if k not in chosen]
    return _compat.closed(closed_jaxpr.jaxpr.replace(invars=[*[invars[k] for k in first], *rest]))
