"""The compiled half: a setup.py, because the include folder has to be asked for."""
from Cython.Build import cythonize
from kvshm import paths
from setuptools import Extension, setup

setup(ext_modules=cythonize([Extension(
    "kv_policies.heads", ["src/kv_policies/heads.pyx"], language="c++",
    include_dirs=[paths.include_dir()])]))
