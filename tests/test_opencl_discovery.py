"""Which OpenCL devices there are and what they are called; drivers from PyPI; trials; what to install."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tapeflow import backend
from tapeflow.backend.opencl import cache, discovery, hints, loader, opened, table, trial
from tapeflow.errors import DeviceError
from tests.opencl_devices import IMPLEMENTATIONS, device  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent


def python(code, **environment):
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={k: v for k, v in (os.environ | environment).items() if v is not None},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- what is here


def test_a_device_and_what_is_said_of_it(device):  # noqa: F811
    info = device.info
    assert info in discovery.listing().candidates and discovery.verdict(info) == ""
    assert (device.name, device.vendor, device.driver, device.kind) == (info.name, info.vendor, info.driver, info.kind)
    assert device.is_cpu == (info.kind == "cpu") and info.kind in discovery.KINDS
    assert 0 < info.max_allocation <= info.memory_bytes and info.local_memory >= 1024 and info.compute_units >= 1
    assert 1 <= device.max_workgroup <= info.max_workgroup
    assert info.name in repr(device) and info.platform in repr(device)
    assert "rusticl" not in info.platform or not info.fp64


def test_oclgrind_is_asked_for_by_name():
    names = [info.platform for info in backend.devices()]
    assert "Oclgrind" not in names
    if any(info.platform == "Oclgrind" for info in discovery.listing().candidates):
        assert backend.open("opencl:oclgrind").info.platform == "Oclgrind"
    else:
        pytest.skip("oclgrind is not here")


def test_indices_are_those_of_the_list():
    found = backend.devices()
    if not found:
        pytest.skip("no OpenCL implementation is here")
    assert [backend.open(f"opencl:{k}").info for k in range(len(found))] == found
    assert backend.open("opencl") is backend.open("opencl:0") is backend.open(" OpenCL : 0 ")


# ---- names, on devices that are made up


def info(name, platform, kind="gpu", place=(0, 0), unified=False, **facts):
    handle = SimpleNamespace(host_unified_memory=unified)
    given = dict(vendor="V", driver="1", version="OpenCL 1.2", platform_version="OpenCL 1.2", fp64=True, fp16=False)
    numbers = dict.fromkeys(
        ("memory_bytes", "max_allocation", "local_memory", "max_workgroup", "compute_units"), 1 << 20
    )
    return discovery.DeviceInfo(
        name=name, platform=platform, kind=kind, place=place, handle=handle, **(given | numbers | facts)
    )


PRETENDED = [
    info("Xeon", "Intel(R) OpenCL", "cpu", (0, 0), True),
    info("Oclgrind Simulator", "Oclgrind", "cpu", (1, 0)),
    info("pthread-Intel(R) Xeon", "Portable Computing Language", "cpu", (2, 0), platform_version="PoCL 3.1"),
    info("UHD 770", "Intel(R) OpenCL Graphics", "gpu", (3, 0), True),
    info("RTX 4090", "NVIDIA CUDA", "gpu", (4, 0), vendor="NVIDIA Corporation"),
    info("RTX 4070", "NVIDIA CUDA", "gpu", (4, 1), vendor="NVIDIA Corporation"),
    info("FPGA", "Boards", "accelerator", (5, 0)),
    info("Broken", "Broken CL", "gpu", (6, 0)),
]


@pytest.fixture
def pretended(monkeypatch):
    """Devices of several vendors, one of which does not work."""
    candidates = sorted(PRETENDED, key=discovery._order)
    monkeypatch.setattr(discovery, "_listing", discovery.Listing(candidates, [("Clover", "lists no device")]))
    monkeypatch.setattr(discovery, "_listed_by", os.getpid())
    verdicts = {i.key: "it crashes" if i.name == "Broken" else "" for i in candidates}
    monkeypatch.setattr(discovery, "_verdicts", verdicts)


def test_the_order(pretended):
    names = [i.name for i in discovery.usable()]
    assert names == ["RTX 4090", "RTX 4070", "UHD 770", "FPGA", "Xeon", "pthread-Intel(R) Xeon"]
    assert discovery.not_usable() == [("Clover", "lists no device"), ("Broken (Broken CL)", "it crashes")]


@pytest.mark.parametrize(
    "name, want",
    [
        ("opencl", "RTX 4090"),
        ("OpenCL", "RTX 4090"),
        ("opencl:", "RTX 4090"),
        ("opencl:0", "RTX 4090"),
        ("opencl:1", "RTX 4070"),
        ("opencl:5", "pthread-Intel(R) Xeon"),
        ("opencl:NVIDIA", "RTX 4090"),
        ("opencl: nvidia ", "RTX 4090"),
        ("opencl:rtx 4070", "RTX 4070"),
        ("opencl:Intel", "UHD 770"),  # a GPU first
        ("opencl:xeon", "Xeon"),
        ("opencl:pocl", "pthread-Intel(R) Xeon"),
        ("opencl:portable computing", "pthread-Intel(R) Xeon"),
        ("opencl:oclgrind", "Oclgrind Simulator"),
        ("opencl:Boards", "FPGA"),
    ],
)
def test_names(pretended, name, want):
    assert discovery.find(name).name == want


@pytest.mark.parametrize("name", ["opencl:6", "opencl:4090", "opencl:radeon", "opencl:broken"])
def test_names_of_nothing(pretended, name):
    with pytest.raises(DeviceError) as caught:
        discovery.find(name)
    text = str(caught.value)
    assert text.startswith("[device] there is no OpenCL device ") and name in text
    assert "opencl:0 RTX 4090 (NVIDIA CUDA, gpu)" in text and "opencl:3 FPGA" in text and "it crashes" in text


@pytest.mark.parametrize("name", ["cuda", "cpu", "", "opencl1", "cuda:0"])
def test_names_of_something_else(pretended, name):
    with pytest.raises(DeviceError, match=r"expected 'opencl'"):
        discovery.find(name)


def test_a_platform_is_meant_before_a_processor(pretended):
    verdicts = discovery._verdicts
    verdicts[PRETENDED[3].key] = "gone"
    assert discovery.find("opencl:intel").name == "Xeon"
    verdicts[PRETENDED[0].key] = "gone"
    assert discovery.find("opencl:intel").name == "pthread-Intel(R) Xeon"


def test_no_device_works(pretended, monkeypatch):
    monkeypatch.setattr(discovery, "_verdicts", {i.key: "it is off" for i in PRETENDED})
    for name in ("opencl", "opencl:0", "opencl:intel"):
        with pytest.raises(DeviceError, match=r"no OpenCL device that works.*it is off.*Install ") as caught:
            discovery.find(name)
    assert "There are" not in str(caught.value)


# ---- what drivers list


class Driver:
    """A stand-in for pyopencl: platforms with devices."""

    Error = type("Error", (Exception,), {})
    device_type = SimpleNamespace(CPU=2, GPU=4)

    def __init__(self, *platforms):
        self.platforms = platforms

    def get_platforms(self):
        if not self.platforms:
            raise self.Error("PLATFORM_NOT_FOUND_KHR")
        return [self.platform(name, devices) for name, devices in self.platforms]

    def platform(self, name, devices):
        def get_devices():
            if isinstance(devices, str):
                raise self.Error(devices)
            return [self.device(**facts) for facts in devices]

        return SimpleNamespace(name=f" {name} ", version="OpenCL 3.0", get_devices=get_devices)

    def device(self, **facts):
        usual = dict(
            name="D ", vendor="V", type=4, version="OpenCL 1.2 x", driver_version="1", extensions="cl_khr_fp64 a",
            global_mem_size=8, max_mem_alloc_size=2, local_mem_size=4, max_work_group_size=64, max_compute_units=1,
            available=True, compiler_available=True, profile="FULL_PROFILE", endian_little=True,
            host_unified_memory=False,
        )  # fmt: skip
        return SimpleNamespace(**(usual | facts))


def test_what_platforms_list():
    driver = Driver(
        ("Clover", []),
        ("rusticl", []),
        ("Fails", "DEVICE_NOT_FOUND"),
        ("Works", [dict(name="CPU ", type=2), dict(), dict(type=8, extensions="cl_khr_fp16"), dict(type=15)]),
        ("Old", [dict(version="OpenCL 1.1 Mesa")]),
        ("Odd", [dict(available=False), dict(compiler_available=False), dict(endian_little=False)]),
        ("Small", [dict(profile="EMBEDDED_PROFILE")]),
    )
    found = discovery._list(driver)
    assert [(i.kind, i.fp64, i.fp16, i.place, i.platform) for i in found.candidates] == [
        ("gpu", True, False, (3, 1), "Works"),
        ("accelerator", False, True, (3, 2), "Works"),
        ("cpu", True, False, (3, 0), "Works"),
        ("cpu", True, False, (3, 3), "Works"),
    ]
    said = " | ".join(f"{what}: {why}" for what, why in found.rejected)
    for part in (
        "Clover: the platform lists no device |",
        "RUSTICL_ENABLE",
        "DEVICE_NOT_FOUND",
        "needs OpenCL 1.2",
        "not available",
    ):
        assert part in said
    for part in ("no compiler", "big-endian", "EMBEDDED"):
        assert part in said
    assert len(found.rejected) == 8
    assert discovery._list(Driver()) == discovery.Listing([], [])


# ---- trials


@pytest.fixture
def untried(tmp_path, monkeypatch):
    """A device that works here, of which nothing is known yet."""
    found = [i for i in discovery.listing().candidates if IMPLEMENTATIONS[0] in i.platform.lower()]
    if not found:
        pytest.skip(f"{IMPLEMENTATIONS[0]} is not here")
    monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(discovery, "_verdicts", {})
    return found[0]


def forget():
    discovery._verdicts.clear()


def no_child(*_, **__):
    raise AssertionError("a child was started")


def test_a_driver_is_tried_once_in_a_child(untried, monkeypatch):
    assert discovery.verdict(untried) == "" and json.loads(cache.read(discovery.KIND, untried.key))[0] == ""
    monkeypatch.setattr(discovery.subprocess, "run", no_child)
    assert discovery.verdict(untried) == ""
    forget()
    assert discovery.verdict(untried) == ""  # from the cache
    forget()
    with pytest.raises(AssertionError, match="a child was started"):
        discovery.verdict(dataclasses.replace(untried, driver="2"))


def test_a_compiler_that_ends_its_process(untried, monkeypatch):
    monkeypatch.setattr(discovery, "TRIAL", f"import os; print({discovery.TRIAL_BEGAN!r}, flush=True); os.abort()")
    assert "ended the process with status" in discovery.verdict(untried)
    monkeypatch.setattr(discovery.subprocess, "run", no_child)
    forget()
    assert "ended the process" in discovery.verdict(untried)  # remembered
    monkeypatch.undo()


def test_a_device_that_failed_is_tried_again_later(untried, monkeypatch):
    cache.write(discovery.KIND, untried.key, json.dumps(["it failed", time.time() - 60]).encode())
    monkeypatch.setattr(discovery, "try_in_child", lambda _: ("", True))
    assert discovery.verdict(untried) == "it failed"
    assert discovery.verdict(untried, again=True) == "" == discovery.verdict(untried)
    forget()
    old = time.time() - discovery.REJECTED_FOR - 1
    cache.write(discovery.KIND, untried.key, json.dumps(["it failed", old]).encode())
    assert discovery.verdict(untried) == ""


def test_a_driver_that_hangs_is_not_remembered(untried, monkeypatch):
    monkeypatch.setattr(discovery, "TRIAL", "import time; time.sleep(60)")
    monkeypatch.setattr(discovery, "TRIAL_TIMEOUT", 0.5)
    assert "more than 0 seconds" in discovery.verdict(untried)
    assert cache.read(discovery.KIND, untried.key) is None


def test_no_interpreter_to_start(untried, monkeypatch):
    for executable in ("/nowhere/python", "/bin/false", "/bin/true"):
        forget()
        monkeypatch.setattr(discovery.sys, "executable", executable)
        assert discovery.verdict(untried) == ""  # tried in this process


def test_a_damaged_verdict_is_none(untried, monkeypatch):
    monkeypatch.setattr(discovery, "try_in_child", lambda _: ("tried", False))
    for body in (b"", b"{", b"null", b"[1]", b'["a", "b"]', b"\xff"):
        forget()
        cache.write(discovery.KIND, untried.key, body)
        assert discovery.verdict(untried) == "tried", body


@pytest.mark.parametrize(
    "before, after, said",
    [("* 2.0f", "* 2.5f", "wrong numbers"), ("width - 1 - k", "k", "wrong numbers"), ("offset +", "", "wrong numbers")]
    + [("tile[k] =", "tile[k] = nonsense =", "does not build")],
)
def test_a_trial_notices_what_is_wrong(untried, monkeypatch, before, after, said):
    text = table.source("probe.cl")
    assert before in text
    monkeypatch.setattr(trial, "source", lambda _: text.replace(before, after))
    text, lasting = trial.run(untried)
    assert said in text and lasting


def test_a_failure_that_is_not_the_devices_is_not_remembered(untried, monkeypatch):
    def fails(_):
        raise OSError("no such file")

    monkeypatch.setattr(trial, "source", fails)
    assert trial.run(untried) == ("OSError: no such file", False)


def test_a_trial_in_a_child_finds_its_device(untried, capsys):
    trial.main(untried.place, untried.key.hex())
    trial.main((99, 0), untried.key.hex())
    began, works, again, other = capsys.readouterr().out.splitlines()
    assert began == again == discovery.TRIAL_BEGAN and json.loads(works) == ["", True]
    assert "other devices" in json.loads(other)[0] and not json.loads(other)[1]


def test_opening_tries_in_this_process_too(untried, monkeypatch):
    monkeypatch.setattr(opened, "_opened", {})
    monkeypatch.setattr(opened, "_named", {})
    monkeypatch.setattr(trial, "check", lambda _: "a first kernel computed wrong numbers")
    discovery._verdicts[untried.key] = ""
    with pytest.raises(DeviceError, match="wrong numbers"):
        opened.device(f"opencl:{IMPLEMENTATIONS[0]}")
    assert not opened._opened and not opened._named


# ---- drivers from PyPI


@pytest.fixture
def vendors(tmp_path, monkeypatch):
    """A system with two .icd files of drivers that are there, one of one that is not; a cache; a driver from PyPI."""
    system, libraries = tmp_path / "etc", tmp_path / "lib"
    system.mkdir()
    libraries.mkdir()
    (libraries / "libvendor.so").write_text("")
    (libraries / "libintelocl.so").write_text("")
    (system / "a.icd").write_text(f"{libraries}/libvendor.so\n")
    (system / "b.icd").write_text("libnvidia-opencl.so.1\n")  # by the loader's search path
    (system / "gone.icd").write_text("/opt/conda_placeholder/libintelocl.so\n")
    (system / "notes.txt").write_text("")
    monkeypatch.setattr(loader, "vendor_folders", lambda: [tmp_path / "none", system])
    monkeypatch.setattr(loader, "packaged_drivers", lambda: [libraries / "libintelocl.so"])
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("TAPEFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(loader.VARIABLE, raising=False)
    return SimpleNamespace(system=system, libraries=libraries, cache=tmp_path / "cache")


def registered():
    folder = Path(os.environ[loader.VARIABLE])
    return {file.name: file.read_text().strip() for file in folder.iterdir()}


def test_drivers_from_pypi_join_those_of_the_system(vendors):
    loader.register_packaged()
    want = {"a.icd": f"{vendors.libraries}/libvendor.so", "b.icd": "libnvidia-opencl.so.1"}
    want["tapeflow-libintelocl.icd"] = f"{vendors.libraries}/libintelocl.so"
    assert registered() == want and Path(os.environ[loader.VARIABLE]).is_relative_to(vendors.cache)
    before = os.environ.pop(loader.VARIABLE)
    loader.register_packaged()
    assert os.environ[loader.VARIABLE] == before
    (vendors.system / "b.icd").unlink()
    del os.environ[loader.VARIABLE]
    loader.register_packaged()
    assert os.environ[loader.VARIABLE] != before and len(registered()) == 2


def test_a_driver_that_the_system_has_too_is_not_loaded_twice(vendors, monkeypatch):
    (vendors.system / "intel.icd").write_text(f"{vendors.libraries}/libintelocl.so")
    loader.register_packaged()
    assert loader.VARIABLE not in os.environ


def test_what_the_user_has_set_is_left_alone(vendors, monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, "/mine")
    loader.register_packaged()
    assert os.environ[loader.VARIABLE] == "/mine"


def test_nothing_is_set_without_a_driver_from_pypi_or_elsewhere(vendors, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    loader.register_packaged()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(loader, "packaged_drivers", list)
    loader.register_packaged()
    assert loader.VARIABLE not in os.environ


def test_drivers_are_listed_for_the_process_where_there_is_no_cache(vendors, monkeypatch):
    vendors.cache.write_text("in the way")
    loader.register_packaged()
    folder = Path(os.environ[loader.VARIABLE])
    assert len(registered()) == 3 and not folder.is_relative_to(vendors.cache)
    loader._temporary.pop().cleanup()
    assert not folder.exists()


def test_damaged_lists_of_drivers_are_written_again(vendors):
    loader.register_packaged()
    want = registered()
    for file in Path(os.environ.pop(loader.VARIABLE)).iterdir():
        file.write_bytes(b"\xff")
    loader.register_packaged()
    assert registered() == want


def test_a_driver_without_what_it_needs(monkeypatch):
    there = SimpleNamespace(files=[])
    monkeypatch.setattr(loader, "installed", lambda name: there if name == "intel-opencl-rt" else None)
    assert loader.packaged_drivers() == []
    (said,) = loader.incomplete_drivers()
    assert "pip install intel-cmplr-lib-rt" in said
    monkeypatch.setattr(loader, "installed", lambda name: None)
    assert loader.incomplete_drivers() == []


PLATFORMS = "print(sorted(i.platform for i in backend.devices())); from tapeflow.backend.opencl import discovery"


@pytest.mark.parametrize("before", ["", "import pyopencl; "])
def test_intels_runtime_of_the_environment_is_found(before):
    if not loader.packaged_drivers():
        pytest.skip("intel-opencl-rt is not installed")
    # Also after pyopencl was imported, as long as nobody has asked it for platforms.
    said = python(f"{before}from tapeflow import backend; {PLATFORMS}; print(discovery.notes())", OCL_ICD_VENDORS=None)
    platforms, notes = said.splitlines()
    assert "Intel(R) OpenCL" in platforms and notes == "[]"


def test_it_is_said_when_pyopencl_was_used_before():
    if not loader.packaged_drivers():
        pytest.skip("intel-opencl-rt is not installed")
    code = "import pyopencl\ntry: pyopencl.get_platforms()\nexcept pyopencl.Error: pass\n"
    code += f"from tapeflow import backend; {PLATFORMS}; print(discovery.notes())"
    notes = python(code, OCL_ICD_VENDORS=None).splitlines()[-1]
    assert "libintelocl.so is installed but not loaded" in notes and "pyopencl was used before" in notes


# ---- nothing there


REFUSED = """
from tapeflow import backend
from tapeflow.errors import DeviceError
print(backend.devices())
try:
    backend.open("opencl")
