"""The build: what it generates, what it compiles again, what a wheel holds, what an import brings in."""

import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tapeflow as tp

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="not in a source tree")


@pytest.fixture
def recipe(monkeypatch):
    """The names of setup.py, run without building, and what it hands to setuptools."""
    setuptools = pytest.importorskip("setuptools", minversion="77")
    handed = {}
    monkeypatch.setattr(setuptools, "setup", handed.update)
    monkeypatch.chdir(ROOT)
    names = runpy.run_path(str(ROOT / "setup.py"))
    yield names, handed
    for name in [name for name in sys.modules if name.startswith("tapeflow_language")]:
        del sys.modules[name]


def python(code, **environment):
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_generated_files_are_left_alone_when_nothing_changed(recipe):
    names, _ = recipe
    names["generate"]()
    files = sorted(Path(names["GENERATED"]).iterdir())
    assert {path.name for path in files} >= {"optable.h", "loops.h", "optable.pxi", "functions.pxi"}
    before = [path.stat().st_mtime_ns for path in files]
    names["generate"]()
    assert [path.stat().st_mtime_ns for path in files] == before


def test_the_language_is_read_without_the_package_and_its_folder(recipe):
    names, _ = recipe
    path, modules = list(sys.path), set(sys.modules)
    names["generate"]()
    assert sys.path == path
    assert not any(Path(entry).resolve() == ROOT / "tapeflow" for entry in sys.path)
    assert {name.split(".")[0] for name in set(sys.modules) - modules} <= {
        "tapeflow_language"
    } | sys.stdlib_module_names


def test_included_headers_are_found_through_headers(recipe):
    names, _ = recipe
    found = {path.name for path in names["included"](names["CSRC"] / "level.c")}
    assert {"tpf.h", "optable.h", "loops.h"} <= found


def test_an_object_is_made_again_when_its_text_or_its_command_changes(recipe, tmp_path):
    names, _ = recipe
    source, product = tmp_path / "a.c", tmp_path / "a.o"
    source.write_text("int a;")
    key = names["digest"]([source], "-O3")
    assert not names["up_to_date"](product, key)
    product.write_text("object")
    (tmp_path / "a.o.key").write_text(key)
    assert names["up_to_date"](product, key)
    assert not names["up_to_date"](product, names["digest"]([source], "-O2"))
    os.utime(source, (0, 0))
    assert names["digest"]([source], "-O3") == key
    source.write_text("int b;")
    assert names["digest"]([source], "-O3") != key


def test_floating_point_flags(recipe):
    names, _ = recipe
    assert {"-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"} <= set(names["FLAGS"])
    assert not any("fast-math" in flag or "Ofast" in flag for flag in names["FLAGS"])


def test_requirements_of_the_tests():
    extra = runpy.run_path(str(ROOT / "tools" / "requirements.py"))["extra"]
    lines = [
        'numpy>=2.0',
        'tapeflow[demo]; extra == "test"',
        'pytest>=8; extra == "test"',
        "mkdocs>=1.6; extra == 'docs'",
        'driver[x]>=1; (sys_platform == "linux" and platform_machine == "x86_64") and extra == "test"',
        'other; sys_platform == "linux" and extra == "test"',
    ]  # fmt: skip
    assert extra("test", lines) == ["pytest>=8"] and extra("docs", lines) == ["mkdocs>=1.6"]
    assert extra("test", lines, conditional=True) == [
        'driver[x]>=1; (sys_platform == "linux" and platform_machine == "x86_64")',
        'other; sys_platform == "linux"',
    ]


def test_versions_agree():
    if sys.version_info >= (3, 11):
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert tp.__version__ == project["version"]


def test_import_is_light():
    heavy = {"pyopencl", "sklearn", "matplotlib", "tqdm", "hypothesis", "torch", "scipy.linalg", "scipy.special"}
    loaded = set(python("import tapeflow, sys; print(*sys.modules)").split())
    assert "tapeflow._core" in loaded
    assert not loaded & heavy


def test_import_works_without_opencl():
    code = "import sys; sys.modules['pyopencl'] = None; import tapeflow as tp; print(float(tp.tensor(2.0) * 3))"
    assert python(code).strip() == "6.0"


@pytest.mark.skipif("TAPEFLOW_BUILD" in os.environ, reason="a wheel is of the release build")
def test_wheel(tmp_path):
    # In the tree itself, so that the objects that are there are used: seconds, not minutes.
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("Cython")
    command = "pip wheel . -q --no-deps --no-build-isolation --no-index -w".split()
    done = subprocess.run([sys.executable, "-m", *command, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("tapeflow-*.whl")
    assert wheel.stat().st_size < 10_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    (module,) = (name for name in names if name.startswith("tapeflow/_core.") and not name.endswith(".pyi"))
    assert module.endswith((".so", ".pyd"))
    assert any(name.endswith("LICENSE") for name in names)
    assert {"tapeflow/csrc/tpf_math.h", "tapeflow/kernels/prelude.cl"} <= set(names)  # what kernels are made of
    assert not [name for name in names if name.startswith(("tests/", "bench/", "examples/"))]
    assert not [name for name in names if name.endswith((".pyx", ".pxi", ".c", ".o"))]
    kernels = {path.name for path in (ROOT / "kernels").glob("*.cl")}
    assert kernels and {name for name in names if "kernels" in name} == {f"tapeflow/kernels/{name}" for name in kernels}
    code = "import tapeflow as tp; print(tp.__file__); print(float(tp.exp(tp.tensor(0.0)))); "
    code += "from tapeflow.backend.opencl import table; print('__kernel' in table.source('probe.cl'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [str(tmp_path / "installed" / "tapeflow" / "__init__.py"), "1.0", "True"], done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_second_make_has_nothing_to_do():
    # The commands that are shown must not build or install anything, when this very environment is the one of make.
    if Path(sys.prefix).resolve() != ROOT / ".venv" or "TAPEFLOW_BUILD" in os.environ:
        pytest.skip("not run by make")
    version = f"PYTHON={sys.executable}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    shown = subprocess.run(["make", "-n", version, "demo"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "pip" not in shown.stdout and "build_ext" not in shown.stdout
