"""What differs between transforms, as one value for each. It is defined in the transform's own file; no other file of
the heart knows a transform by its name."""

from __future__ import annotations

from typing import ClassVar


class Transformation(str):
    """A transform: its name, and what calls of it need to know.

    Attributes:
        form: the code that calls it with a function ``{f}`` and arguments ``{x}``, for advice; ``{f}`` alone if it
            takes the function among others.
        of_model: how a function of a model and an array is passed to it, for advice.
        of_method: how a method of a module is passed to it, for advice.
        static: the option that leaves out an argument, given its number.
        static_name: the option that leaves out an argument, given its name.
        mapping: an example of a mapping from filters, for advice.
        new_variables: what to do instead of making variables in an iteration, for advice.
        keeps_programs: whether its programs outlive the call, so that what the function captures is a constant.
        copies_captured: whether an object that its function captures and returns comes out as a copy, as in Flax.
        abstract: whether only shapes come out.
        only_values: whether it never carries out changes of structure.
        maps: whether its function runs for each example of a batch.
        loops: whether its function is the body of a loop.
        has_outputs: whether what its function makes can come out.
    """

    known: ClassVar[dict[str, Transformation]] = {}

    form: str
    of_model: str
    of_method: str
    static: str | None
    static_name: str | None
    mapping: str
    new_variables: str
    keeps_programs: bool
    copies_captured: bool
    abstract: bool
    only_values: bool
    maps: bool
    loops: bool
    has_outputs: bool

    def __new__(
        cls,
        name: str,
        form: str = "plait.{name}({f})({x})",
        of_model: str = "",
        of_method: str = "",
        *,
        static: str | None = None,
        static_name: str | None = None,
        mapping: str = "plait.StateAxes({plait.Param: 0, ...: None})",
        new_variables: str = "",
        keeps_programs: bool = False,
        copies_captured: bool = False,
        abstract: bool = False,
        only_values: bool = False,
        maps: bool = False,
        loops: bool = False,
        has_outputs: bool = True,
    ) -> Transformation:
        self = cls.known[name] = super().__new__(cls, name)
        self.form, self.static, self.static_name, self.mapping = form, static, static_name, mapping
        self.keeps_programs, self.copies_captured, self.abstract = keeps_programs, copies_captured, abstract
        self.only_values, self.new_variables = only_values, new_variables
        self.maps, self.loops, self.has_outputs = maps, loops, has_outputs
        self.of_model = of_model or self.code("f", "model, x")
        if not of_method and form == "{f}":
            of_method = "pass a function that takes the module: lambda {module}, x: {module}.{method}(x)"
        self.of_method = of_method
        return self

    def code(self, f: str, x: str) -> str:
        """The code that calls it with a function and arguments."""
        tangents = ", ".join(f"{each}_tangent" for each in x.split(", "))
        return self.form.format(name=self, f=f, x=x, tangents=tangents, curried=x.replace(", ", ")(", 1))

    def for_method(self, owner: str, method: str) -> str:
        """Advice for a call that passes a bound method of a module."""
        module = owner.lower()
        if self.of_method:
            return self.of_method.format(module=module, method=method)
        code = self.code(f"{owner}.{method}", f"{module}, x")
        if any(part in self.form for part in ("{f}, {x}", "{f}, primals", "{curried}")):
            return f"pass the module as an argument: {code}"
        return f"decorate the method in the class (@plait.{self}), or call {code}"
