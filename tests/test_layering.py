"""Who may import whom: the table of layers in docs/architecture.md. No circle of imports."""

import re

from tests.imports import FILES, ROOT, imports_of

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| *\d+ *\| *`(\w+)` *\|[^|]*\|([^|]*)\|$", re.MULTILINE)

LAYERS = {module: re.findall(r"`(\w+)`", names) for module, names in ROW.findall(PAGE)}
"""What a module or package of mxmp imports, of mxmp and MXNet: the page's table, in its order."""


def part(module):
    """Return what the table calls the part of mxmp that a file belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def imported_by(name):
    """Return what all files of a part import of the other parts and of MXNet, for type checkers too."""
    found = set().union(*(imports_of(module, types=True) for module in FILES if part(module) == name))
    parts = {part(module) for module in found if module in FILES} - {name}
    return parts | ({"mxnet"} & found)


def test_each_part_has_a_row_which_lists_exactly_what_it_imports():
    rows = {name: sorted(imported_by(name)) for name in set(map(part, FILES))}
    assert {name: sorted(names) for name, names in LAYERS.items()} == rows, "change docs/architecture.md too"


def test_each_row_imports_from_rows_above_it():
    above = ["mxnet"]
    for name, imported in LAYERS.items():
        assert not set(imported) - set(above), name
        above.append(name)


def test_layers_are_numbered_in_order_and_3_and_4_import_mxnet():
    numbers = [int(number) for number in re.findall(r"^\| *(\d+) *\|", PAGE, re.MULTILINE)]
    assert numbers == sorted(numbers) and len(numbers) == len(LAYERS)
    assert {number for number, names in zip(numbers, LAYERS.values()) if "mxnet" in names} == {3, 4}


def test_mxmp_does_not_import_the_networks():
    assert not [module for module in FILES if "symbols" in imports_of(module, types=True)]


def test_no_files_import_one_another_in_a_circle():
    """Inside a package neither: those that import none of the others are taken away until none is left."""
    left = {module: imports_of(module) & set(FILES) for module in FILES}
    while any(not names & left.keys() for names in left.values()):
        left = {module: names & left.keys() for module, names in left.items() if names & left.keys()}
    assert not left
