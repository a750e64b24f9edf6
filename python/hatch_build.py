"""Builds the extension and the command with cargo, and puts them into the wheel."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = ["libhardpack.so", "libhardpack_preload.so", "hardpack"]

# A folder with FILES that are built and stripped already, and the tag of the platform they fit:
# for packages of a release (`scripts/dist/build.sh`).
BUILT_VARIABLE = "HARDPACK_WHEEL_FILES"
PLATFORM_VARIABLE = "HARDPACK_WHEEL_PLATFORM"


class CargoBuildHook(BuildHookInterface):
    """Adds what `cargo build --release` makes; the wheel fits any Python 3 of this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if sys.platform != "linux":
            raise OSError("Hardpack runs on Linux only")
        here = Path(self.root)
        from_sdist = here / "rust"
        workspace = from_sdist if from_sdist.is_dir() else here.parent
        built = os.environ.get(BUILT_VARIABLE)
        made = Path(built) if built else self.build(workspace)
        if version == "editable":
            target = here / "src" / "hardpack" / "_native"
            target.mkdir(exist_ok=True)
            for name in FILES:
                shutil.copy2(made / name, target / name)
            return
        stripped = made.parent / "python-wheel"
        include = build_data["force_include"]
        for name in FILES:
            path = made / name if built else strip(made / name, stripped / name)
            include[str(path)] = f"hardpack/_native/{name}"
        if built:
            include[str(made / "LICENSES-OF-PARTS")] = "hardpack/LICENSES-OF-PARTS"
        for name in ["LICENSE-MIT", "LICENSE-APACHE"]:
            include[str(workspace / name)] = f"hardpack/{name}"
        native = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        platform = os.environ.get(PLATFORM_VARIABLE) or native
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"

    def build(self, workspace: Path) -> Path:
        """Runs cargo, and returns the directory with the results."""
        cargo = os.environ.get("CARGO", "cargo")
        if shutil.which(cargo) is None:
            raise OSError("building Hardpack needs Rust, see https://rustup.rs")
        subprocess.run([cargo, "build", "--release", "--locked"], cwd=workspace, check=True)
        command = [cargo, "metadata", "--format-version", "1", "--no-deps", "--locked"]
        metadata = subprocess.run(command, cwd=workspace, check=True, stdout=subprocess.PIPE)
        return Path(json.loads(metadata.stdout)["target_directory"]) / "release"


def strip(made: Path, stripped: Path) -> Path:
    """Copies a file without the tables that only a debugger needs."""
    stripped.parent.mkdir(exist_ok=True)
    shutil.copy2(made, stripped)
    if shutil.which("strip") is not None:
        subprocess.run(["strip", "--strip-debug", str(stripped)], check=True)
    return stripped
