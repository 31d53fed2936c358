"""``jit(cache=folder)``: values that a program reaches by other ways than a name in its module. (rules W3, W4)

Each row is a small program in which ``@@`` is a number. It is stored with one number, and then run with another: what
it gives must be what it gives without a cache. Rows that name a reason are not stored at all.
"""

import functools
import importlib
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.warm import origins, sources
from tests.sampling import slow_but

pytestmark = pytest.mark.usefixtures("users_random_functions")

CONFIG = {"src_pkg/__init__.py": "", "src_pkg/config.py": "RATE = @@\n"}
LAYERED = {"src_pkg/__init__.py": "", "src_pkg/base.py": "RATE = @@\n", "src_pkg/config.py": "from . import base\n"}
DATA = {"src_pkg/__init__.py": "", "src_pkg/t.txt": "@@"}


def body(text, before=""):
    """A program whose step is this text."""
    return before + "\ndef f(x):\n    " + text.replace("\n", "\n    ") + "\n"


# Name → the program, its other files. The program is stored, loaded again, and not used after the edit.
FOLLOWED = {
    "a submodule from a package": (body("from src_pkg import config\nreturn x * config.RATE"), CONFIG),
    "a submodule of a package": (body("import src_pkg\nreturn x * src_pkg.config.RATE", "import src_pkg.config"),
                                 CONFIG),
    "a submodule under a name": (body("import src_pkg.config as c\nreturn x * c.RATE"), CONFIG),
    "a module of a submodule": (body("import src_pkg.config as c\nreturn x * c.base.RATE"), LAYERED),
    "a submodule, nested": (body("import src_pkg.config\nreturn x * src_pkg.config.base.RATE"), LAYERED),
    "two imports": (body("from src_pkg import config, base\ny = x * 1\nreturn y * config.base.RATE"), LAYERED),
    "a relative import": (
        body("return g(x)", "from src_pkg.net import g\nimport src_pkg.config"),
        {**CONFIG, "src_pkg/net.py": body("from . import config\nreturn x * config.RATE").replace("f(x)", "g(x)")},
    ),
    "an import for an inner function": (
        body("from src_pkg import config\ndef g(): return config.RATE\nreturn x * g()"), CONFIG,
    ),
    "an import in a class body": (body("class C:\n    from src_pkg import config\n    r = config.RATE\nreturn x * C.r"),
                                  CONFIG),
    "what a cached function calls": (
        body("return x * t(3)", "import functools\nR = @@\ndef h(n): return n * R\n"
             "@functools.lru_cache\ndef t(n): return h(n)\nt(3)"), {},
    ),
    "what a cached method calls": (
        body("return x * C().t(3)", "import functools\nR = @@\ndef h(n): return n * R\n"
             "class D:\n    g = staticmethod(h)\nclass C:\n    def __eq__(self, other): return True\n"
             "    def __hash__(self): return 1\n    @functools.lru_cache\n    def t(self, n): return D.g(n)\nC().t(3)"),
        {},
    ),
    "make_dataclass": (
        body("return x * C().rate", "import dataclasses\nC = dataclasses.make_dataclass('C', [('rate', float, @@)])"),
        {},
    ),
    "types.new_class": (
        body("return x * C.rate", "import types\nC = types.new_class('C', (), {}, lambda n: n.update(rate=@@))"), {},
    ),
    "a class of a metaclass": (body("return x * C.rate", "import abc\nC = abc.ABCMeta('C', (), {'rate': @@})"), {}),
    "a file named like a standard module": (
        body("return x * rate()", "from sched import rate"), {"sched.py": "RATE = @@\ndef rate(): return RATE\n"},
    ),
    "an attribute of a member": (
        body("return x * M.A.scale", "import enum\nR = @@\nclass M(enum.Enum):\n    A = 1\n"
             "    def __init__(self, v): self.scale = v * R"), {},
    ),
    "an annotation by its parts": (
        body("return x * T.__args__[0].rate", "class C:\n    rate = @@\nT = list[C]"), {},
    ),
    "an annotation of a class": (
        body("return B()(x)", "import typing\nT = typing.TypeVar('T')\nclass A(typing.Generic[T]):\n    rate = @@\n"
             "    def __call__(self, x): return x * self.rate\nB = A[int]"), {},
    ),
    "a named tuple": (
        body("return x * P.r", "import typing\nclass C(typing.NamedTuple):\n    r: float\nP = C(@@)"), {},
    ),
    "registered classes": (
        body("return x * (2.0 if isinstance(D(), P) else 1.0)",
             "import abc\nclass P(abc.ABC): pass\nclass D: pass\nif @@ > 2.5: P.register(D)"), {},
    ),
    "an attribute of a logger": (
        body("return x * L.rate", "import logging\nL = logging.getLogger('src'); L.rate = @@"), {},
    ),
    "a closure as a method of plait": (
        body("one(None, x)\nreturn plait.LayerNorm(2, rngs=plait.Rngs(0))(x)", "import plait\ndef mk(r):\n"
             "    def call(self, x): return x * r\n    return call\none, plait.LayerNorm.__call__ = mk(1.0), mk(@@)"),
        {},
    ),
    "a default of a method of plait": (
        body("one(None, x)\nreturn plait.LayerNorm(2, rngs=plait.Rngs(0))(x)", "import plait\ndef mk(r):\n"
             "    def call(self, x, r=r): return x * r\n    return call\n"
             "one, plait.LayerNorm.__call__ = mk(1.0), mk(@@)"),
        {},
    ),
    "a type of a field": (
        body("return x * R[dataclasses.fields(C)[0].type]", "import dataclasses\nR = {int: 2.0, float: 3.0}\n"
             "@dataclasses.dataclass\nclass C:\n    r: (int if @@ == 2.0 else float)"), {},
    ),
    "the level of a logger": (
        body("return x * L.level", "import logging\nL = logging.getLogger('src'); L.setLevel(int(@@))"), {},
    ),
    "the level that a logger inherits": (
        body("return x * (L.isEnabledFor(10) + 1)", "import logging\nL = logging.getLogger('src.inner')\n"
             "logging.getLogger('src').setLevel(10 if @@ == 2.0 else 20)"), {},
    ),
    "an attribute dict": (
        body("return x * C.rate", "class D(dict): __getattr__ = dict.__getitem__\nC = D(rate=@@)"), {},
    ),
    "the name of a function": (
        body("return x * (2.0 if g.__name__ == '2.0' else 3.0)", "def g(x): return x\ng.__name__ = '@@'"), {},
    ),
    "an attribute of a partial": (
        body("return x * g.rate", "import functools\ndef h(x): return x\ng = functools.partial(h)\ng.rate = @@"), {},
    ),
    "a subclass of partial": (
        body("return g(x)", "import functools\nclass P(functools.partial): pass\ndef h(r, x): return x * r\n"
             "g = P(h, @@)"), {},
    ),
    "an attribute of a cached function": (
        body("return x * g.rate", "import functools\n@functools.cache\ndef g(x): return x\ng.rate = @@"), {},
    ),
    "a class registered further down": (
        body("return x * (2.0 if isinstance(D(), P) else 1.0)",
             "import abc\nclass P(abc.ABC): pass\nclass Q(P): pass\nclass D: pass\nif @@ > 2.5: Q.register(D)"), {},
    ),
    "a list that iterates otherwise": (
        body("return x * sum(L)", "class C(list):\n    def __iter__(self): return iter([1.0])\n"
             "    def __len__(self): return 1\nclass D(C):\n    pass\nL = D([@@])").replace("sum(L)",
             "list.__getitem__(L, 0)"), {},
    ),
    "containers of the library": (
        body("return x * O['r'] * Q[0] * float(N) * A[0] * E['r']", "import collections, decimal, array\n"
             "O = collections.OrderedDict(r=@@)\nQ = collections.deque([1.0])\nN = decimal.Decimal(1)\n"
             "A = array.array('d', [1.0])\nE = collections.defaultdict(float, r=1.0)"), {},
    ),
    "a date": (body("return x * T.seconds", "import datetime\nT = datetime.timedelta(seconds=int(@@))"), {}),
    "a sentinel": (body("return x * (R if None is not M else 0)", "M = object()\nR = @@"), {}),
    "a generic function": (
        body("return g(x)", "import functools\nR = @@\n@functools.singledispatch\ndef g(x): return h(x)\n"
             "def h(x): return x * R\n@g.register\ndef _(x: int): return x"), {},
    ),
    "a cached property": (
        body("return x * C.rate", "import functools\nclass K:\n    r = @@\n    @functools.cached_property\n"
             "    def rate(self): return self.r\nC = K()"), {},
    ),
    "a copied object": (
        body("return x * copy.copy(C).rate", "import copy\nclass K: pass\nC = K()\nC.rate = @@"), {},
    ),
    "what a package's class has as a tuple": (
        body("return x * plait.LayerNorm.MULT[0]", "import plait\nplait.LayerNorm.MULT = (@@,)"), {},
    ),
    "closures made by the step": (
        body("return mk(2.0)(x) * mk(@@)(x)", "def mk(r):\n    def g(x): return x * r\n    return g"), {},
    ),
    "closures made before": (
        body("return a(x) * b(x)", "def mk(r):\n    def g(x): return x * r\n    return g\na, b = mk(2.0), mk(@@)"), {},
    ),
}  # fmt: skip
# The same, with what a program sets in an installed package, ``src_lib``, after the import.
SET = {
    "a flag": (
        body("return x * src_lib.g(1)", "import src_lib\nsrc_lib.RATE = @@"),
        "RATE = 1.0\ndef g(x): return x * RATE\n",
    ),
    "a flag of another package": (
        body("return x * src_lib.g(1)", "import src_lib, src_base\nsrc_base.RATE = @@"),
        "import src_base\ndef g(x): return x * src_base.RATE\n",
    ),
    "a flag that was imported": (
        body("return x * src_lib.g(1)", "import src_lib\nsrc_lib.RATE = @@"),
        "from src_base import RATE\ndef g(x): return x * RATE\n",
    ),
    "an attribute of an object": (
        body("return x * src_lib.g(1)", "import src_lib\nsrc_lib.config.rate = @@"),
        "import threading\nclass C: rate = 1.0\nconfig = C()\nconfig.lock = threading.Lock()\n"
        "def g(x): return x * config.rate\n",
    ),
    "an attribute of a class": (
        body("return x * src_lib.g(1)", "import src_lib\nsrc_lib.C.rate = @@"),
        "class C: rate = 1.0\ndef g(x): return x * C.rate\n",
    ),
    "an item of a table": (
        body("return x * src_lib.g(1)", "import src_lib\nsrc_lib.FLAGS['rate'] = [@@]"),
        "FLAGS = {'rate': [1.0]}\ndef g(x): return x * FLAGS['rate'][0]\n",
    ),
    "an array": (
        body("return x * src_lib.g(1)", "import src_lib\nsrc_lib.RATE[:] = @@"),
        "import numpy\nRATE = numpy.ones(2)\ndef g(x): return x * RATE\n",
    ),
    "an object of one's own": (
        body("return x * src_lib.g(1)", "import src_lib\nclass C: rate = @@\nsrc_lib.config = C()"),
        "config = None\ndef g(x): return x * config.rate\n",
    ),
    "a function of one's own": (
        body("return x * src_lib.g(1)",
             "import src_lib\ndef mk(r):\n    def h(x, r=r): return x * r\n    return h\none = mk(1.0)\n"
             "src_lib.h = mk(@@)").replace("return x * s", "return one(x) * s"),
        "def h(x): return x\ndef g(x): return h(x)\n",
    ),
    "a function of one's own in a table": (
        body("return x * src_lib.g(1)",
             "import src_lib\ndef mk(r):\n    def h(x, r=r): return x * r\n    return h\none = mk(1.0)\n"
             "src_lib.T['h'] = mk(@@)").replace("return x * s", "return one(x) * s"),
        "T = {}\ndef g(x): return T['h'](x)\n",
    ),
    "a method of one's own": (
        body("return one(None, x) * C()(1)",
             "import src_lib\ndef mk(r):\n    def h(self, x, r=r): return x * r\n    return h\none = mk(1.0)\n"
             "src_lib.C.__call__ = mk(@@)\nclass C(src_lib.C): pass"),
        "class C: pass\n",
    ),
    "a method of one's own that is called like the first": (
        body("return one(x) * src_lib.C()(1)",
             "import src_lib, functools\ndef mk(r):\n    @functools.wraps(src_lib.C.__call__)\n"
             "    def h(self, x=1, r=r): return x * r\n    return h\none = mk(1.0)\nsrc_lib.C.__call__ = mk(@@)"),
        "class C:\n    def __call__(self, x): return x\n",
    ),
    "a closure as a method": (
        body("return one(None, x) * src_lib.C()(1)",
             "import src_lib\ndef mk(r):\n    def h(self, x): return x * r\n    return h\none = mk(1.0)\n"
             "src_lib.C.__call__ = mk(@@)"),
        "class C: pass\n",
    ),
}  # fmt: skip
# The program, its other files, why it is not stored.
REFUSED = {
    "getattr of an import": (body("import settings\nreturn x * getattr(settings, 'RATE')"),
                             {"settings.py": "RATE = @@"}, "the module 'settings' itself is used"),
    "vars of an import": (body("import settings\nreturn x * vars(settings)['RATE']"), {"settings.py": "RATE = @@"},
                          "the module 'settings' itself is used"),
    "an import for an inner function, whole": (
        body("import settings\ndef g(): return vars(settings)\nreturn x * g()['RATE']"), {"settings.py": "RATE = @@"},
        "the module 'settings' itself is used"),
    "the dict of a module": (body("return x * settings.__dict__['RATE']", "import settings"),
                             {"settings.py": "RATE = @@"}, "the module 'settings' itself is used"),
    "importlib": (body("return x * importlib.import_module('settings').RATE", "import importlib"),
                  {"settings.py": "RATE = @@"}, "importlib.import_module is called"),
    "sys.modules": (body("return x * sys.modules['settings'].RATE", "import sys, settings"),
                    {"settings.py": "RATE = @@"}, "sys.modules is used"),
    "sys in a function": (body("import sys as s\nreturn x * s.modules[__name__].RATE", "RATE = @@"), {},
                          "sys.modules is used"),
    "sys as a value": (body("s = sys\nreturn x * s.modules[__name__].RATE", "import sys\nRATE = @@"), {},
                       "the module 'sys' itself is used"),
    "__globals__": (body("return x * f.__globals__['RATE']", "RATE = @@"), {}, "uses __globals__"),
    "__globals__ by name": (body("return x * getattr(f, '__globals__')['RATE']", "RATE = @@"), {}, "uses __globals__"),
    "sys._getframe": (body("return x * sys._getframe().f_globals['RATE']", "import sys\nRATE = @@"), {},
                      "sys._getframe is used"),
    "a frame": (body("return x * getattr(now(), 'f_glo' + 'bals')['RATE']",
                     "from inspect import currentframe as now\nRATE = @@"), {}, "inspect.currentframe is called"),
    "inspect.getmodule": (body("return x * inspect.getmodule(f).RATE", "import inspect\nRATE = @@"), {},
                          "inspect.getmodule is called"),
    "pickle": (body("return x * pickle.loads(B).rate", "import pickle, settings\nB = pickle.dumps(settings.C)"),
               {"settings.py": "class C:\n    rate = @@\n"}, "pickle.loads is"),
    "subclasses": (body("return x * B.__subclasses__()[0].rate", "class B: pass\nclass D(B):\n    rate = @@"), {},
                   "uses __subclasses__"),
    "annotations": (body("return x * C.__annotations__['r']", "class C:\n    r: (@@)"), {}, "uses __annotations__"),
    "a text": (body("return x * float(C.__doc__)", "class C:\n    '@@'"), {}, "uses __doc__"),
    "importlib.resources": (body("return x * float(r.read_text('src_pkg', 't.txt'))",
                                 "import importlib.resources as r"), DATA, "different result in each call"),
    "pkgutil": (body("return x * float(pkgutil.get_data('src_pkg', 't.txt'))", "import pkgutil"), DATA,
                "pkgutil.get_data gives a different result"),
    "a loader": (body("import src_pkg\nreturn x * float(L.get_data(P))",
                      "import src_pkg\nL = src_pkg.__loader__\nP = src_pkg.__file__.replace('__init__.py', 't.txt')"),
                 DATA, "the data of a package gives a different result"),
    "io.FileIO": (body("return x * float(io.FileIO(P).read())",
                       "import io, src_pkg\nP = src_pkg.__file__.replace('__init__.py', 't.txt')"), DATA,
                  "io.FileIO is used"),
    "FileIO": (body("return x * float(FileIO(P).read())",
                    "from io import FileIO\nimport src_pkg\nP = src_pkg.__file__.replace('__init__.py', 't.txt')"),
               DATA, "FileIO, which reads files"),
    "numpy.random as a value": (body("r = np.random\nreturn x * r.rand()", "import numpy as np"), {},
                                "numpy.random' itself is used"),
    "numpy.random in a function": (body("import numpy as np\nreturn x * np.random.rand()"), {},
                                   "numpy.random.rand gives a different result"),
    "numpy.random of an attribute": (body("return x * L.np.random.rand()", "import numpy\nclass L: np = numpy"), {},
                                     "the global state of numpy.random changed"),
    "a host name": (body("import socket\nreturn x * len(socket.gethostname())"), {},
                    "socket.gethostname gives a different result"),
    "a host name by a library": (body("return x * lib.g()", "import lib"),
                                  {"lib.py": "import platform\ndef g(): return len(platform.node())"},
                                  "platform.node gives a different result"),
    "a closure that a package holds": (
        body("one(x)\nreturn src_lib.C()(x)", "import src_lib\ndef mk(r):\n    def h(x): return x * r\n    return h\n"
             "one = mk(1.0)\nsrc_lib.held.append([src_lib.lock, mk(@@)])"),
        {"src_lib.py": "import threading\nheld, lock = [], threading.Lock()\nclass C:\n"
                       "    def __call__(self, x): return held[0][1](x)\n"},
        "called as a closure that is not reachable"),
    "a level that is asked for by name": (
        body("return x * logging.getLogger('src').level", "import logging"), {}, "the level of a logger"),
    "a level that is asked for by name, otherwise": (
        body("return x * (g('src').isEnabledFor(10) + 1)", "from logging import getLogger as g"), {},
        "the level of a logger"),
    "a file that a cached function read": (
        body("return x * float(g())", "import functools, pathlib\n@functools.cache\n"
             "def g(): return pathlib.Path(__file__).read_text().count('a')\ng()"),
        {}, "a function with cached results"),
    "an array that a cached function read": (
        body("return x * g()", "import functools\nimport numpy as np\n@functools.cache\n"
             "def g(): return np.loadtxt([str(@@)])\ng()"), {}, "a function with cached results uses"),
    "a signature": (
        body("return x * len(inspect.signature(g).parameters)", "import inspect\ndef g(x): pass"), {},
        "inspect.signature is called"),
    "a random generator of one's own": (
        body("return x * R.random()", "import random\nclass G(random.Random): pass\nR = G(int(@@))"), {}, "a G"),
    "an array of one's own": (
        body("return x * A[0]", "import array\nclass G(array.array): pass\nA = G('d', [@@])"), {}, "a G"),
    "a line of a file": (
        body("return x * len(linecache.getline(__file__, 1))", "import linecache"), {}, "linecache.getline is called"),
    "a lowering rule": (
        body("return p.bind(x)", "from jax.interpreters import mlir\nfrom jax.extend.core import Primitive\nR = @@\n"
             "p = Primitive('mine')\np.def_abstract_eval(lambda x: x)\ndef low(x): return x * R\n"
             "mlir.register_lowering(p, mlir.lower_fun(low, multiple_results=False))"), {}, "was called, but is not"),
    "a thread": (body("with ThreadPoolExecutor(1) as p: return x * p.submit(g).result()",
                      "from concurrent.futures import ThreadPoolExecutor\nR = @@\ndef g(): return R"), {},
                 "submit is called"),
}  # fmt: skip
PROFILED = body("with cProfile.Profile(): pass\nreturn h(x)", "import cProfile\nR = @@\ndef h(x): return x * R"), {}
if sys.version_info < (3, 12):
    REFUSED["a profiler"] = (*PROFILED, "a profiler was started")
