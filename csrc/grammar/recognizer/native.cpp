#include "grammar/recognizer/handle.h"
#include "support/awake.h"

namespace weft {
namespace {

class Native : public Recognizing {
 public:
  Native(weft_recognizer recognizer, std::shared_ptr<const void> keep)
      : ops_(recognizer.ops), self_(recognizer.self), keep_(std::move(keep)) {}
  Native(const Native &) = delete;
  Native &operator=(const Native &) = delete;
  ~Native() override { ops_->destroy(self_); }

  int enter() override { return note_that_may_wait(), 0; }
  int pop_bytes(int count) override { return ops_->pop_bytes(self_, count); }
  int byte_allowed(std::uint8_t byte) override { return ops_->byte_allowed(self_, byte); }
  int special_allowed(std::int32_t token) override { return ops_->special_allowed(self_, token); }
  int try_push_byte(std::uint8_t byte) override {
    if (ops_->try_push_byte) return ops_->try_push_byte(self_, byte);
    const int allowed = ops_->byte_allowed(self_, byte);
    return allowed != 1 ? allowed : ops_->push_byte(self_, byte) < 0 ? -1 : 1;
  }
  bool collapses() override { return ops_->collapse != nullptr; }
  int collapse() override { return ops_->collapse ? ops_->collapse(self_) : 0; }
  int trie_finished() override { return ops_->trie_finished ? ops_->trie_finished(self_) : 0; }
  std::unique_ptr<Recognizing> fork() override {
    void *copy = ops_->fork ? ops_->fork(self_) : nullptr;
    return copy ? native_recognizer({ops_, copy}, keep_) : nullptr;
  }
  std::string error() override { return ops_->error(self_); }

 private:
  const weft_recognizer_ops *ops_;
  void *self_;
  std::shared_ptr<const void> keep_;
};

std::string version(const char *what, std::uint32_t has, std::uint32_t needed) {
  if (has == needed) return "";
  return std::string("its ") + what + " are of version " + std::to_string(has) + ", where weft needs " +
         std::to_string(needed) + "; build it with this weft's headers";
}

}  // namespace

std::unique_ptr<Recognizing> native_recognizer(weft_recognizer recognizer, std::shared_ptr<const void> keep) {
  std::unique_ptr<void, void (*)(void *)> owned(recognizer.self, recognizer.ops->destroy);
  auto made = std::make_unique<Native>(recognizer, std::move(keep));
  owned.release();
  return made;
}

std::string check_ops(const weft_recognizer_ops *ops) {
  if (!ops) return "its recogniser has no functions";
  if (ops->abi != WEFT_RECOGNIZER_ABI) return version("recognisers", ops->abi, WEFT_RECOGNIZER_ABI);
  if (!ops->push_byte || !ops->pop_bytes || !ops->byte_allowed || !ops->special_allowed || !ops->error || !ops->destroy)
    return "its recogniser lacks a function that may not be null";
  return "";
}

std::string check_ops(const weft_matcher_ops *ops) {
  if (!ops) return "its matcher has no functions";
  constexpr std::uint32_t kOldestAbi = 2;  // with the same layout
  if (ops->abi < kOldestAbi || ops->abi > WEFT_MATCHER_ABI) return version("matchers", ops->abi, WEFT_MATCHER_ABI);
  if (!ops->accept || !ops->validate || !ops->fill || !ops->rollback || !ops->fork || !ops->reset || !ops->forced ||
      !ops->is_terminated || !ops->error || !ops->destroy)
    return "its matcher lacks a function that may not be null";
  return "";
}

}  // namespace weft
