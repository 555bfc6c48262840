// The text that a request expects as its answer (predicted output), and the answer's place in it. Python-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft {

// The answer may leave the text. It rejoins the text as soon as its last kRejoin tokens, all since it left, occur in
// the text within kReach tokens after the place where it left. The nearest such occurrence counts.
class GivenText {
 public:
  static constexpr int kRejoin = 4, kReach = 1024;

  explicit GivenText(std::vector<std::int32_t> text) : text_(std::move(text)) {}

  // Appends the next token of the answer.
  void append(std::int32_t token);
  // Writes the continuation of the text to `out`, up to `capacity` tokens, and returns their number. It is 0 at the end
  // of the text and while the answer is outside it.
  int next(std::int32_t *out, int capacity) const;

 private:
  const std::vector<std::int32_t> text_;
  std::size_t place_ = 0;  // of the next token in the text, or where the answer left it
  bool is_inside_ = true;
  int num_outside_ = 0;              // tokens since it left, kRejoin at most
  std::int32_t outside_[kRejoin]{};  // the last of those
};

}  // namespace weft
