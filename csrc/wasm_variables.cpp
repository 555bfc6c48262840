#include "wasm_variables.h"

#include <algorithm>
#include <new>
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

constexpr std::size_t kWriteBytes = 64;  // what a write takes beside its name and its bytes
std::size_t size_of(const WasmVariables::Write &write) { return kWriteBytes + write.name.size() + write.bytes.size(); }

// `later` behind `first`, as one.
void join(WasmVariables::Write &first, const WasmVariables::Write &later) {
  if (later.appends) {
    first.bytes += later.bytes;
  } else {
    first.bytes = later.bytes;
    first.appends = false;
  }
  first.count += later.count;
}

WasmVariables::Value with(const WasmVariables::Value &before, const WasmVariables::Write &write) {
  auto bytes = std::make_shared<std::string>();
  if (write.appends && before.bytes) *bytes = *before.bytes;
  *bytes += write.bytes;
  return {before.version + write.count, std::move(bytes)};
}

}  // namespace

std::string WasmVariables::command(std::string_view text, const WasmLimits &limits, Writes &writes) {
  const JsonValue parsed = parse_json(text, "a storage command");
  const JsonValue *read = parsed.find("ReadVar"), *write_var = parsed.find("WriteVar");
  if (!read && !write_var) throw WasmError("a storage command is neither ReadVar nor WriteVar");
  const JsonValue &command = read ? *read : *write_var;
  const std::string &name = text_of(command, "name");
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = variables_.find(name);
  const Value *current = found == variables_.end() ? nullptr : &found->second.current;
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
  const auto found = variables_.find(name);
  const bool is_new = found == variables_.end();
  const std::size_t before = is_new ? 0 : found->second.current.bytes->size();
  const std::size_t after = value.size() + (append ? before : 0) + (is_new ? name.size() : 0);
  if (is_new && variables_.size() >= static_cast<std::size_t>(limits.max_variables))
    throw WasmError("the program has more than " + std::to_string(limits.max_variables) +
                    " variables; raise max_variables to allow it");
  if (num_bytes_ - before + after > static_cast<std::size_t>(limits.variable_bytes))
    throw WasmError("the request's variables have more than " + std::to_string(limits.variable_bytes) +
                    " bytes; raise variable_bytes to allow it");
  const Write made{name, append, std::move(value)};
  // A sequence alone keeps to this by itself: its log has no more than undo_bytes, twice while it validates.
  const auto most = static_cast<std::size_t>(2 * limits.undo_bytes + limits.variable_bytes) +
                    kWriteBytes * static_cast<std::size_t>(limits.max_variables);
  if (num_written_bytes_ + size_of(made) > most)
    throw WasmError("the writes to the request's variables that its sequences may take back have more than " +
                    std::to_string(most) + " bytes; raise undo_bytes to allow it");

  Value current = with(is_new ? Value{} : found->second.current, made);
  Variable &variable = is_new ? variables_.emplace(name, Variable{{}, {}, current}).first->second : found->second;
  // What a step writes at once goes at once.
  const auto last =
      variable.writes.empty() ? writes.end() : std::find(writes.begin(), writes.end(), variable.writes.back());
  if (last != writes.end()) {
    num_written_bytes_ -= size_of(**last);
    join(**last, made);
    num_written_bytes_ += size_of(**last);
  } else {
    writes.push_back(std::make_shared<Write>(made));
    variable.writes.push_back(writes.back());
    num_written_bytes_ += size_of(made);
  }
  num_bytes_ = num_bytes_ - before + after;
  variable.current = std::move(current);
  return R"({"WriteVar":{"version":)" + std::to_string(variable.current.version) + "}}";
}

// On failure nothing has changed.
void WasmVariables::retract(Variables::iterator variable, Write &write) {
  auto &all = variable->second.writes;
  const auto place = std::find_if(all.begin(), all.end(), [&](const auto &one) { return one.get() == &write; });
  if (place == all.end()) return;  // it was overwritten for good
  const Value &settled = variable->second.settled;
  auto bytes = std::make_shared<std::string>(settled.bytes ? *settled.bytes : "");
  Value current{settled.version, bytes};
  for (auto one = all.begin(); one != all.end(); ++one) {
    if (one == place) continue;
    if (!(*one)->appends) bytes->clear();
    *bytes += (*one)->bytes;
    current.version += (*one)->count;
  }
  num_bytes_ -= variable->second.current.bytes->size();
  num_written_bytes_ -= size_of(write);
  if (current.version == 0) {
    num_bytes_ -= write.name.size();
    variables_.erase(variable);
    return;
  }
  all.erase(place);
  num_bytes_ += current.bytes->size();
  variable->second.current = std::move(current);
}

// Keeps the writes apart that may yet be taken back, and no others.
void WasmVariables::settle(Variable &variable) {
  auto &all = variable.writes;
  const auto is_settled = [](const auto &write) { return write->num_holders == 0; };
  const auto set =
      std::find_if(all.rbegin(), all.rend(), [&](const auto &write) { return is_settled(write) && !write->appends; });
  // What was there before a value that stays is of no account, whether it is taken back or not.
  auto first_open = set.base();
  while (first_open != all.end() && is_settled(*first_open)) ++first_open;
  for (auto at = all.begin(); at != first_open; ++at) {
    variable.settled = with(variable.settled, **at);
    num_written_bytes_ -= size_of(**at);
  }
  all.erase(all.begin(), first_open);
  for (std::size_t i = 0; i + 1 < all.size();) {
    if (!is_settled(all[i]) || !is_settled(all[i + 1])) {
      ++i;
      continue;
    }
    num_written_bytes_ -= kWriteBytes + all[i]->name.size();
    join(*all[i], *all[i + 1]);
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
}

void WasmVariables::undo(const Writes &writes) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto &write : writes) {
    const auto variable = variables_.find(write->name);
    if (write->num_holders == 1 && !write->is_kept) retract(variable, *write);
    if (--write->num_holders == 0 && write->is_kept) settle(variable->second);
  }
}

void WasmVariables::keep(const Writes &writes) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto &write : writes) {
    write->is_kept = true;
    if (--write->num_holders > 0) continue;
    try {
      settle(variables_.find(write->name)->second);
    } catch (const std::bad_alloc &) {
      // It stands all the same, and settles with the next one.
    }
  }
}

void WasmVariables::share(const Writes &writes) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto &write : writes) ++write->num_holders;
}

std::size_t WasmVariables::num_bytes(const Writes &writes) {
  std::size_t bytes = 0;
  for (const auto &write : writes) bytes += size_of(*write);
  return bytes;
}

std::optional<WasmVariables::Value> WasmVariables::get(const std::string &name) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = variables_.find(name);
  return found == variables_.end() ? std::nullopt : std::optional<Value>(found->second.current);
}

WasmVariables::Values WasmVariables::values() {
  std::lock_guard<std::mutex> lock(mutex_);
  Values values;
  for (const auto &[name, variable] : variables_) values.emplace(name, variable.current);
  return values;
}

void WasmVariables::check_alone() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (num_sequences_ > 1)
    throw WasmError(
        "variables that other sequences share were written longer ago than can be taken back; raise undo_tokens or "
        "undo_bytes to allow it");
}

void WasmVariables::restore(const Values &values) {
  std::lock_guard<std::mutex> lock(mutex_);
  variables_.clear();
  num_bytes_ = num_written_bytes_ = 0;
  for (const auto &[name, value] : values) {
    variables_[name] = {value, {}, value};
    num_bytes_ += name.size() + value.bytes->size();
  }
}

std::uint32_t WasmVariables::next_sequence() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ++num_sequences_;
}

}  // namespace weft
