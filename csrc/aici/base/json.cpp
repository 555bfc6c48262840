#include "aici/base/json.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "aici/base/limits.h"

namespace weft::aici {
namespace {

using Library = nlohmann::json;

constexpr std::size_t kMaxDepth = 16;
constexpr int kMaxValues = 16384;

// The handler of the JSON parser. Each callback appends to the innermost open object or array.
class Builder final : public nlohmann::json_sax<Library> {
 public:
  Builder(std::string_view text, const char *what) : text_(text), what_(what) {}

  JsonValue take() { return std::move(root_); }

  bool null() override { return put(JsonValue::kNull); }
  bool boolean(bool value) override { return put(JsonValue::kBool, value); }
  bool number_integer(std::int64_t value) override { return put_number(static_cast<double>(value)); }
  bool number_unsigned(std::uint64_t value) override { return put_number(static_cast<double>(value)); }
  bool number_float(double value, const std::string &) override { return put_number(value); }
  bool string(std::string &value) override {
    add(JsonValue::kString).text = std::move(value);
    return true;
  }
  bool binary(Library::binary_t &) override { return false; }  // only formats other than JSON have it

  bool start_object(std::size_t) override { return open(JsonValue::kObject); }
  bool start_array(std::size_t) override { return open(JsonValue::kNumbers); }
  bool key(std::string &name) override {
    open_.back()->keys.push_back(std::move(name));
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string &, const Library::exception &error) override {
    if (dynamic_cast<const Library::out_of_range *>(&error)) fail("has a number that can't be read", position);
    if (is_whole_) fail("goes on after its end", position);
    fail(position > text_.size() ? "ends too early" : "has an unexpected character", position);
  }

  [[noreturn]] void fail(const char *problem) const {
    throw ProgramError(std::string(what_) + " is not JSON that can be read: it " + problem);
  }
  // `position` is the number of bytes read; the last one is the wrong byte.
  [[noreturn]] void fail(const std::string &problem, std::size_t position) const {
    fail((problem + " at byte " + std::to_string(position > 0 ? position - 1 : 0)).c_str());
  }

 private:
  // Appends a new value to the open object or array, or makes it the root.
  JsonValue &add(JsonValue::Kind kind) {
    if (++num_values_ > kMaxValues) fail("has too many values");
    JsonValue *added = &root_;
    if (!open_.empty()) {
      JsonValue &parent = *open_.back();
      if (!parent.numbers.empty()) fail("mixes numbers with other values");
      if (parent.kind == JsonValue::kNumbers) parent.kind = JsonValue::kArray;
      added = &parent.items.emplace_back();
    }
    added->kind = kind;
    is_whole_ = open_.empty();
    return *added;
  }

  bool put(JsonValue::Kind kind, double number = 0) {
    add(kind).number = number;
    return true;
  }

  bool put_number(double number) {
    if (open_.empty() || open_.back()->kind == JsonValue::kObject) return put(JsonValue::kNumber, number);
    if (open_.back()->kind == JsonValue::kArray) fail("mixes numbers with other values");
    open_.back()->numbers.push_back(number);
    return true;
  }

  bool open(JsonValue::Kind kind) {
    if (open_.size() > kMaxDepth) fail("nests too deep");
    open_.push_back(&add(kind));
    is_whole_ = false;
    return true;
  }

  bool close() {
    open_.pop_back();
    is_whole_ = open_.empty();
    return true;
  }

  std::string_view text_;
  const char *what_;
  JsonValue root_;
  std::vector<JsonValue *> open_;  // enclosing objects and arrays; a parent's `items` don't grow while a child is open
  int num_values_ = 0;
  bool is_whole_ = false;
};

}  // namespace

const JsonValue *JsonValue::find(std::string_view key) const {
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i] == key) return items[i].kind == kNull ? nullptr : &items[i];
  return nullptr;
}

JsonValue parse_json(std::string_view text, const char *what) {
  Builder builder(text, what);
  // Refuse a NUL here, because the library would take it for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != text.npos) builder.fail("has an unexpected character", nul + 1);
  Library::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace weft::aici
