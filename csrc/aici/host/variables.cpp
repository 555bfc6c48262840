#include "aici/host/variables.h"

#include <algorithm>
#include <new>
#include <utility>

#include "aici/base/json.h"
#include "aici/base/limits.h"

namespace weft::aici {
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
  throw ProgramError("a storage command has a value that is not hexadecimal");
}

std::string from_hex(std::string_view text) {
  if (text.size() % 2) throw ProgramError("a storage command has a value that is not hexadecimal");
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += 2)
    out += static_cast<char>(digit_of(text[i]) * 16 + digit_of(text[i + 1]));
  return out;
}

const std::string &text_of(const JsonValue &command, const char *key) {
  const JsonValue *member = command.find(key);
  if (!member || member->kind != JsonValue::kString)
    throw ProgramError(std::string("a storage command has no text ") + key);
  return member->text;
}

std::string answer(const Variables::Value *value) {
  if (!value) return R"({"VariableMissing":{}})";
  return R"({"ReadVar":{"version":)" + std::to_string(value->version) + R"(,"value":")" + to_hex(*value->bytes) +
         R"("}})";
}

constexpr std::size_t kWriteBytes = 64;  // the size of a write without its name and bytes
std::size_t size_of(const Variables::Write &write) { return kWriteBytes + write.name.size() + write.bytes.size(); }

// Joins `later` into `first`, the write before it.
void join(Variables::Write &first, const Variables::Write &later) {
  if (later.appends) {
    first.bytes += later.bytes;
  } else {
    first.bytes = later.bytes;
    first.appends = false;
  }
  first.count += later.count;
}

// Returns the value after one more write.
Variables::Value with(const Variables::Value &before, const Variables::Write &write) {
  auto bytes = std::make_shared<std::string>();
  if (write.appends && before.bytes) *bytes = *before.bytes;
  *bytes += write.bytes;
  return {before.version + write.count, std::move(bytes)};
}

// Whether every holder has undone the write.
bool is_gone(const Variables::Write &write) { return write.num_holders == 0 && !write.is_kept; }

}  // namespace

std::string Variables::command(std::string_view text, const Limits &limits, Writes &writes, Origin origin) {
  const JsonValue parsed = parse_json(text, "a storage command");
  const JsonValue *read = parsed.find("ReadVar"), *write_var = parsed.find("WriteVar");
  if (!read && !write_var) throw ProgramError("a storage command is neither ReadVar nor WriteVar");
  const JsonValue &command = read ? *read : *write_var;
  const std::string &name = text_of(command, "name");
  std::lock_guard<std::mutex> lock(mutex_);
  const auto variable = variables_.find(name);
  const Value *current = variable == variables_.end() ? nullptr : &variable->second.current;
  if (read) return answer(current);
  if (const JsonValue *wanted = command.find("when_version_is"))
    if (!current || wanted->kind != JsonValue::kNumber || wanted->number != static_cast<double>(current->version))
      return answer(current);
  const std::string &op = text_of(command, "op");
  if (op != "Set" && op != "Append") throw ProgramError("a storage command's op is neither Set nor Append");
  return write({name, op == "Append", from_hex(text_of(command, "value")), origin}, limits, writes);
}

