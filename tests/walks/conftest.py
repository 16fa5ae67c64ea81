import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE.parent / "collective", HERE):
    sys.path.insert(0, str(folder))  # processes whose walk is recorded import what is there by the same names
