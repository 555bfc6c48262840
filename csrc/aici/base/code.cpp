#include "aici/base/code.h"

#include <cstdint>

#include "aici/base/limits.h"

namespace weft::aici {
namespace {

class Reader {
 public:
  explicit Reader(std::string_view code) : code_(code) {}

  bool is_done() const { return at_ == code_.size(); }
  std::uint8_t byte() {
    if (is_done()) throw ProgramError("the module ends within an instruction");
    return static_cast<std::uint8_t>(code_[at_++]);
  }
  void skip(std::uint64_t count) {
    if (count > code_.size() - at_) throw ProgramError("the module ends within an instruction");
    at_ += count;
  }
  // Reads an unsigned LEB128 number of at most 64 bits. It also skips signed numbers, which are encoded in the same
  // length.
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const std::uint8_t next = byte();
      if (shift < 64) value |= static_cast<std::uint64_t>(next & 0x7F) << shift;
      if (next < 0x80) return value;
    }
    throw ProgramError("the module has a number of more than 64 bits");
  }
  void numbers(int count) {
    for (int i = 0; i < count; ++i) number();
  }

 private:
  std::string_view code_;
  std::size_t at_ = 0;
};

// Skips an instruction with the prefix 0xFC. Returns its name if it changes a table, else null.
const char *prefixed(Reader &reader) {
  switch (reader.number()) {
    case 8:   // memory.init
    case 10:  // memory.copy
      reader.numbers(2);
      return nullptr;
    case 9:   // data.drop
    case 11:  // memory.fill
    case 16:  // table.size
      reader.number();
      return nullptr;
    case 12:
      return "table.init";
    case 13:
      return "elem.drop";
    case 14:
      return "table.copy";
    case 15:
      return "table.grow";
    case 17:
      return "table.fill";
    default:
      return nullptr;
  }
}

// Skips an instruction on 128-bit vectors.
void skip_vector(Reader &reader) {
  const std::uint64_t opcode = reader.number();
  if (opcode <= 11 || (opcode >= 84 && opcode <= 93)) reader.numbers(2);                // loads and stores
  if (opcode == 12 || opcode == 13) reader.skip(16);                                    // a constant, a shuffle
  if ((opcode >= 21 && opcode <= 34) || (opcode >= 84 && opcode <= 91)) reader.byte();  // a lane
}

// Skips one instruction. Returns its name if it changes a table, else null.
const char *instruction(Reader &reader) {
  const std::uint8_t opcode = reader.byte();
  switch (opcode) {
    case 0x0E:  // br_table
      for (std::uint64_t left = reader.number() + 1; left > 0; --left) reader.number();
      return nullptr;
    case 0x1C:  // select with types
      reader.skip(reader.number());
      return nullptr;
    case 0x26:
      return "table.set";
    case 0x43:  // f32.const
      reader.skip(4);
      return nullptr;
    case 0x44:  // f64.const
      reader.skip(8);
      return nullptr;
    case 0xFC:
      return prefixed(reader);
    case 0xFD:
      skip_vector(reader);
      return nullptr;
    default:
      break;
  }
  const auto is_in = [opcode](std::uint8_t first, std::uint8_t last) { return opcode >= first && opcode <= last; };
  if (opcode == 0x11 || is_in(0x28, 0x3E)) {  // call_indirect, loads and stores
    reader.numbers(2);
  } else if (is_in(0x02, 0x04) || is_in(0x0C, 0x0D) || opcode == 0x10 || is_in(0x20, 0x25) || is_in(0x3F, 0x42) ||
             opcode == 0xD0 || opcode == 0xD2) {
    reader.number();
  } else if (!(is_in(0x00, 0x01) || opcode == 0x05 || opcode == 0x0B || opcode == 0x0F || is_in(0x1A, 0x1B) ||
               is_in(0x45, 0xC4) || opcode == 0xD1)) {
    throw ProgramError("the module has the instruction " + std::to_string(opcode) +
                       ", which programs may not use; compile it for plain wasm32");
  }
  return nullptr;
}

}  // namespace

std::string table_change(std::string_view body) {
  Reader reader(body);
  for (std::uint64_t groups = reader.number(); groups > 0; --groups) {  // the locals, by type
    reader.number();
    reader.byte();
  }
  while (!reader.is_done())
    if (const char *name = instruction(reader)) return name;
  return "";
}

}  // namespace weft::aici
