// A recogniser that is owned, in C or in Python, for the matcher that walks tokens with it.
#pragma once

#include <weft/recognizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace weft {

// The calls of weft/recognizer.h. They are made between `enter` and `leave`.
class Recognizing {
 public:
  virtual ~Recognizing() = default;
  // Before and after a run of calls: 0, or -1, and then there are none and no `leave`.
  virtual int enter() { return 0; }
  virtual void leave() {}
  virtual int pop_bytes(int count) = 0;
  virtual int byte_allowed(std::uint8_t byte) = 0;
  virtual int special_allowed(std::int32_t token) = 0;
  virtual int try_push_byte(std::uint8_t byte) = 0;
  virtual bool collapses() = 0;
  virtual int collapse() = 0;
  virtual int trie_finished() = 0;
  // Null: there is no fork.
  virtual std::unique_ptr<Recognizing> fork() = 0;
  virtual std::string error() = 0;
};

// Makes a recogniser at its start, or null and the reason.
using MakeRecognizing = std::function<std::unique_ptr<Recognizing>(std::string &error)>;

}  // namespace weft
