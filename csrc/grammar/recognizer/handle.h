// The interface of recognisers, which are written in C or in Python, for the matcher that owns one.
#pragma once

#include <weft/matcher.h>
#include <weft/recognizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace weft {

// The calls of weft/recognizer.h. They may be made only between `enter` and `leave`.
class Recognizing {
 public:
  virtual ~Recognizing() = default;
  // Called before and after a group of calls. If `enter` returns -1, neither calls nor `leave` may follow.
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

// Wraps a recogniser with a C interface. The wrapper keeps `keep` alive, the guide that made the recogniser.
std::unique_ptr<Recognizing> native_recognizer(weft_recognizer recognizer, std::shared_ptr<const void> keep);

// Returns what is wrong with a table of functions, or "".
std::string check_ops(const weft_recognizer_ops *ops);
std::string check_ops(const weft_matcher_ops *ops);

}  // namespace weft
