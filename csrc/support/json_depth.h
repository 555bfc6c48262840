// The nesting depth of JSON text, to be checked before a recursive parser reads it. Python-free.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace weft {

// Returns the largest number of open brackets, without those in strings. For text that is not JSON the result has no
// meaning.
inline std::size_t json_depth(std::string_view text) {
  std::size_t depth = 0, deepest = 0;
  bool is_text = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char byte = text[i];
    if (is_text) {
      if (byte == '\\') ++i;
      is_text = byte != '"';
    } else if (byte == '"') {
      is_text = true;
    } else if (byte == '[' || byte == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((byte == ']' || byte == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace weft
