// Reads small JSON texts that strangers wrote, with nlohmann-json: bounded in depth and in size. The values are weft's
// own, because the library's allocate where they are destroyed, which ends the process when there is no memory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct JsonValue {
  enum Kind { kNull, kBool, kNumber, kString, kNumbers, kArray, kObject };
  Kind kind = kNull;
  double number = 0;  // 0 or 1 of a bool
  std::string text;
  std::vector<double> numbers;  // of an array that has nothing else, or is empty
  std::vector<std::string> keys;
  std::vector<JsonValue> items;  // of an array, or of an object beside `keys`

  // The member `key` of an object, or null; a member that is null counts as none.
  const JsonValue *find(std::string_view key) const;
};

// Throws WasmError, which begins with `what`, for a text that is not JSON, nests deeper than 16, or has more than 16384
// values beside the numbers of arrays. An array has numbers alone, or none.
JsonValue parse_json(std::string_view text, const char *what);

}  // namespace weft
