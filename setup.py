"""The compiled part of the package; everything else stands in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        # Plain C, loaded with ctypes by baton_kernels/native.py. Optional: without a compiler the torch twins serve.
        Extension(
            "baton_kernels._cpu_layers",
            ["kernels/baton_kernels/cpu_layers.c"],
            extra_compile_args=[
                "-O3",
                "-fno-wrapv",  # Python asks for -fwrapv, which keeps index arithmetic from being vectorised: 4x slower
                "-fno-math-errno",
                "-fno-trapping-math",
                "-ffinite-math-only",  # lets maxima be vectorised; NaN is looked for in the bits where it matters
                "-fno-signed-zeros",
                "-fopenmp",
                "-mprefer-vector-width=512",
            ],
            optional=True,
        )
    ]
)