except DeviceError as error:
    print(error)
"""


def test_without_pyopencl():
    said = python("import sys; sys.modules['pyopencl'] = None" + REFUSED)
    assert said.startswith("[]\n[device] OpenCL needs pyopencl, which is not here")
    assert 'pip install "tapeflow[opencl]"' in said


def test_with_a_pyopencl_that_fails(tmp_path):
    (tmp_path / "pyopencl.py").write_text("raise ImportError('initialization failed')")
    said = python(REFUSED, PYTHONPATH=str(tmp_path))
    assert said.startswith("[]\n[device] pyopencl cannot be imported: ImportError: initialization failed. Renew it")


def test_without_a_driver(tmp_path):
    said = python(REFUSED, OCL_ICD_VENDORS=str(tmp_path))
    assert said.startswith("[]\n[device] there is no OpenCL device that works.")
    assert "Install " in said and "tapeflow[opencl]" not in said


def test_with_a_home_that_cannot_be_written(tmp_path):
    if not backend.devices():
        pytest.skip("no OpenCL implementation is here")
    code = "from tapeflow import backend; print(backend.open('opencl').name == backend.devices()[0].name)"
    file = tmp_path / "file"
    file.write_text("")
    nowhere = dict(HOME="/proc/none", XDG_CACHE_HOME="/proc/none", TAPEFLOW_CACHE_DIR=str(file))
    assert python(code, **nowhere) == "True"


@pytest.mark.parametrize(
    "vendors, system, machine, wanted, unwanted",
    [
        ([], "Linux", "x86_64", ["intel-opencl-rt intel-cmplr-lib-rt", "pocl"], ["GPU"]),
        ([], "Linux", "aarch64", ["pocl"], ["intel-opencl-rt", "GPU"]),
        (["NVIDIA"], "Linux", "x86_64", ["NVIDIA's driver", "for the processor"], ["ROCm"]),
        (["AMD", "Intel"], "Linux", "x86_64", ["ROCm", "rusticl", "intel-opencl-icd"], ["NVIDIA"]),
        ([], "Darwin", "arm64", ["conda-forge"], ["apt", "Debian"]),
        ([], "Windows", "AMD64", ["driver of the GPU's vendor", "CPU Runtime"], ["Debian"]),
    ],
)
def test_what_to_install(vendors, system, machine, wanted, unwanted):
    text = hints.advice(vendors, system, machine)
    assert text.startswith("Install ")
    assert all(part.lower() in text.lower() for part in wanted), text
    assert not any(part in text for part in unwanted), text


def test_the_vendors_of_gpus(tmp_path):
    assert hints.gpu_vendors(str(tmp_path)) == []
    for place, vendor, kind in [
        ("class/drm/card0/device", "0x1002", None),
        ("bus/pci/devices/0000:01:00.0", "0x10de", "0x030200"),
        ("bus/pci/devices/0000:02:00.0", "0x8086", "0x020000"),  # a network card
        ("bus/pci/devices/0000:03:00.0", "0x1234", "0x030000"),
    ]:
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        if kind:
            (folder / "class").write_text(kind + "\n")
    assert hints.gpu_vendors(str(tmp_path)) == ["AMD", "NVIDIA"]


def test_devices_that_the_user_may_not_open(monkeypatch):
    monkeypatch.setattr(hints.glob, "glob", lambda pattern: ["/dev/kfd"] if "kfd" in pattern else [])
    monkeypatch.setattr(hints.os, "access", lambda *_: False)
    assert "may not open /dev/kfd" in hints.advice()


# ---- the cache's folder


@pytest.mark.parametrize(
    "system, environment, want",
    [
        ("linux", dict(TAPEFLOW_CACHE_DIR="/c"), "/c"),
        ("linux", dict(TAPEFLOW_CACHE_DIR="", XDG_CACHE_HOME="/x", HOME="/h"), "/x/tapeflow"),
        ("linux", dict(HOME="/h"), "/h/.cache/tapeflow"),
        ("darwin", dict(HOME="/h"), "/h/Library/Caches/tapeflow"),
        ("win32", dict(LOCALAPPDATA="/l"), "/l/tapeflow/cache"),
    ],
)
def test_the_folder_of_the_cache(monkeypatch, system, environment, want):
    for name in ("TAPEFLOW_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", system)
    assert cache.folder() == Path(want)


def test_without_a_home_there_is_no_cache(monkeypatch):
    monkeypatch.delenv("TAPEFLOW_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(cache.os.path, "expanduser", lambda text: text)
    key = cache.key_of("x")
    assert not cache.write("kind", key, b"body") and cache.read("kind", key) is None


def test_keys_tell_facts_apart():
    keys = [cache.key_of(*facts) for facts in [("ab", "c"), ("a", "bc"), ("abc",), (1,), ("1",), ("a", "b", "c")]]
    assert len(set(keys)) == len(keys)
