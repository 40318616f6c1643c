from __future__ import annotations

import json

import pytest

from prefixprop.optional_packages import import_optional


def test_a_missing_package_is_named_with_its_purpose_and_remedy() -> None:
    assert import_optional("json", "JSON files") is json
    with pytest.raises(ImportError, match=r"Odd files need the package no_such_package: pip install no_such_package"):
        import_optional("no_such_package.reader", "Odd files")
    with pytest.raises(ImportError, match=r"need the package no_such_package: pip install 'prefixprop\[odd\]'"):
        import_optional("no_such_package", "Odd files", extra="odd")
