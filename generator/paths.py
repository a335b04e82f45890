"""Where templates, headers and configs lie: beside this package in a checkout, inside ``flashgen`` in a wheel."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "templates"
INCLUDE = TEMPLATES / "include"
CONFIGS = ROOT / "configs"
