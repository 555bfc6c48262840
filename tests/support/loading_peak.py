"""A program that loads a model, and prints the peak of memory that this took."""

PEAK = """
import sys
from pathlib import Path
from weft.config import package_model_path
from weft.models.loading import load_model

def field(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024

load_model(package_model_path())  # the libraries' own memory
Path("/proc/self/clear_refs").write_text("5")  # the peak from now on
before = field("VmRSS")
model = load_model(sys.argv[1])
print(field("VmHWM") - before)
"""
