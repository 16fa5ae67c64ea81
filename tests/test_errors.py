import inspect

import pytest

from gradtide import errors

pytestmark = pytest.mark.quick


def test_the_tree_at_the_top_of_errors_names_every_error_under_its_parent():
    assert errors.__doc__
    for name in errors.__all__:
        assert f" {name} " in errors.__doc__
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    assert sorted(c.__name__ for c in classes) == errors.__all__
    assert all(issubclass(c, errors.GradtideError) for c in classes)
