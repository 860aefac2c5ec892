"""Only `__shared__` declarations and local includes change, and no line moves."""

from __future__ import annotations

import re

import pytest
from words import raises

from engine.base.errors import CompileError
from engine.cuda_on_host.rewrite import rewrite_shared, translate
from engine.cuda_source.sources import read_sources


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("__shared__ float s[64];", "COH_SHARED(1, s, [(64)], float);"),
        ("__shared__ float total;", "COH_SHARED(1, total, , float);"),
        (
            "__shared__ __align__(16) half a[BM][HD + 8], b[2];",
            "COH_SHARED(16, a, [(BM)][(HD + 8)], half); COH_SHARED(16, b, [(2)], half);",
        ),
        (
            "alignas(128) __shared__ unsigned char s[N<1, 2>::v];",
            "COH_SHARED(128, s, [(N<1, 2>::v)], unsigned char);",
        ),
        ("__shared__ const float *p[2];", "COH_SHARED(1, p, [(2)], const float *);"),
        ("__shared__ Pair<int, 4> pairs[8];", "COH_SHARED(1, pairs, [(8)], Pair<int, 4>);"),
        ("static __shared__ volatile int flag;", "COH_SHARED(1, flag, , volatile int);"),
        (
            "extern __shared__ __align__(1024) unsigned char smem[];",
            "COH_DYNAMIC_SHARED(smem, unsigned char);",
        ),
        ("__shared__ extern float smem[];", "COH_DYNAMIC_SHARED(smem, float);"),
        ("__shared__ typename T::element s[4];", "COH_SHARED(1, s, [(4)], typename T::element);"),
        (
            "__shared__ unsigned long long bars[3];",
            "COH_SHARED(1, bars, [(3)], unsigned long long);",
        ),
    ],
)
def test_shared_declarations_are_rewritten(declaration, expected):
    assert rewrite_shared(f"{{ {declaration} }}", "k.cu") == f"{{ {expected} }}"


def test_a_struct_without_a_name():
    text = "void f() {\n  __shared__ struct {\n    int a;  // {\n  } s, t[2];\n  s.a = 1;\n}\n"
    rewritten = rewrite_shared(text, "k.cu")
    assert rewritten.splitlines()[4] == "  s.a = 1;"
    kind = re.search(r"struct (coh_type_\d+) {\n    int a;  // {\n  };", rewritten)
    assert kind is not None
    assert f"COH_SHARED(1, s, , {kind[1]}); COH_SHARED(1, t, [(2)], {kind[1]});" in rewritten


def test_declarations_outside_functions():
    text = "namespace {\nextern __shared__ float smem[];\n}\nvoid f() { smem[0] = 1; }\n"
    rewritten = rewrite_shared(text, "k.cu")
    assert "COH_DYNAMIC_SHARED_AT_FILE_SCOPE(smem, float)" in rewritten
    assert '#define smem (coh_shared_smem())\n#line 2 "k.cu"\n;\n}' in rewritten
    with raises(CompileError, "shared_declared_twice", "k.cu:2: ", "smem"):
        rewrite_shared(text + "void g(float *smem) {}\n", "k.cu")


def test_lines_keep_their_numbers():
    text = "void f() {\n  __shared__\n    float a[4],\n    b[8];\n  use(a); // line 5\n}\n"
    rewritten = rewrite_shared(text, "k.cu")
    assert rewritten.splitlines()[4] == "  use(a); // line 5"
    assert rewritten.count("\n") == text.count("\n")


def test_comments_strings_and_directives_are_not_translated():
    text = (
        '// __shared__ float a[4];\n/* __shared__\n */ const char *s = "__shared__ x;";\n'
        "#pragma once\nvoid f() {\n#if 1\n  __shared__ float a[4];\n#endif\n}\n"
    )
    rewritten = rewrite_shared(text, "k.cu")
    assert rewritten == text.replace(
        "  __shared__ float a[4];", "  COH_SHARED(1, a, [(4)], float);"
    )


@pytest.mark.parametrize(
    "declaration",
    [
        "__shared__ float s[4] = {};",
        "__shared__ float (&r)[4];",
        "const __shared__ float s[4]",
        "__shared__ struct { int a; } s = {1};",
    ],
)
def test_unsupported_declarations_are_errors_with_line(declaration):
    with raises(CompileError, "shared_declaration", "k.cu:3: ") as error:
        rewrite_shared(f"void f() {{\n  int x;\n  {declaration};\n}}\n", "k.cu")
    assert declaration in error.value.log


def test_headers_beside_the_source_are_translated_once(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.cuh").write_text('#pragma once\n#include "deep/b.cuh"\nint a;\n')
    (tmp_path / "deep" / "b.cuh").write_text('#include "../a.cuh"\n__shared__ int b;\n')
    source = tmp_path / "k.cu"
    source.write_text('#include "a.cuh"\n#include <cuda_fp16.h>\n#include "absent.h"\n')
    files = {file.name: file.text for file in translate(read_sources(source))}
    assert list(files) == ["k.cu", "a.cuh", "b.cuh"]
    assert files["k.cu"].splitlines() == [
        '#line 1 "k.cu"',
        '#include "a.cuh"',
        "#include <cuda_fp16.h>",
        '#include "absent.h"',
    ]
    assert '#include "b.cuh"' in files["a.cuh"]
    assert "COH_SHARED_AT_FILE_SCOPE(1, b, , int)" in files["b.cuh"]


def test_headers_of_one_name_are_not_mixed(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "types.cuh").write_text("int outer;\n")
    (tmp_path / "deep" / "types.cuh").write_text("int inner;\n")
    source = tmp_path / "k.cu"
    source.write_text('#include "types.cuh"\n#include "deep/types.cuh"\n')
    names = [file.name for file in translate(read_sources(source))]
    assert len(set(names)) == 3


def test_missing_source(tmp_path):
    with raises(CompileError, "source_unreadable", "gone.cu"):
        read_sources(tmp_path / "gone.cu")
