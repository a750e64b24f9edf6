#!/usr/bin/env python3
"""Writes the components of a release as CycloneDX 1.5 in JSON: every crate that is part of the command or the libraries,
with its licence, its checksum and what it needs. Crates that only tests need are left out. Also collects the licences
of these crates, which ask for nothing but to be passed on.

usage: components.py VERSION SBOM LICENCES
A crate named *-sys that brings a C library along has its version in its own, as in 2.0.16+zstd.1.5.7.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKED = ["hardpack-cli", "hardpack-sqlite", "hardpack-preload"]
TARGETS = [
    f"{processor}-unknown-linux-{library}" for processor in ["aarch64", "x86_64"] for library in ["gnu", "musl"]
]


def metadata():
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    for target in TARGETS:
        command += ["--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def checksums():
    """Returns the SHA-256 of each crate's package, from Cargo.lock."""
    found, name, version = {}, None, None
    for line in (ROOT / "Cargo.lock").read_text().splitlines():
        key, _, value = line.partition(" = ")
        value = value.strip('"')
        if key == "name":
            name = value
        elif key == "version":
            version = value
        elif key == "checksum":
            found[name, version] = value
    return found


def licences(packages):
    """Returns the texts of all licences, each once, with the crates that have it."""
    crates = {}
    for package in packages:
        folder = pathlib.Path(package["manifest_path"]).parent
        texts = {
            path.read_text(errors="replace").strip()
            for pattern in ["*", "*/*", "*/*/*", "*/*/*/*"]
            for path in folder.glob(pattern)
            if path.is_file() and path.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"))
        }
        for text in texts:
            crates.setdefault(text, []).append(f"{package['name']} {package['version']}")
    parts = [f"{', '.join(sorted(names))}\n\n{text}\n" for text, names in crates.items()]
    return ("\n" + "-" * 80 + "\n\n").join(sorted(parts))


def main():
    version, out, notices = sys.argv[1:]
    data = metadata()
    packages = {package["id"]: package for package in data["packages"]}
    needs = {
        node["id"]: sorted(
            dep["pkg"] for dep in node["deps"] if any(kind["kind"] != "dev" for kind in dep["dep_kinds"])
        )
        for node in data["resolve"]["nodes"]
    }
    reached = set()
    waiting = [ident for ident, package in packages.items() if package["name"] in PACKED]
    while waiting:
        ident = waiting.pop()
        if ident not in reached:
            reached.add(ident)
            waiting += needs[ident]

    def reference(ident):
        package = packages[ident]
        return f"pkg:cargo/{package['name']}@{package['version']}"

    others = [packages[ident] for ident in reached if packages[ident]["source"]]
    pathlib.Path(notices).write_text(licences(others))

    sums = checksums()
    components = []
    for ident in sorted(reached, key=reference):
        package = packages[ident]
        component = {
            "type": "library",
            "bom-ref": reference(ident),
            "name": package["name"],
            "version": package["version"],
            "scope": "required",
            "purl": reference(ident),
        }
        if package["description"]:
            component["description"] = " ".join(package["description"].split())
        if package["license"]:
            # Older crates write a slash for "or".
            component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if (package["name"], package["version"]) in sums:
            component["hashes"] = [{"alg": "SHA-256", "content": sums[package["name"], package["version"]]}]
        if package["repository"]:
            component["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        components.append(component)

    main_reference = f"pkg:generic/hardpack@{version}"
    graph = [{"ref": main_reference, "dependsOn": [reference(i) for i in sorted(reached, key=reference)
                                                   if packages[i]["name"] in PACKED]}]
    graph += [{"ref": reference(i), "dependsOn": sorted({reference(need) for need in needs[i]})}
              for i in sorted(reached, key=reference)]
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
    text = json.dumps([components, graph], sort_keys=True)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, text + moment)}",
        "version": 1,
        "metadata": {
            "timestamp": moment,
            "component": {
                "type": "application",
                "bom-ref": main_reference,
                "name": "hardpack",
                "version": version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
            },
        },
        "components": components,
        "dependencies": graph,
    }
    pathlib.Path(out).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


main()
