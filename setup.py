"""The build: generate the loops from the op table, compile the C once per instruction-set level, link one module.

Facts that are not code (name, dependencies, linters) are in pyproject.toml. Here:
- tapeflow/codegen.py is loaded without importing the package and without putting tapeflow/ on sys.path;
- level.c is compiled once per level of x86-64, each into its own folder; _core chooses at import;
- an object is rebuilt when the text it is made of or its command changes, never because of a time stamp, so objects
  are kept in build/ across builds of every kind (in place, editable, wheel).

TAPEFLOW_BUILD=asan         AddressSanitizer and UBSan, no memory pool
TAPEFLOW_BUILD=boundscheck  Cython's own checks and the engine's debug assertions
TAPEFLOW_JOBS=n             compilers at once (default: the cores, at most 4)
"""

import hashlib
import importlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext as base_build_ext

os.chdir(Path(__file__).resolve().parent)
PACKAGE = Path("tapeflow")
CSRC = PACKAGE / "csrc"
GENERATED = PACKAGE / "_generated"

VARIANT = os.environ.get("TAPEFLOW_BUILD") or "release"
if VARIANT not in ("release", "asan", "boundscheck"):
    raise SystemExit(f"TAPEFLOW_BUILD is {VARIANT!r}; expected asan, boundscheck or nothing")

DIRECTIVES = {
    "language_level": 3,
    "binding": False,
    "embedsignature": True,  # for help() and inspect.signature, since a function without binding has none of its own
    "embedsignature.format": "clinic",
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "nonecheck": False,
    "cdivision": True,
}
if VARIANT == "boundscheck":  # overflow of C integers is found by UBSan, in the other variant
    DIRECTIVES |= {"boundscheck": True, "initializedcheck": True, "nonecheck": True}