std::string Variables::write(Write made, const Limits &limits, Writes &writes) {
  const std::string &name = made.name;
  auto variable = variables_.find(name);
  const bool is_new = variable == variables_.end();
  const std::size_t before = is_new ? 0 : variable->second.current.bytes->size();
  const std::size_t after = made.bytes.size() + (made.appends ? before : 0) + (is_new ? name.size() : 0);
  if (is_new && variables_.size() >= static_cast<std::size_t>(limits.max_variables))
    throw ProgramError("the program has more than " + std::to_string(limits.max_variables) +
                       " variables; raise max_variables to allow it");
  if (num_bytes_ - before + after > static_cast<std::size_t>(limits.variable_bytes))
    throw ProgramError("the request's variables have more than " + std::to_string(limits.variable_bytes) +
                       " bytes; raise variable_bytes to allow it");
  // A single sequence never reaches this limit: its undo log is bounded by undo_bytes, or by twice that while it
  // validates.
  const auto limit = static_cast<std::size_t>(2 * limits.undo_bytes + limits.variable_bytes) +
                     kWriteBytes * static_cast<std::size_t>(limits.max_variables);
  if (num_written_bytes_ + size_of(made) > limit)
    throw ProgramError("the writes to the request's variables that its sequences may take back have more than " +
                       std::to_string(limit) + " bytes; raise undo_bytes to allow it");

  // Everything that may throw comes before the first change.
  Value current = with(is_new ? Value{} : variable->second.current, made);
  // Consecutive writes to a variable in one step are undone together, so join them.
  const auto last = is_new || variable->second.writes.empty()
                        ? writes.end()
                        : std::find(writes.begin(), writes.end(), variable->second.writes.back());
  if (last != writes.end()) {
    const std::size_t size = size_of(**last);
    join(**last, made);
    num_written_bytes_ += size_of(**last) - size;
  } else {
    // Reserve first, so that the push_back below can't throw.
    if (writes.size() == writes.capacity()) writes.reserve(2 * writes.size() + 1);
    auto added = std::make_shared<Write>(made);
    if (is_new) {
      variable = variables_.emplace(name, Variable{{}, {added}, current}).first;
    } else {
      variable->second.writes.push_back(added);
    }
    writes.push_back(std::move(added));
    num_written_bytes_ += size_of(made);
  }
  num_bytes_ = num_bytes_ - before + after;
  variable->second.current = std::move(current);
  return R"({"WriteVar":{"version":)" + std::to_string(variable->second.current.version) + "}}";
}

// Returns the variable's value without the writes for which `is_gone` is true.
template <class IsGone>
Variables::Value Variables::value_of(const Variable &variable, IsGone is_gone) {
  auto bytes = std::make_shared<std::string>(variable.settled.bytes ? *variable.settled.bytes : "");
  Value value{variable.settled.version, bytes};
  for (const auto &write : variable.writes) {
    if (is_gone(*write)) continue;
    if (!write->appends) bytes->clear();
    *bytes += write->bytes;
    value.version += write->count;
  }
  return value;
}

// Removes the undone writes. `left` is the variable's value without them; version 0 removes the variable.
void Variables::retract(ByName::iterator variable, Value left) noexcept {
  auto &[name, old] = *variable;
  const auto gone = std::remove_if(old.writes.begin(), old.writes.end(), [&](const auto &write) {
    if (!is_gone(*write)) return false;
    num_written_bytes_ -= size_of(*write);
    return true;
  });
  old.writes.erase(gone, old.writes.end());
  num_bytes_ -= old.current.bytes->size();
  if (left.version == 0) {
    num_bytes_ -= name.size();
    variables_.erase(variable);
    return;
  }
  num_bytes_ += left.bytes->size();
  old.current = std::move(left);
}

