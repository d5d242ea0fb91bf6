"""Packages of the wheel. pyproject.toml cannot add the folder `recipes`, as `lightning_fire.recipes`, to a pattern."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["lightning_fire*"]), "lightning_fire.recipes"],
    package_dir={"lightning_fire.recipes": "recipes"},
)
