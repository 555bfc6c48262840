#include "wasm_variables.h"

#include <utility>

#include "wasm_error.h"
#include "wasm_json.h"

namespace weft {
namespace {

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char c : bytes) {
    out += kDigits[static_cast<unsigned char>(c) >> 4];
    out += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  throw WasmError("a storage command has a value that is not hexadecimal");
}

std::string from_hex(std::string_view text) {
  if (text.size() % 2) throw WasmError("a storage command has a value that is not hexadecimal");
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += 2)
    out += static_cast<char>(digit_of(text[i]) * 16 + digit_of(text[i + 1]));
  return out;
}

const std::string &text_of(const JsonValue &command, const char *key) {
  const JsonValue *member = command.find(key);
  if (!member || member->kind != JsonValue::kString)
    throw WasmError(std::string("a storage command has no text ") + key);
  return member->text;
}

std::string answer(const WasmVariables::Value *value) {
  if (!value) return R"({"VariableMissing":{}})";
  return R"({"ReadVar":{"version":)" + std::to_string(value->version) + R"(,"value":")" + to_hex(*value->bytes) +
         R"("}})";
}

}  // namespace

std::string WasmVariables::command(std::string_view text, const WasmLimits &limits, Writes &writes) {
  const JsonValue parsed = parse_json(text, "a storage command");
  const JsonValue *read = parsed.find("ReadVar"), *write_var = parsed.find("WriteVar");
  if (!read && !write_var) throw WasmError("a storage command is neither ReadVar nor WriteVar");
  const JsonValue &command = read ? *read : *write_var;
  const std::string &name = text_of(command, "name");
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = values_.find(name);
  const Value *current = found == values_.end() ? nullptr : &found->second;
  if (read) return answer(current);
  if (const JsonValue *wanted = command.find("when_version_is"))
    if (!current || wanted->kind != JsonValue::kNumber || wanted->number != static_cast<double>(current->version))
      return answer(current);
  const std::string &op = text_of(command, "op");
  if (op != "Set" && op != "Append") throw WasmError("a storage command's op is neither Set nor Append");
  return write(name, from_hex(text_of(command, "value")), op == "Append", limits, writes);
}

std::string WasmVariables::write(const std::string &name, std::string value, bool append, const WasmLimits &limits,
                                 Writes &writes) {
  const auto found = values_.find(name);
  std::optional<Value> before;
  if (found != values_.end()) before = found->second;
  if (append && before) value.insert(0, *before->bytes);
  const std::size_t freed = before ? before->bytes->size() : 0, added = value.size() + (before ? 0 : name.size());
  if (!before && values_.size() >= static_cast<std::size_t>(limits.max_variables))
    throw WasmError("the program has more than " + std::to_string(limits.max_variables) +
                    " variables; raise max_variables to allow it");
  if (num_bytes_ - freed + added > static_cast<std::size_t>(limits.variable_bytes))
    throw WasmError("the request's variables have more than " + std::to_string(limits.variable_bytes) +
                    " bytes; raise variable_bytes to allow it");
  const std::uint64_t version = before ? before->version + 1 : 1;
  num_bytes_ = num_bytes_ - freed + added;
  values_[name] = {version, std::make_shared<const std::string>(std::move(value))};
  writes.try_emplace(name, Write{version, std::move(before)}).first->second.version = version;
  return R"({"WriteVar":{"version":)" + std::to_string(version) + "}}";
}

void WasmVariables::undo(const Writes &writes) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto &[name, write] : writes) {
    const auto found = values_.find(name);
    if (found == values_.end() || found->second.version != write.version) continue;
    num_bytes_ -= found->second.bytes->size();
    if (write.before) {
      num_bytes_ += write.before->bytes->size();
      found->second = *write.before;
    } else {
      num_bytes_ -= name.size();
      values_.erase(found);
    }
  }
}

void WasmVariables::append(Writes &writes, const Writes &later) {
  for (const auto &[name, write] : later) writes.try_emplace(name, write).first->second.version = write.version;
}

std::size_t WasmVariables::num_bytes(const Writes &writes) {
  std::size_t bytes = 0;
  for (const auto &[name, write] : writes) bytes += name.size() + (write.before ? write.before->bytes->size() : 0);
  return bytes;
}

std::optional<WasmVariables::Value> WasmVariables::get(const std::string &name) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt : std::optional<Value>(found->second);
}

std::uint32_t WasmVariables::next_sequence() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ++num_sequences_;
}

}  // namespace weft
