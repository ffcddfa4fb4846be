// SPDX-License-Identifier: Apache-2.0
#include "weak/source.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace weak {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = KVSHM_CPP;  // the folder cpp/

std::vector<std::string> lines_of(const fs::path& file) {
  std::ifstream in(file);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

bool is_comment(const std::string& line) {
  const auto at = line.find_first_not_of(' ');
  return at != std::string::npos && line.compare(at, 2, "//") == 0;
}

bool has_mark(const std::string& line, const std::string& mark) {
  if (!is_comment(line)) return false;
  for (auto at = line.find(mark); at != std::string::npos; at = line.find(mark, at + 1)) {
    const auto end = at + mark.size();
    if (end == line.size() || !std::isdigit(static_cast<unsigned char>(line[end]))) return true;
  }
  return false;
}

// The statement that begins on line `first` (from 0), or its head where a block opens.
Lines statement(const std::string& file, const std::vector<std::string>& text, std::size_t first) {
  while (first < text.size() &&
         (is_comment(text[first]) || text[first].find("KVSHM_STEP") != std::string::npos))
    first++;
  std::size_t last = first;
  while (last + 1 < text.size() && !text[last].ends_with(";") && !text[last].ends_with("{")) last++;
  return {"/cpp/" + file, unsigned(first + 1), unsigned(last + 1)};
}

}  // namespace

std::vector<Lines> find_lines(const std::string& what) {
  std::vector<Lines> found;
  if (const auto both = what.find(" & "); both != std::string::npos) {
    found = find_lines(what.substr(0, both));
    const auto more = find_lines(what.substr(both + 3));
    if (found.empty() || more.empty()) return {};
    found.insert(found.end(), more.begin(), more.end());
    return found;
  }
  if (what.starts_with("M:")) {
    for (const char* folder : {"arena", "blocks", "evict", "index"})
      for (const auto& entry : fs::directory_iterator(kRoot / folder)) {
        const auto text = lines_of(entry.path());
        const std::string file = fs::relative(entry.path(), kRoot).string();
        for (std::size_t i = 0; i < text.size(); i++)
          if (has_mark(text[i], what)) found.push_back(statement(file, text, i + 1));
      }
    return found;
  }
  const auto colon = what.find(": ");
  const std::string file = what.substr(0, colon), wanted = what.substr(colon + 2);
  const auto text = lines_of(kRoot / file);
  for (std::size_t i = 0; i < text.size(); i++)
    if (text[i].find(wanted) != std::string::npos) found.push_back(statement(file, text, i));
  return found;
}

}  // namespace weak
