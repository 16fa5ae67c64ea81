# Sourced by the other scripts: makes .venv once, installs the package into it, and says in one line what is missing.
# Usage: setup EXTRAS [TORCH]   (EXTRAS: "" or "[dev]"); leaves $bin pointing at the environment's programs.
# With a version of torch it is .venv-torch-VERSION, and the other packages are those of constraints.txt.

say_and_stop() { echo "gradtide: $*" >&2; exit 2; }

setup() {
  local extras="$1" torch="${2:-}" python="${PYTHON:-python3}" venv pins stamp log installed
  command -v "$python" >/dev/null 2>&1 || say_and_stop "no $python found; install Python 3.11 or newer, or set PYTHON=/path/to/python"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    say_and_stop "$python is $("$python" --version 2>&1); gradtide needs 3.11 or newer: set PYTHON=/path/to/python3.11"
  venv="$root/.venv${torch:+-torch-$torch}"
  bin="$venv/bin"
  # What was installed from what: a change of these files or of the folder installs again. [dev] holds all the rest.
  stamp="$(cat "$root/pyproject.toml" "$root/constraints.txt" | cksum) $root"
  for installed in "$extras" "[dev]"; do
    [ "$(cat "$venv/installed$installed" 2>/dev/null)" = "$stamp" ] && return
  done
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    say_and_stop "$python has no venv module; on Debian or Ubuntu: apt-get install python3-venv"
  # An environment does not survive being moved or copied: its programs name the folder they were made in.
  if [ "$(cat "$venv/root" 2>/dev/null)" != "$root" ] || ! "$bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear "$venv" 2>/dev/null && echo "$root" >"$venv/root" ||
      say_and_stop "can't create $venv; is the folder writable and the disk not full?"
  fi
  echo "gradtide: installing into ${venv##*/} (once, a few minutes)" >&2
  log="$venv/install.log"
  pins="$root/constraints.txt"
  if [ -n "$torch" ]; then
    pins="$venv/constraints.txt"
    { grep -v '^torch==' "$root/constraints.txt"; echo "torch==$torch"; } >"$pins"
  fi
  "$bin/python" -m pip install --quiet --disable-pip-version-check -c "$pins" -e "$root$extras" >"$log" 2>&1 || {
    grep -E '^ERROR' "$log" | head -n 3 >&2
    say_and_stop "pip could not install; check the network or your pip index, then run this again (log: $log)"
  }
  echo "$stamp" >"$venv/installed$extras"
}
