// Parses small untrusted JSON texts with nlohmann-json, bounded in depth and size. Python-free.
//
// The library's own values allocate memory in their destructors, which would end the process when memory is short. So
// the parser builds plain values instead.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::aici {

struct JsonValue {
  enum Kind { kNull, kBool, kNumber, kString, kNumbers, kArray, kObject };
  Kind kind = kNull;
  double number = 0;  // a bool is 0 or 1
  std::string text;
  std::vector<double> numbers;  // kNumbers: an array of numbers only, or an empty array
  std::vector<std::string> keys;
  std::vector<JsonValue> items;  // an array's items, or the values of an object's `keys`

  // Returns the object's member `key`, or null if there is none or the member is JSON's null.
  const JsonValue *find(std::string_view key) const;
};

// Throws ProgramError, with a text that begins with `what`, if the text is not JSON, nests more than 17 brackets, or
// has more than 16384 values, not counting numbers in arrays. An array that mixes numbers with other values is refused,
// too.
JsonValue parse_json(std::string_view text, const char *what);

}  // namespace weft::aici
