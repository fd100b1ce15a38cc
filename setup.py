"""Packaging of fastget. `kernels/` stands at the top level and is imported as `fastget.kernels`."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = "0.3.0"
LINUX = 'platform_system == "Linux" and (platform_machine == "x86_64" or platform_machine == "aarch64")'

ONNX = ["onnx>=1.17", "onnxruntime>=1.20", "onnxscript>=0.3"]
TIMM = ["timm>=1.0.12"]  # whose models tell `head_hidden_size`
SLURM = ["submitit>=1.5"]
REPORT = ["umap-learn>=0.5.7"]  # a figure as in the paper; half a minute to compile, so that it is no requirement
DOCS = ["mkdocs-material>=9.6"]  # `make docs`
TEST = [
    *SLURM,
    *TIMM,
    *DOCS,
    "hypothesis>=6.100",
    "lightning>=2.5",  # docs/loop.md runs in it
    "mypy>=1.13",
    "nbformat>=5.10",
    "pytest>=8",
    "pytest-benchmark>=5",
    "pytest-cov>=5",
    "pytest-xdist>=3.6",
    "ruff==0.17.4",
    "types-PyYAML",
]

setup(
    name="fastget",
    version=VERSION,
    description="GeT domain adaptation of image classifiers: DALI loaders, mixed precision, fused Triton kernels.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    packages=find_packages(include=["fastget", "fastget.*"]),  # `fastget/kernels` is a link to `kernels/`
    package_dir={"fastget": "fastget", "fastget.kernels": "kernels"},
    package_data={"fastget": ["py.typed", "METHOD.md", "report/page.*", "studies/tables/*"]},
    install_requires=[
        "torch>=2.10",
        "torchvision>=0.25",
        f"triton>=3.6; {LINUX}",  # the oldest that the kernels were compiled with
        f"nvidia-dali-cuda130>=1.50; {LINUX}",
        "filelock>=3.20",  # one writer in a run's folder; torch needs it too
        "jinja2>=3.1",  # the report's page; torch needs it too
        "numpy>=1.26",
        "pillow>=10.1",
        "platformdirs>=4",
        "pyyaml>=6",
        "rich>=13",
        "safetensors>=0.4.3",  # stored features
        "simplejpeg>=1.8",  # raises for what libjpeg only warns of, and needs no torch; torchvision's decoder will go
        "tensorboard>=2.16",
        "scikit-learn>=1.4",  # the real digits of the embedded data set
        "matplotlib>=3.8",  # the fonts of the embedded data set, and the plots
    ],
    extras_require={
        "docs": DOCS,
        "onnx": ONNX,
        "report": REPORT,
        "slurm": SLURM,
        "timm": TIMM,
        "test": TEST,
        "dev": [*TEST, "pre-commit>=3.7"],
    },
    entry_points={"console_scripts": ["fastget = fastget.commands.main:main"]},
    classifiers=[
        "License :: OSI Approved :: MIT License",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
