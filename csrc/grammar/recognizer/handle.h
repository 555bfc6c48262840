// A recogniser, written in C or in Python, with an owner: the matcher that walks tokens with it.
#pragma once

#include <weft/matcher.h>
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
  // Before and after a run of calls. `enter` returns 0, or -1, after which there are no calls and no `leave`.
  virtual int enter() { return 0; }
  virtual void leave() {}
  virtual int pop_bytes(int count) = 0;
  virtual int byte_allowed(std::uint8_t byte) = 0;
  virtual int special_allowed(std::int32_t token) = 0;
  virtual int try_push_byte(std::uint8_t byte) = 0;
  virtual bool collapses() = 0;
  virtual int collapse() = 0;
  virtual int trie_finished() = 0;
  // Null if the recogniser cannot fork.
  virtual std::unique_ptr<Recognizing> fork() = 0;
  virtual std::string error() = 0;
};

// Makes a recogniser at its start, or null and the reason.
using MakeRecognizing = std::function<std::unique_ptr<Recognizing>(std::string &error)>;

// A recogniser in C. `keep` lives as long as it does: the library or guide that made it.
std::unique_ptr<Recognizing> native_recognizer(weft_recognizer recognizer, std::shared_ptr<const void> keep);

// The fault of a table of functions, or "".
std::string check_ops(const weft_recognizer_ops *ops);
std::string check_ops(const weft_matcher_ops *ops);

}  // namespace weft
