"""The compiled kernel as a part that may be missing: how it is built, loaded, chosen and left out."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner

import qpid_ha_kernel
from qpid_ha_broker.server.command_line import main as qpidd
from qpid_ha_broker.server.runtime.kernel_choice import choose_kernel, describe
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.loading import load_settings
from qpid_ha_config.settings import BrokerSettings
from qpid_ha_kernel import VERSION, WITHOUT, Kernel, NoKernel, load

SOURCES = Path(qpid_ha_kernel.__file__).parent


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It is not known yet whether there is a kernel, and is not remembered."""
    monkeypatch.delenv(WITHOUT, raising=False)
    load.cache_clear()
    yield
    load.cache_clear()


@pytest.fixture
def missing(unknown: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none."""
    monkeypatch.setitem(sys.modules, "qpid_ha_kernel._kernel", None)


@pytest.fixture
def there(unknown: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one, of this version."""
    put(monkeypatch, VERSION)


def put(monkeypatch: pytest.MonkeyPatch, version: int, *, fits: bool = True) -> None:
    module = ModuleType("qpid_ha_kernel._kernel")
    module.__dict__.update(ffi=None, lib=SimpleNamespace(KERNEL_VERSION=version, proton_calls_known=lambda *_: fits))
    monkeypatch.setitem(sys.modules, "qpid_ha_kernel._kernel", module)


def test_both_sides_name_the_same_version() -> None:
    text = (SOURCES / "version.h").read_text(encoding="utf-8")
    assert re.findall(r"KERNEL_VERSION (\d+)", text) == [str(VERSION)]


@pytest.mark.usefixtures("missing")
def test_without_one_the_setting_decides_and_says_what_to_do() -> None:
    for wanted in ("auto", "off"):
        kernel = choose_kernel(wanted)
        assert isinstance(kernel, NoKernel)
        assert "in Python" in describe(kernel)
    with pytest.raises(
        SettingsError, match=r"kernel: it is required, but it was not built; install gcc.*set it to auto"
    ):
        choose_kernel("required")


@pytest.mark.usefixtures("there")
def test_where_there_is_one_it_is_used_unless_it_is_off() -> None:
    for wanted in ("auto", "required"):
        kernel = choose_kernel(wanted)
        assert isinstance(kernel, Kernel)
        assert "by the compiled kernel" in describe(kernel)
    assert choose_kernel("off") == NoKernel("the setting kernel is off")


@pytest.mark.usefixtures("unknown")
def test_one_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, VERSION + 1)
    found = load()
    assert isinstance(found, NoKernel)
    assert "other sources" in found.reason


@pytest.mark.usefixtures("unknown")
def test_one_that_knows_other_functions_of_proton_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, VERSION, fits=False)
    assert "another release of Proton" in describe(choose_kernel("auto"))
    with pytest.raises(SettingsError, match="another release of Proton"):
        choose_kernel("required")


@pytest.mark.usefixtures("there")
def test_the_environment_can_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WITHOUT, "1")
    assert "QPID_HA_WITHOUT_KERNEL; take it out" in describe(choose_kernel("auto"))


@pytest.mark.usefixtures("missing")
def test_check_says_what_will_run_and_refuses_what_cannot(tmp_path: Path) -> None:
    config = tmp_path / "qpid-ha.yaml"
    config.write_text("name: alpha\n", encoding="utf-8")
    done = CliRunner().invoke(qpidd, ["--check", "--config", str(config)])
    assert done.exit_code == 0
    assert "in Python: it was not built" in done.output
    done = CliRunner().invoke(qpidd, ["--check", "--config", str(config), "--set", "kernel=required"])
    assert done.exit_code == 1
    assert "kernel: it is required" in done.output


def test_off_is_a_word_and_no_boolean(tmp_path: Path) -> None:
    config = tmp_path / "qpid-ha.yaml"
    config.write_text("kernel: off\n", encoding="utf-8")
    settings = load_settings(config, {}, {})
    assert (settings.kernel, settings.get("kernel")) == ("off", "off")
    for wrong in (True, "on", 1):
        with pytest.raises(SettingsError, match=r"kernel: .* is not one of auto, off, required"):
            BrokerSettings.from_values({"kernel": wrong})


def test_the_declarations_are_such_as_cffi_reads() -> None:
    """One file for both compilers: no guards, no includes."""
    for path in SOURCES.glob("*.h"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not line.startswith("#") or re.fullmatch(r"#define \w+ \d+", line), f"{path.name}: {line}"
