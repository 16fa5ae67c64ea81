"""`gradtide --install-completion bash`: for a shell by its name. Without one, typer looks which shell we are in."""

from gradtide.errors import ConfigError

__all__ = ["SHELLS", "install_completion"]

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


def install_completion(shell: str) -> None:
    """Writes it into the user's home, and says where."""
    if shell not in SHELLS:
        raise ConfigError(f"--install-completion {shell}: there is none for that shell; known are {', '.join(SHELLS)}")
    from typer.completion import install  # type: ignore[attr-defined]

    _, path = install(shell, "gradtide")
    print(f"{shell} completion is installed in {path}; it takes effect in the next shell that you start")
