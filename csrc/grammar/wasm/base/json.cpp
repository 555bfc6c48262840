#include "grammar/wasm/base/json.h"

#include <charconv>
#include <cstdint>
#include <cstdio>

#include "grammar/wasm/base/error.h"

namespace weft {
namespace {

constexpr int kMaxDepth = 16, kMaxValues = 16384;

class Parser {
 public:
  Parser(std::string_view text, const char *what) : text_(text), what_(what) {}

  JsonValue whole() {
    JsonValue found = value(0);
    space();
    if (at_ != text_.size()) fail("goes on behind its end");
    return found;
  }

 private:
  [[noreturn]] void fail(const char *problem) const {
    throw WasmError(std::string(what_) + " is not JSON that can be read: it " + problem + " at byte " +
                    std::to_string(at_));
  }

  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  char peek() {
    space();
    if (at_ == text_.size()) fail("ends too early");
    return text_[at_];
  }
  void expect(char wanted) {
    if (peek() != wanted) fail("has an unexpected character");
    ++at_;
  }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  JsonValue value(int depth) {
    if (depth > kMaxDepth) fail("nests too deep");
    if (++num_values_ > kMaxValues) fail("has too many values");
    JsonValue found;
    switch (peek()) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        found.kind = JsonValue::kString;
        found.text = string();
        return found;
      case 'n':
        word("null");
        return found;
      case 't':
        word("true");
        found.kind = JsonValue::kBool;
        found.number = 1;
        return found;
      case 'f':
        word("false");
        found.kind = JsonValue::kBool;
        return found;
      default:
        found.kind = JsonValue::kNumber;
        found.number = number();
        return found;
    }
  }

  void word(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) fail("has an unknown word");
    at_ += wanted.size();
  }

  double number() {
    double found = 0;
    const char *begin = text_.data() + at_, *end = text_.data() + text_.size();
    // What from_chars takes and JSON has not: inf, nan, hexadecimal (not in this mode).
    if (*begin != '-' && (*begin < '0' || *begin > '9')) fail("has an unexpected character");
    const auto [stop, problem] = std::from_chars(begin, end, found);
    if (problem != std::errc() || found != found || found - found != 0) fail("has a number that can't be read");
    at_ += static_cast<std::size_t>(stop - begin);
    return found;
  }

  JsonValue array(int depth) {
    JsonValue found;
    found.kind = JsonValue::kNumbers;
    expect('[');
    if (take(']')) return found;
    do {
      const char next = peek();
      if (found.kind == JsonValue::kNumbers && (next == '-' || (next >= '0' && next <= '9'))) {
        found.numbers.push_back(number());
        continue;
      }
      if (!found.numbers.empty()) fail("mixes numbers with other values");
      found.kind = JsonValue::kArray;
      found.items.push_back(value(depth + 1));
    } while (take(','));
    expect(']');
    return found;
  }

  JsonValue object(int depth) {
    JsonValue found;
    found.kind = JsonValue::kObject;
    expect('{');
    if (take('}')) return found;
    do {
      if (peek() != '"') fail("has a member without a name");
      found.keys.push_back(string());
      expect(':');
      found.items.push_back(value(depth + 1));
    } while (take(','));
    expect('}');
    return found;
  }

  unsigned hex4() {
    unsigned found = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("has a broken escape");
      found = found * 16 + static_cast<unsigned>(digit);
    }
    return found;
  }

  void append_utf8(std::string &out, std::uint32_t c) {
    if (c < 0x80) {
      out += static_cast<char>(c);
      return;
    }
    if (c < 0x800) {
      out += static_cast<char>(0xC0 | c >> 6);
    } else {
      if (c < 0x10000) {
        out += static_cast<char>(0xE0 | c >> 12);
      } else {
        out += static_cast<char>(0xF0 | c >> 18);
        out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
      }
      out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    }
    out += static_cast<char>(0x80 | (c & 0x3F));
  }

  std::string string() {
    std::string out;
    for (++at_; at_ < text_.size() && text_[at_] != '"';) {
      const char c = text_[at_++];
      if (c != '\\') {
        out += c;
        continue;
      }
      const char escape = at_ < text_.size() ? text_[at_++] : '\0';
      static constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
      if (const std::size_t i = kEscapes.find(escape); escape != '\0' && i != kEscapes.npos) {
        out += kMeant[i];
      } else if (escape == 'u') {
        std::uint32_t code = hex4();
        if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
          at_ += 2;
          const std::uint32_t low = hex4();
          if (low < 0xDC00 || low > 0xDFFF) fail("has a broken escape");
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        append_utf8(out, code);
      } else {
        fail("has a broken escape");
      }
    }
    if (at_ == text_.size()) fail("ends too early");
    ++at_;
    return out;
  }

  std::string_view text_;
  const char *what_;
  std::size_t at_ = 0;
  int num_values_ = 0;
};

}  // namespace

const JsonValue *JsonValue::find(std::string_view key) const {
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i] == key) return items[i].kind == kNull ? nullptr : &items[i];
  return nullptr;
}

JsonValue parse_json(std::string_view text, const char *what) { return Parser(text, what).whole(); }

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace weft