# Contraction would make fused and composed gradients differ; without the other two flags exp does not vectorise.
FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-fvisibility=hidden"]
FLAGS += ["-pthread", "-g0"]
SANITIZE = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=undefined"]
MSVC_FLAGS = ["/O2", "/fp:precise", "/std:c11"]
LEVELS = {
    "v2": ["-march=x86-64-v2"],
    "v3": ["-march=x86-64-v3"],
    "v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}


def generate():
    """Write tapeflow/_generated from the op table; a file whose text is the same is left alone."""
    package = types.ModuleType("tapeflow_language")
    package.__path__ = [str(PACKAGE.resolve())]
    sys.modules[package.__name__] = package
    importlib.import_module("tapeflow_language.codegen").generate(str(GENERATED))


def included(source):
    """The project's own headers that a C file includes, directly or not."""
    found, todo = {}, [source]
    while todo:
        for name in re.findall(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', todo.pop().read_bytes(), re.M):
            for folder in (CSRC, GENERATED):
                path = folder / Path(os.fsdecode(name)).name
                if path.exists() and path not in found:
                    found[path] = None
                    todo.append(path)
    return sorted(found)


def digest(paths, *facts):
    """A digest of what a product is made of: texts and whatever else decides its content."""
    state = hashlib.sha256(repr((facts, VARIANT, sys.version)).encode())
    for path in paths:
        state.update(f"{path}\0".encode() + path.read_bytes())
    return state.hexdigest()


def up_to_date(product, key):
    """Whether the product was made from what the key is the digest of."""
    stamp = Path(f"{product}.key")
    return product.exists() and stamp.exists() and stamp.read_text() == key


class build_ext(base_build_ext):
    """Compile what changed, several files at a time, and link."""

    def build_extension(self, ext):
        generate()
        self.msvc = self.compiler.compiler_type == "msvc"
        tag = sysconfig.get_config_var("EXT_SUFFIX").removeprefix(".").rsplit(".", 1)[0]
        self.folder = Path("build") / f"{VARIANT}-{tag}"
        self.folder.mkdir(parents=True, exist_ok=True)
        levels = LEVELS if self.knows_levels() else {"base": []}
        macros = [*ext.define_macros, *([("TPF_HAVE_X86_LEVELS", "1")] if levels is LEVELS else [])]

        core = self.translate(ext)
        jobs = [(core, "core", macros, [])]
        jobs += [(CSRC / "level.c", name, [*macros, ("TPF_LEVEL", name)], flags) for name, flags in levels.items()]
        jobs += [(path, "common", macros, []) for path in sorted(CSRC.glob("*.c")) if path.name != "level.c"]
        workers = int(os.environ.get("TAPEFLOW_JOBS") or min(4, os.cpu_count() or 1))
        with ThreadPoolExecutor(workers) as pool:
            objects = list(pool.map(lambda job: self.compile(ext, *job), jobs))

        ext.sources, ext.extra_objects, ext.depends = [], objects, [*objects, "setup.py"]
        ext.extra_link_args = self.link_flags()
        super().build_extension(ext)

    def knows_levels(self):
        """Whether the compiler, as it is set up, makes code for x86-64 alone and knows its levels."""
        if self.msvc:
            return False
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder, "probe.c")
            probe.write_text("#ifndef __x86_64__\n#error not x86-64\n#endif\nint probe;\n")
            command = [*self.compiler.compiler_so, *LEVELS["v4"], "-c", str(probe), "-o", str(Path(folder, "probe.o"))]
            return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0

    def translate(self, ext):
        """_core.pyx with its included parts -> C, when one of them changed."""
        import Cython
        from Cython.Build import cythonize

        parts = [*PACKAGE.glob("*.p[yx][xd]"), *PACKAGE.glob("core/*.px[id]"), *GENERATED.glob("*.px[id]")]
        product = self.folder / "tapeflow" / "_core.c"
        key = digest(sorted(parts), Cython.__version__, DIRECTIVES)
        if self.force or not up_to_date(product, key):
            cythonize(
                [Extension(ext.name, ext.sources)],
                build_dir=str(self.folder),
                include_path=[str(PACKAGE), str(GENERATED)],
                compiler_directives=DIRECTIVES,
                annotate=bool(os.environ.get("TAPEFLOW_ANNOTATE")),
                force=True,
                quiet=True,
            )
            Path(f"{product}.key").write_text(key)
        return product

    def compile(self, ext, source, name, macros, level_flags):
        """One C file -> one object; the path of the object."""
        folder = self.folder / name
        flags = self.compile_flags(level_flags)
        dirs = [*ext.include_dirs, str(GENERATED), *([str(CSRC)] if self.msvc else [])]
        (product,) = map(Path, self.compiler.object_filenames([str(source)], output_dir=str(folder)))
        command = getattr(self.compiler, "compiler_so", "cl")
        key = digest([source, *included(source)], macros, flags, dirs, command)
        if self.force or not up_to_date(product, key):
            self.compiler.compile([str(source)], str(folder), macros, dirs, extra_postargs=flags)
            Path(f"{product}.key").write_text(key)
        return str(product)

    def compile_flags(self, level_flags):
        """Arguments that follow, and so override, those that Python was built with."""
        if self.msvc:
            return MSVC_FLAGS
        # -iquote: csrc must not answer for the system's headers.
        flags = [*FLAGS, "-iquote", str(CSRC), *level_flags]
        if VARIANT == "asan":
            flags += [*SANITIZE, "-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", "-fstrict-overflow"]
        return flags

    def link_flags(self):
        """Threads, libm, and no symbol table in what is shipped."""
        if self.msvc:
            return []
        flags = ["-pthread", "-lm"]
        if VARIANT == "asan":
            return flags + SANITIZE
        return flags + (["-Wl,-x"] if sys.platform == "darwin" else ["-Wl,-s"])


def macros():
    """Macros of every C file."""
    defined = [("_GNU_SOURCE", "1")]  # -std=c11 alone hides POSIX
    if VARIANT == "asan":  # no memory is used again without the sanitizer's knowledge
        defined += [("TPF_NO_POOL", "1"), ("CYTHON_USE_FREELISTS", "0")]
    if VARIANT != "release":
        defined.append(("TPF_DEBUG", "1"))
    return defined


setup(
    packages=[*find_packages(include=["tapeflow*"]), "tapeflow.kernels"],
    package_dir={"tapeflow.kernels": "kernels"},  # OpenCL C: data, beside the package here and inside it when installed
    package_data={"tapeflow": ["py.typed", "*.pyi", "csrc/*.h"], "tapeflow.kernels": ["*.cl"]},
    include_package_data=False,
    ext_modules=[Extension("tapeflow._core", ["tapeflow/_core.pyx"], define_macros=macros())],
    cmdclass={"build_ext": build_ext},
)
