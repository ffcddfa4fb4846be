# SPDX-License-Identifier: Apache-2.0
"""The compiled half; kvshm says where its headers and .pxd files lie."""
from Cython.Build import cythonize
from kvshm import paths
from setuptools import Extension, setup

setup(ext_modules=cythonize([Extension(
    "kv_policy_example.heads", ["src/kv_policy_example/heads.pyx"], language="c++",
    include_dirs=[paths.include_dir()])]))