// Joins the writes that no sequence can still undo, so that only undoable writes are stored separately. If it
// throws, only some are joined, and the variable is still consistent.
void Variables::settle(Variable &variable) {
  auto &all = variable.writes;
  const auto is_settled = [](const auto &write) { return write->num_holders == 0; };
  const auto set =
      std::find_if(all.rbegin(), all.rend(), [&](const auto &write) { return is_settled(write) && !write->appends; });
  // A permanent Set hides all earlier writes, whether they are undone or not.
  auto first_open = set.base();
  while (first_open != all.end() && is_settled(*first_open)) ++first_open;
  if (first_open != all.begin()) {
    Value settled = variable.settled;
    for (auto at = all.begin(); at != first_open; ++at) settled = with(settled, **at);
    for (auto at = all.begin(); at != first_open; ++at) num_written_bytes_ -= size_of(**at);
    all.erase(all.begin(), first_open);
    variable.settled = std::move(settled);
  }
  for (std::size_t i = 0; i + 1 < all.size();) {
    if (!is_settled(all[i]) || !is_settled(all[i + 1])) {
      ++i;
      continue;
    }
    const std::size_t size = size_of(*all[i]) + size_of(*all[i + 1]);
    join(*all[i], *all[i + 1]);
    num_written_bytes_ -= size - size_of(*all[i]);
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
}

void Variables::settle(const std::string &name) noexcept {
  const auto variable = variables_.find(name);
  if (variable == variables_.end()) return;
  try {
    settle(variable->second);
  } catch (const std::bad_alloc &) {
    // The values are correct without the join, and the next call joins the writes.
  }
}

void Variables::undo(const Writes &writes) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto &write : writes) --write->num_holders;
  // Everything that may throw comes before the first change.
  std::map<std::string_view, Value> left;
  try {
    for (const auto &write : writes) {
      if (!is_gone(*write) || left.count(write->name)) continue;
      const auto variable = variables_.find(write->name);
      if (variable != variables_.end()) left.emplace(write->name, value_of(variable->second, is_gone));
    }
  } catch (...) {
    for (const auto &write : writes) ++write->num_holders;
    throw;
  }
  for (auto &[name, value] : left) retract(variables_.find(name), std::move(value));
  for (const auto &write : writes)
    if (write->num_holders == 0) settle(write->name);
}

void Variables::keep(const Writes &writes) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto &write : writes) {
    write->is_kept = true;
    if (--write->num_holders == 0) settle(write->name);
  }
}

void Variables::share(const Writes &writes) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto &write : writes) ++write->num_holders;
}

std::size_t Variables::num_bytes(const Writes &writes) {
  std::size_t bytes = 0;
  for (const auto &write : writes) bytes += size_of(*write);
  return bytes;
}

std::optional<Variables::Value> Variables::get(const std::string &name) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto variable = variables_.find(name);
  return variable == variables_.end() ? std::nullopt : std::optional<Value>(variable->second.current);
}

Variables::Values Variables::values() {
  std::lock_guard<std::mutex> lock(mutex_);
  Values values;
  for (const auto &[name, variable] : variables_) values.emplace(name, variable.current);
  return values;
}

Variables::Values Variables::values_without(Origin beyond) {
  const auto is_beyond = [beyond](const Write &write) {
    return write.origin.sequence == beyond.sequence && write.origin.num_tokens > beyond.num_tokens;
  };
  std::lock_guard<std::mutex> lock(mutex_);
  Values values;
  for (const auto &[name, variable] : variables_) {
    const auto &writes = variable.writes;
    Value value = variable.current;
    if (std::any_of(writes.begin(), writes.end(), [&](const auto &write) { return is_beyond(*write); }))
      value = value_of(variable, [&](const Write &write) { return is_gone(write) || is_beyond(write); });
    if (value.version > 0) values.emplace(name, std::move(value));
  }
  return values;
}

void Variables::check_alone() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (num_writers_ > 1)
    throw ProgramError(
        "variables that other sequences share were written longer ago than can be taken back; raise undo_tokens or "
        "undo_bytes to allow it");
}

void Variables::restore(const Values &values) {
  ByName restored;
  std::size_t num_bytes = 0;
  for (const auto &[name, value] : values) {
    restored[name] = {value, {}, value};
    num_bytes += name.size() + value.bytes->size();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  variables_.swap(restored);
  num_bytes_ = num_bytes;
  num_written_bytes_ = 0;
}

std::uint32_t Variables::next_sequence() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ++num_sequences_;
}

void Variables::enter() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  ++num_writers_;
}

void Variables::leave(bool has_written) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!has_written) --num_writers_;
}

}  // namespace weft::aici