else:  # it uses sys.monitoring there, and does not end the recording
    FOLLOWED["a profiler"] = PROFILED
# Packages that are installed. The program only calls ``src_lib.g``.
INSTALLED = {
    "a constant": {"src_lib/__init__.py": "RATE = @@\ndef g(x): return x * RATE\n"},
    "a constant of another module": {
        "src_lib/__init__.py": "from .c import RATE\ndef g(x): return x * RATE\n", "src_lib/c.py": "RATE = @@\n"},
    "a default": {"src_lib/__init__.py": "def g(x, rate=@@): return x * rate\n"},
    "a class attribute": {
        "src_lib/__init__.py": "class C:\n    rate = @@\n    def g(self, x): return x * self.rate\ng = C().g\n"},
    "a table of functions": {"src_lib/__init__.py": "T = {'a': lambda x: x * @@}\ndef g(x): return T['a'](x)\n"},
    "a cached function": {
        "src_lib/__init__.py": "import functools\nR = @@\n@functools.lru_cache\ndef g(n): return R\ng(1)\n"},
    "a constant of another package": {
        "src_lib/__init__.py": "import src_base\ndef g(x): return x * src_base.RATE\n",
        "src_base/__init__.py": "RATE = @@\n"},
    "beside what stands for a missing package": {
        "src_lib/__init__.py": "class Missing:\n    def __call__(self): pass\n"
        "    def __getattr__(self, name): raise ImportError\nmissing = Missing()\n"
        "RATE = @@\ndef g(x): return x * RATE\n"},
    "a module": {"src_lib.py": "RATE = @@\ndef g(x): return x * RATE\n"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def forget_modules(monkeypatch):
    before = dict(vars(plait.LayerNorm))
    known = {name: sys.modules.pop(name, None) for name in ("sched",)}
    yield
    plait.LayerNorm.__call__ = before["__call__"]
    for name in vars(plait.LayerNorm).keys() - before.keys():
        delattr(plait.LayerNorm, name)
    forget()
    sys.modules.update({name: module for name, module in known.items() if module is not None})
    monkeypatch.undo()
    origins.origin_of.cache_clear()


def forget():
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("src_pkg", "src_lib", "src_base", "src_step", "settings", "sched", "lib"):
            del sys.modules[name]
    importlib.invalidate_caches()
    origins.origin_of.cache_clear()


def outcome(folder, monkeypatch, text, files, number, started=float("inf"), **options):
    """What the step gives with a number in the text, in freshly loaded modules, and the counts.

    Args:
        started: when the process started; files of packages that are newer are not compared.
    """
    place = folder / f"with_{number}"
    libraries = [str(place / name) for name in ("src_lib", "src_base")]
    for name, content in {"src_step.py": text, **files}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content.replace("@@", str(number)))
    forget()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.syspath_prepend(str(place))
        patch.setattr(origins, "INSTALLED", (*origins.INSTALLED, *libraries))
        patch.setattr(sources, "STARTED", started)
        step = plait.jit(importlib.import_module("src_step").f, **options)
        found = np.asarray(step(jnp.ones(2))).tolist()
    return found, step.jitted_fn.programs if options else None


@pytest.mark.parametrize("name", slow_but(["a module of a submodule", "what a cached method calls"], FOLLOWED))
def test_w3_what_is_reached_is_compared(tmp_path, monkeypatch, name):
    text, files = FOLLOWED[name]
    check_followed(tmp_path, monkeypatch, text, files)


def check_followed(tmp_path, monkeypatch, text, files):
    cached = {"cache": tmp_path / "programs"}
    first, programs = outcome(tmp_path, monkeypatch, text, files, 2.0, **cached)
    assert programs.counts["stored"] == 1
    again, programs = outcome(tmp_path, monkeypatch, text, files, 2.0, **cached)
    assert (again, programs.counts["loaded"]) == (first, 1)
    edited, programs = outcome(tmp_path, monkeypatch, text, files, 3.0, **cached)
    assert programs.counts["loaded"] == 0
    assert edited == outcome(tmp_path, monkeypatch, text, files, 3.0)[0] != first


@pytest.mark.parametrize("name", slow_but(["getattr of an import", "a frame", "a lowering rule"], REFUSED))
def test_w4_what_cannot_be_followed_is_not_stored(tmp_path, monkeypatch, name):
    text, files, reason = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, programs = outcome(tmp_path, monkeypatch, text, files, 2.0, cache=tmp_path / "programs")
    assert programs.counts == {"loaded": 0, "stored": 0, "not stored": 1}
    assert any(reason in each for each in programs.reasons), programs.reasons


@pytest.mark.parametrize("name", slow_but(["a constant of another module"], INSTALLED))
def test_w3_another_installation_of_a_package_is_a_miss(tmp_path, monkeypatch, name):
    """Of the same version."""
    text = "import src_lib\ndef f(x): return x * src_lib.g(1)\n"
    check_followed(tmp_path, monkeypatch, text, INSTALLED[name])


def test_w3_a_module_that_appears_is_a_miss(tmp_path, monkeypatch):
    """The code tried to import it."""
    text = body("try:\n    import src_base\nexcept ImportError:\n    return x * 2.0\nreturn x * src_base.RATE")
    cached = {"cache": tmp_path / "programs"}
    assert outcome(tmp_path, monkeypatch, text, {}, 2.0, **cached)[1].counts["stored"] == 1
    assert outcome(tmp_path, monkeypatch, text, {}, 2.0, **cached)[1].counts["loaded"] == 1
    found, programs = outcome(tmp_path, monkeypatch, text, {"src_base.py": "RATE = @@\n"}, 3.0, **cached)
    assert (found, programs.counts["loaded"]) == ([3.0, 3.0], 0)


def test_w3_the_order_of_fields_is_compared(tmp_path, monkeypatch):
    text = """
import dataclasses, jax
@dataclasses.dataclass
class Pair:
    a: float
    b: float
jax.tree_util.register_dataclass(Pair, sorted(["a", "b"], reverse=@@ > 2.0), [])
def f(x): return g(Pair(x * 1.0, x * 3.0))
def h(pair): return pair.a - 2 * pair.b
"""
    cached = {"cache": tmp_path / "programs"}
    for number, loaded in [(2.0, 0), (2.0, 1), (3.0, 0)]:
        outcome(tmp_path, monkeypatch, text.replace("return g", "return h"), {}, number)
        module = sys.modules["src_step"]
        step = plait.jit(module.h, **cached)
        assert step(module.Pair(jnp.float32(1), jnp.float32(3))) == -5.0
        assert step.jitted_fn.programs.counts["loaded"] == loaded


@pytest.mark.slow
def test_w3_a_function_of_jax_that_is_replaced_is_compared(tmp_path, monkeypatch):
    def normalized(norm, x):
        return norm(x)

    norm, x = plait.LayerNorm(2, rngs=plait.Rngs(0)), jnp.array([1.0, 2.0])
    rsqrt = jax.lax.rsqrt
    for replaced in (rsqrt, functools.partial(lambda f, x: f(x) * 2, rsqrt), jax.lax.sqrt):
        monkeypatch.setattr(jax.lax, "rsqrt", replaced)
        jax.clear_caches()  # what JAX has traced in this process keeps the function that it called
        step = plait.jit(normalized, cache=tmp_path)
        np.testing.assert_array_equal(step(norm, x), plait.jit(normalized)(norm, x))
        assert step.jitted_fn.programs.counts["loaded"] == 0


@pytest.mark.parametrize("name", slow_but(["a flag", "a function of one's own", "a closure as a method"], SET))
def test_w3_what_a_program_sets_in_a_package_is_compared(tmp_path, monkeypatch, name):
    text, library = SET[name]
    files = {"src_lib/__init__.py": library, "src_base/__init__.py": "RATE = 1.0\n"}
    check_followed(tmp_path, monkeypatch, text, files)


def test_w4_files_that_are_newer_than_the_process_are_not_compared(tmp_path, monkeypatch):
    """The process may have imported the files before."""
    files = {"src_lib/__init__.py": INSTALLED["a constant"]["src_lib/__init__.py"]}
    text = "import src_lib\ndef f(x): return x * src_lib.g(1)\n"
    cached = {"cache": tmp_path / "programs"}
    outcome(tmp_path, monkeypatch, text, files, 2.0, **cached)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, programs = outcome(tmp_path, monkeypatch, text, files, 2.0, started=sources.STARTED, **cached)
    assert programs.counts == {"loaded": 0, "stored": 0, "not stored": 1}
    assert any("src_lib/__init__.py was changed after this process started" in each for each in programs.reasons)
