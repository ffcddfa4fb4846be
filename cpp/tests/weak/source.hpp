// SPDX-License-Identifier: Apache-2.0
// Places of the core's sources, by mark or by text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace weak {

struct Lines {
  std::string file;  // "/cpp/blocks/close.cpp"; compared while Relacy's allocator is in force
  unsigned first, last;
  bool has(std::string_view path, unsigned line) const {
    return line >= first && line <= last && path.ends_with(file);
  }
};

// "M:fill.13": every statement under that mark; "FILE: TEXT": the lines that have the text,
// each with the rest of its statement; "A & B": both.
std::vector<Lines> find_lines(const std::string& what);

}  // namespace weak
