#include "plugin_library.h"

#include <dlfcn.h>

#include <stdexcept>
#include <utility>

#include "matcher_recognizer.h"
#include "recognizer_native.h"

namespace weft {
namespace {

// Where a plug-in writes why it can't.
struct Reason {
  char text[512] = {};
  std::string str() const { return text[0] ? std::string(text, strnlen(text, sizeof text)) : "it does not say why"; }
  static std::size_t strnlen(const char *text, std::size_t most) {
    std::size_t length = 0;
    while (length < most && text[length] != '\0') ++length;
    return length;
  }
};

// A plug-in's matcher, and the guide that it is of.
struct PluginMatcher {
  weft_matcher inner;
  std::shared_ptr<const PluginGuide> guide;
};

PluginMatcher &self_of(void *self) { return *static_cast<PluginMatcher *>(self); }
const weft_matcher &inner_of(void *self) { return self_of(self).inner; }

int plug_accept(void *self, std::int32_t token) { return inner_of(self).ops->accept(inner_of(self).self, token); }
int plug_validate(void *self, const std::int32_t *tokens, int count) {
  return inner_of(self).ops->validate(inner_of(self).self, tokens, count);
}
int plug_fill(void *self, std::int32_t *row, int words) {
  return inner_of(self).ops->fill(inner_of(self).self, row, words);
}
int plug_rollback(void *self, int count) { return inner_of(self).ops->rollback(inner_of(self).self, count); }
int plug_reset(void *self) { return inner_of(self).ops->reset(inner_of(self).self); }
int plug_forced(void *self, std::int32_t *tokens, int capacity) {
  return inner_of(self).ops->forced(inner_of(self).self, tokens, capacity);
}
int plug_is_terminated(void *self) { return inner_of(self).ops->is_terminated(inner_of(self).self); }
const char *plug_error(void *self) { return inner_of(self).ops->error(inner_of(self).self); }
void plug_destroy(void *self) {
  inner_of(self).ops->destroy(inner_of(self).self);
  delete &self_of(self);
}
float plug_temperature(void *self) {
  return inner_of(self).ops->temperature ? inner_of(self).ops->temperature(inner_of(self).self) : -1.0f;
}
int plug_splice(void *self, int *backtrack, std::int32_t *tokens, int capacity) {
  return inner_of(self).ops->splice ? inner_of(self).ops->splice(inner_of(self).self, backtrack, tokens, capacity)
                                    : *backtrack = 0;
}

void *plug_fork(void *self) {
  void *copy = inner_of(self).ops->fork(inner_of(self).self);
  return copy ? new PluginMatcher{{inner_of(self).ops, copy}, self_of(self).guide} : nullptr;
}

const weft_matcher_ops kOps = {WEFT_MATCHER_ABI, plug_accept,      plug_validate, plug_fill,          plug_rollback,
                               plug_fork,        plug_reset,       plug_forced,   plug_is_terminated, plug_error,
                               plug_destroy,     plug_temperature, plug_splice};

std::unique_ptr<Recognizing> make_recognizer(const std::shared_ptr<const PluginGuide> &guide, std::string &error) {
  weft_recognizer made{};
  Reason reason;
  if (guide->ops().recognizer(guide->native(), &made, reason.text, sizeof reason.text) != 0)
    return error = reason.str(), nullptr;
  if (!(error = check_ops(made.ops)).empty()) return nullptr;
  return native_recognizer(made, guide);
}

}  // namespace

const weft_plugin_ops &load_plugin(const std::string &path) {
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  const auto *ops = static_cast<const weft_plugin_ops *>(dlsym(library, "weft_plugin"));
  if (!ops) throw std::runtime_error("it exports no weft_plugin; see weft.include_dir()/plugin.h");
  if (ops->abi != WEFT_PLUGIN_ABI)
    throw std::runtime_error("it is of version " + std::to_string(ops->abi) + ", where weft needs " +
                             std::to_string(WEFT_PLUGIN_ABI) + "; build it with this weft's headers");
  if (!ops->open || !ops->close || (ops->matcher == nullptr) == (ops->recognizer == nullptr))
    throw std::runtime_error("its weft_plugin needs open, close, and one of matcher and recognizer");
  return *ops;
}

PluginGuide::PluginGuide(const weft_plugin_ops &ops, std::shared_ptr<const TokenTexts> texts,
                         std::vector<std::int32_t> end_tokens, int vocab_size, std::string_view arg)
    : ops_(ops), texts_(std::move(texts)), end_tokens_(std::move(end_tokens)) {
  if (texts_->starts().size() != static_cast<std::size_t>(vocab_size) + 1)
    throw std::invalid_argument("the texts are not those of the vocabulary");
  vocabulary_ = {vocab_size, texts_->bytes(), texts_->starts().data(), end_tokens_.data(),
                 static_cast<std::int32_t>(end_tokens_.size())};
  Reason reason;
  guide_ = ops_.open(&vocabulary_, arg.data(), arg.size(), reason.text, sizeof reason.text);
  if (!guide_) throw std::runtime_error(reason.str());
}

PluginGuide::~PluginGuide() { ops_.close(guide_); }

weft_matcher plugin_matcher(std::shared_ptr<const PluginGuide> guide, std::shared_ptr<const TokenTexts> texts,
                            std::shared_ptr<const TokenTrie> trie, int vocab_size,
                            std::vector<std::int32_t> end_tokens) {
  std::string error;
  if (guide->recognizes()) {
    auto make = [guide](std::string &why) { return make_recognizer(guide, why); };
    const weft_matcher made =
        recognizer_matcher(std::make_shared<const RecognizerGuide>(RecognizerGuide{
                               std::move(texts), std::move(trie), vocab_size, std::move(end_tokens), std::move(make)}),
                           error);
    if (!made.ops) throw std::runtime_error(error);
    return made;
  }
  weft_matcher made{};
  Reason reason;
  if (guide->ops().matcher(guide->native(), &made, reason.text, sizeof reason.text) != 0)
    throw std::runtime_error(reason.str());
  if (!(error = check_ops(made.ops)).empty()) throw std::runtime_error(error);
  return {&kOps, new PluginMatcher{made, std::move(guide)}};
}

}  // namespace weft
