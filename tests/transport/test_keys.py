"""Secret files: root keys, keys by role, two at once, and who may read them."""

import logging
import os

import pytest
from typer.testing import CliRunner

from gradtide.cli.app import app
from gradtide.errors import ConfigError
from gradtide.transport.keys import Key, derive_key_file, make_secret_file, read_credentials

pytestmark = pytest.mark.quick


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.delenv("GRADTIDE_SECRET_FILE", raising=False)
    make_secret_file(tmp_path / "root")
    return tmp_path / "root"


def test_a_secret_file_is_made_once_and_for_its_owner_alone(root):
    assert root.stat().st_mode & 0o777 == 0o600
    (key,) = read_credentials(root).keys
    assert key.is_root
    assert len(key.secret) == 32
    assert key.secret.hex() not in repr(key)
    with pytest.raises(ConfigError, match="File exists"):
        make_secret_file(root)


def test_32_bytes_as_secret_files_were_before_are_a_root_key(tmp_path):
    path = tmp_path / "raw"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    assert read_credentials(path).keys == (Key(path.read_bytes()),)


@pytest.mark.parametrize("content", [b"", os.urandom(31), b"gradtide-key root - 00\n", b"x" * 5000])
def test_what_holds_no_key_is_refused(content, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="must hold one key or two; make one: gradtide secret PATH"):
        read_credentials(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_credentials(tmp_path / "nothing")


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o620, 0o660, 0o644])
def test_a_file_that_others_can_read_or_that_a_group_can_write_is_refused(root, mode):
    root.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_credentials(root)


@pytest.mark.parametrize("mode", [0o440, 0o640])
def test_a_file_that_a_group_can_read_as_kubernetes_mounts_it_is_taken_with_a_warning(root, mode, caplog):
    root.chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert read_credentials(root).keys
    assert f"can be read by group {root.stat().st_gid}" in caplog.text


def test_the_environment_says_where_the_file_is_unless_the_caller_does(root, monkeypatch, tmp_path):
    assert read_credentials(None).keys == ()
    monkeypatch.setenv("GRADTIDE_SECRET_FILE", str(root))
    assert read_credentials(None).keys == read_credentials(root).keys
    make_secret_file(tmp_path / "other")
    assert read_credentials(tmp_path / "other").keys != read_credentials(root).keys


def test_a_derived_key_is_the_same_every_time_and_another_for_every_role_and_name(root, tmp_path):
    wanted = [("worker", ""), ("worker", "w3"), ("worker", "w4"), ("operator", ""), ("operator", "w3")]
    for i, (role, name) in enumerate([*wanted, *wanted]):
        derive_key_file(root, tmp_path / str(i), role, name)
    keys = [read_credentials(tmp_path / str(i)).keys[0] for i in range(10)]
    assert keys[:5] == keys[5:]
    assert [(key.role, key.name) for key in keys[:5]] == wanted
    assert len({key.secret for key in (*keys, *read_credentials(root).keys)}) == 6


def test_keys_are_derived_as_they_always_were():
    """Else a key that lies on some machine would be worth nothing after an update."""
    found = Key(bytes(range(32))).derive("worker", "w3").hex()
    assert found == "42ed366c5f1e0e751ea4a9658c72320da7eb4f5f9cdf38f5a67231b463663c11"


def test_no_key_follows_from_one_that_is_derived(root, tmp_path):
    derive_key_file(root, tmp_path / "w3", "worker", "w3")
    with pytest.raises(ConfigError, match="no other key follows from that of worker w3"):
        derive_key_file(tmp_path / "w3", tmp_path / "w4", "worker", "w4")
    for role, name, match in (
        ("server", "", "no keys for the role"),
        ("worker", "a b", "no name"),
        ("worker", "-", "no name"),
    ):
        with pytest.raises(ConfigError, match=match):
            derive_key_file(root, tmp_path / "x", role, name)


def test_two_files_joined_are_both_secrets_and_so_is_what_is_derived_from_them(root, tmp_path):
    make_secret_file(tmp_path / "new")
    both = tmp_path / "both"
    both.write_bytes((tmp_path / "new").read_bytes() + root.read_bytes())
    both.chmod(0o600)
    keys = read_credentials(both).keys
    assert keys == (*read_credentials(tmp_path / "new").keys, *read_credentials(root).keys)
    derive_key_file(both, tmp_path / "w3", "worker", "w3")
    assert [key.secret for key in read_credentials(tmp_path / "w3").keys] == [
        key.derive("worker", "w3") for key in keys
    ]
    both.write_bytes((tmp_path / "new").read_bytes() + (tmp_path / "w3").read_bytes().splitlines()[0])
    with pytest.raises(ConfigError, match="holds the keys of root and of worker w3"):
        read_credentials(both)


def test_the_command_line_makes_and_derives_them(root, tmp_path):
    runner = CliRunner()
    derive = ["derive", str(tmp_path / "w.key"), "--role", "worker", "--name", "w3", "--secret-file", str(root)]
    for arguments in ([str(tmp_path / "a.secret")], ["make", str(tmp_path / "b.secret")], derive):
        done = runner.invoke(app, ["secret", *arguments])
        assert done.exit_code == 0, done.output
        assert "written: " in done.output
    assert read_credentials(tmp_path / "a.secret").keys != read_credentials(tmp_path / "b.secret").keys
    assert str(read_credentials(tmp_path / "w.key").keys[0]) == "worker w3"


def test_an_insecure_network_is_said_loudly(root, caplog):
    with caplog.at_level(logging.WARNING):
        assert read_credentials(root, insecure_network=True).insecure_network
    assert "nothing that goes to other machines is encrypted; whoever is on the way can read tensors" in caplog.text
