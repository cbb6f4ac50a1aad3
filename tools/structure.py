"""Show how the modules of labctl import each other, for whoever moves code between them."""

import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import cache

import grimp

MOST_IMPORTS = 16
"""Most modules of labctl that one of them may import: who reads it has to know them all."""


TABLES = ("labctl.collect.table", "labctl.host.doctor", "labctl.workloads.registry")
"""Tables of all things of a kind: who reads one need not know what its rows import, so that modules
of its own package don't count."""


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Return for each module of labctl the modules of labctl that it imports."""
    graph = grimp.build_graph("labctl", cache_dir=None)
    return {
        module: frozenset(graph.find_modules_directly_imported_by(module))
        for module in sorted(graph.modules)
    }


def importers() -> Mapping[str, frozenset[str]]:
    """Return for each module of labctl the modules of labctl that import it."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, imported in imports().items():
        for each in imported:
            found[each].add(module)
    return {module: frozenset(found[module]) for module in imports()}


def many_imports() -> Mapping[str, int]:
    """Return each module that imports more than MOST_IMPORTS others, with their number."""
    counted = {
        module: [each for each in imported if not (module in TABLES and _are_rows(module, each))]
        for module, imported in imports().items()
    }
    return {
        module: len(imported)
        for module, imported in counted.items()
        if len(imported) > MOST_IMPORTS
    }


def one_importer() -> Mapping[str, str]:
    """Return each module that only one module imports, from the same folder, with that one."""
    return {
        module: only
        for module, by in importers().items()
        if len(by) == 1 and _folder(only := next(iter(by))) == _folder(module)
    }


def same_names() -> Mapping[str, tuple[str, ...]]:
    """Return each name that several files use, with their modules. A command's file in `cli` has
    the command's name, and a package is no file: neither counts."""
    found: dict[str, list[str]] = defaultdict(list)
    packages = {_folder(module) for module in imports()}
    for module in imports():
        if module not in packages and _folder(module) != "labctl.cli":
            found[module.rpartition(".")[2]].append(module)
    return {stem: tuple(modules) for stem, modules in sorted(found.items()) if len(modules) > 1}


def _are_rows(table: str, module: str) -> bool:
    package = table if table == "labctl.host.doctor" else _folder(table)
    return module.startswith(f"{package}.")


def _folder(module: str) -> str:
    return module.rpartition(".")[0]


def main() -> None:
    """Print what a maintainer looks at before folding or splitting a file."""
    out = sys.stdout
    out.write(f"More than {MOST_IMPORTS} imports of labctl:\n")
    for module, number in sorted(many_imports().items(), key=lambda row: -row[1]):
        out.write(f"  {number:3} {module}\n")
    out.write("Imported by one module of the same folder:\n")
    for module, only in one_importer().items():
        out.write(f"  {module} by {only.rpartition('.')[2]}\n")
    out.write("One name for several files:\n")
    for stem, modules in same_names().items():
        out.write(f"  {stem}: {', '.join(modules)}\n")


if __name__ == "__main__":
    main()
