"""CMake files that ask for the toolkit."""

from __future__ import annotations

from tests.rewrite.readers.moved import rules

TEXT = """\
project(detector LANGUAGES CXX CUDA)
# find_package(CUDA)
#[[ enable_language(CUDA) ]]
find_package(CUDA REQUIRED)
target_link_libraries(a CUDA::cudart)
target_link_libraries(b CUDA::cudart)
"""


def test_each_way_of_asking_is_reported_once() -> None:
    assert rules("CMakeLists.txt", TEXT) == [
        ("JM180", "report", "project(detector LANGUAGES CXX CUDA"),
        ("JM180", "report", "find_package(CUDA"),
        ("JM180", "report", "CUDA::cudart"),
    ]


def test_a_plain_build_is_none_of_our_business() -> None:
    assert rules("CMakeLists.txt", "project(a CXX)\nfind_package(OpenCV REQUIRED)\n") == []
