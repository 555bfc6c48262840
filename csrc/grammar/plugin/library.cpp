#include "grammar/plugin/library.h"

#include <dlfcn.h>

#include <stdexcept>
#include <utility>

#include "grammar/recognizer/handle.h"
#include "grammar/recognizer/matcher.h"
#include "matcher/handle.h"
#include "matcher/no_throw.h"
#include "support/awake.h"

namespace weft {
namespace {

// The buffer for a plug-in's error message.
struct Reason {
  char text[512] = {};
  std::string str() const { return text[0] ? std::string(text, strnlen(text, sizeof text)) : "it does not say why"; }
  static std::size_t strnlen(const char *text, std::size_t limit) {
    std::size_t length = 0;
    while (length < limit && text[length] != '\0') ++length;
    return length;
  }
};

// A plug-in's matcher with its guide.
struct PluginMatcher {
  std::shared_ptr<const PluginGuide> guide;  // outlives the matcher
  OwnedMatcher owned;
  std::string error;  // the error if the plug-in throws, which its C interface forbids

  PluginMatcher(OwnedMatcher matcher, std::shared_ptr<const PluginGuide> of)
      : guide(std::move(of)), owned(std::move(matcher)) {}
  const weft_matcher_ops &ops() const { return *owned.native().ops; }
  void *self() {
    note_that_may_wait();
    error.clear();
    return owned.native().self;
  }
};

int plug_accept(PluginMatcher &matcher, std::int32_t token) { return matcher.ops().accept(matcher.self(), token); }
int plug_validate(PluginMatcher &matcher, const std::int32_t *tokens, int count) {
  return matcher.ops().validate(matcher.self(), tokens, count);
}
int plug_fill(PluginMatcher &matcher, std::int32_t *row, int words) {
  return matcher.ops().fill(matcher.self(), row, words);
}
int plug_rollback(PluginMatcher &matcher, int count) { return matcher.ops().rollback(matcher.self(), count); }
int plug_reset(PluginMatcher &matcher) { return matcher.ops().reset(matcher.self()); }
int plug_forced(PluginMatcher &matcher, std::int32_t *tokens, int capacity) {
  return matcher.ops().forced(matcher.self(), tokens, capacity);
}
int plug_is_terminated(PluginMatcher &matcher) { return matcher.ops().is_terminated(matcher.self()); }
const char *plug_error(PluginMatcher &matcher) {
  return matcher.error.empty() ? matcher.ops().error(matcher.self()) : matcher.error.c_str();
}
void plug_destroy(PluginMatcher &matcher) {
  const std::unique_ptr<PluginMatcher> gone(&matcher);
  const weft_matcher inner = matcher.owned.release();
  inner.ops->destroy(inner.self);
}
float plug_temperature(PluginMatcher &matcher) {
  return matcher.ops().temperature ? matcher.ops().temperature(matcher.self()) : -1.0f;
}
int plug_edit(PluginMatcher &matcher, int *drop, std::int32_t *append, int capacity) {
  return matcher.ops().edit ? matcher.ops().edit(matcher.self(), drop, append, capacity) : *drop = 0;
}

void *plug_fork(PluginMatcher &matcher) {
  OwnedMatcher copy({&matcher.ops(), matcher.ops().fork(matcher.self())});
  return copy ? new PluginMatcher(std::move(copy), matcher.guide) : nullptr;
}

const weft_matcher_ops kOps = {WEFT_MATCHER_ABI,    guarded<plug_accept>,   guarded<plug_validate>,
                               guarded<plug_fill>,  guarded<plug_rollback>, guarded<plug_fork>,
                               guarded<plug_reset>, guarded<plug_forced>,   guarded<plug_is_terminated>,
                               guarded<plug_error>, guarded<plug_destroy>,  guarded<plug_temperature>,
                               guarded<plug_edit>};

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
  OwnedMatcher owned(made);
  return {&kOps, new PluginMatcher(std::move(owned), std::move(guide))};
}

}  // namespace weft
