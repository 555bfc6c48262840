#include "grammar/llguidance/matcher.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include "grammar/llguidance/start.h"
#include "matcher/no_throw.h"

namespace weft {

using llg::api;
using llg::Handle;
using llg::tidy;

namespace {

// Fewer masks than this find their own states too many.
constexpr int kMasksToBeginAnew = 256;

// Forced text is looked for this many bytes ahead for each token that is asked for.
constexpr std::size_t kForcedBytesPerToken = 16;

// End tokens are weft's business: LLGuidance never sees one, so that nothing it does after an end can matter. An
// illegal token kills its matchers for good, so each is validated before it is consumed.
//
// LLGuidance keeps its last mask and gives it again where the lexer's state and the number of parsed lexemes are the
// same. A rollback does not drop it, so that another path of the same shape would get the mask of the one taken back:
// before such a path is entered, a mask of where it begins takes the place of the kept one.
struct LlguidanceMatcher {
  std::shared_ptr<const LlguidanceVocabulary> vocabulary;
  std::shared_ptr<LlguidanceStart> start;
  Handle owned;
  LexerWork work;
  bool is_warm;  // its lexer knew states when it began
  llg::Matcher *handle = owned.get();
  std::vector<std::uint32_t> taken{};  // without an end token
  bool ended = false;
  std::size_t masked = 0;  // how many were taken when the last mask was filled
  bool is_stale = false;   // the kept mask is of a text that was taken back
  bool is_anew = false;    // it began a second time
  int masks = 0;           // filled since it began
  std::string error{};

  // What it found goes to those that come after it, unless it failed.
  ~LlguidanceMatcher() {
    if (is_anew || !error.empty() || !start->wants(work)) return;
    if (!taken.empty() && api.rollback(handle, taken.size()) != 0) return;
    if (api.compute_mask(handle) != 0) return;  // drops the kept mask
    start->take(std::move(owned), work);
  }

  // A lexer may know so many states and no more, and no text may fail for those that others' texts found, nor a long
  // one for those of its beginning: it takes its tokens again, without the masks between them. Not so after a few
  // masks, whose states it needs itself. Whether it did.
  bool begin_anew() {
    if (!is_warm && masks < kMasksToBeginAnew) return false;
    Handle fresh = start->cold();
    for (const std::uint32_t token : taken)
      if (api.consume_token(fresh.get(), token) != 0) return false;
    owned = std::move(fresh);
    handle = owned.get();
    is_warm = is_stale = false;
    is_anew = true;
    masked = 0;
    masks = 0;
    return true;
  }

  int fail(const char *text) {
    error = text;
    return -1;
  }
  int fail() {
    error = tidy(api.get_error(handle));
    return -1;
  }
  bool is_end(std::int32_t token) const {
    const auto &ends = vocabulary->end_tokens();
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }
};

// Whether the last mask, where one was filled since the last token, allows the token: then it need not be validated.
bool mask_allows(LlguidanceMatcher &matcher, std::int32_t token) {
  const std::uint32_t *mask = api.get_mask(matcher.handle);
  return mask && (mask[token / 32] >> (token % 32) & 1u);
}

bool compute_mask(LlguidanceMatcher &matcher) {
  const auto start = std::chrono::steady_clock::now();
  if (api.compute_mask(matcher.handle) != 0 && !(matcher.begin_anew() && api.compute_mask(matcher.handle) == 0))
    return false;
  matcher.work.time += std::chrono::steady_clock::now() - start;
  matcher.masked = matcher.taken.size();
  matcher.is_stale = false;
  ++matcher.work.masks;
  ++matcher.masks;
  return true;
}

std::int32_t validate_one(LlguidanceMatcher &matcher, std::uint32_t token) {
  const std::int32_t legal = api.validate_tokens(matcher.handle, &token, 1);
  return legal < 0 && matcher.begin_anew() ? api.validate_tokens(matcher.handle, &token, 1) : legal;
}

bool consume(LlguidanceMatcher &matcher, std::uint32_t token) {
  if (api.consume_token(matcher.handle, token) != 0 &&
      !(matcher.begin_anew() && api.consume_token(matcher.handle, token) == 0))
    return false;
  matcher.taken.push_back(token);
  return true;
}

int llg_accept(LlguidanceMatcher &matcher, std::int32_t token) {
  if (token < 0 || token >= matcher.vocabulary->size() || matcher.ended) return 0;
  if (matcher.is_end(token)) {
    matcher.ended = api.is_accepting(matcher.handle);
    return matcher.ended;
  }
  const auto id = static_cast<std::uint32_t>(token);
  if (!mask_allows(matcher, token)) {
    const std::int32_t legal = validate_one(matcher, id);
    if (legal < 0) return matcher.fail();
    if (legal == 0) return 0;
  }
  if (matcher.is_stale && !compute_mask(matcher)) return matcher.fail();
  return consume(matcher, id) ? 1 : matcher.fail();
}

int llg_rollback(LlguidanceMatcher &matcher, int count) {
  const int all = static_cast<int>(matcher.taken.size()) + matcher.ended;
  if (count < 0) return matcher.fail("can't roll back a negative number of tokens");
  if (count > all) {
    matcher.error = "rollback of " + std::to_string(count) + " tokens; only " + std::to_string(all) + " were taken";
    return -1;
  }
  const auto fed = static_cast<std::size_t>(count - (count > 0 && matcher.ended));
  if (fed > 0 && api.rollback(matcher.handle, fed) != 0) return matcher.fail();
  matcher.taken.resize(matcher.taken.size() - fed);
  matcher.is_stale = matcher.is_stale || matcher.taken.size() < matcher.masked;
  if (count > 0) matcher.ended = false;
  return 0;
}

int llg_validate(LlguidanceMatcher &matcher, const std::int32_t *tokens, int count) {
  int taken = 0, outcome = 1;
  while (taken < count && (outcome = llg_accept(matcher, tokens[taken])) == 1) ++taken;
  const int undone = llg_rollback(matcher, taken);
  return outcome < 0 || undone < 0 ? -1 : taken;
}

void set_bit(std::int32_t *row, std::int32_t token, bool allowed) {
  const std::uint32_t bit = 1u << (token % 32), word = static_cast<std::uint32_t>(row[token / 32]);
  row[token / 32] = static_cast<std::int32_t>(allowed ? word | bit : word & ~bit);
}

int llg_fill(LlguidanceMatcher &matcher, std::int32_t *row, int words) {
  const int needed = (matcher.vocabulary->size() + 31) / 32;
  if (words < needed) return matcher.fail("the mask row is shorter than the vocabulary");
  if (matcher.ended) {
    std::memset(row, 0, static_cast<std::size_t>(words) * sizeof *row);
    for (std::int32_t token : matcher.vocabulary->end_tokens()) set_bit(row, token, true);
    return 1;
  }
  if (!compute_mask(matcher)) return matcher.fail();
  std::memcpy(row, api.get_mask(matcher.handle), static_cast<std::size_t>(needed) * sizeof *row);
  std::memset(row + needed, 0, static_cast<std::size_t>(words - needed) * sizeof *row);
  // A grammar in Lark may name an end token by its number; an end is an end all the same.
  const bool accepting = api.is_accepting(matcher.handle);
  for (std::int32_t token : matcher.vocabulary->end_tokens()) set_bit(row, token, accepting);
  return 1;
}

void *llg_fork(LlguidanceMatcher &matcher) {
  Handle copy(api.clone_matcher(matcher.handle));
  if (!copy) return matcher.fail("llguidance made no copy of a matcher"), nullptr;
  std::unique_ptr<LlguidanceMatcher> fork(
      new LlguidanceMatcher{matcher.vocabulary, matcher.start, std::move(copy), matcher.work, matcher.is_warm});
  fork->taken = matcher.taken;
  fork->ended = matcher.ended;
  fork->masked = matcher.masked;
  fork->is_stale = matcher.is_stale;
  fork->is_anew = matcher.is_anew;
  fork->masks = matcher.masks;
  return fork.release();
}

int llg_reset(LlguidanceMatcher &matcher) {
  return llg_rollback(matcher, static_cast<int>(matcher.taken.size()) + matcher.ended);
}

// The byte that every allowed token begins with, or -1: none is forced.
int common_byte(const std::vector<std::int32_t> &row, const TokenTexts &texts) {
  int byte = -1;
  for (std::size_t word = 0; word < row.size(); ++word) {
    for (auto bits = static_cast<std::uint32_t>(row[word]); bits != 0; bits &= bits - 1) {
      const std::string_view text = texts.text(static_cast<std::int32_t>(word * 32) + __builtin_ctz(bits));
      if (text.empty() || (byte >= 0 && byte != static_cast<unsigned char>(text[0]))) return -1;
      byte = static_cast<unsigned char>(text[0]);
    }
  }
  return byte;
}

extern const weft_matcher_ops kOps;

// LLGuidance spells forced text only for tokenizers that it may take for canonical, and then its masks leave nothing
// but its own spelling. So the bytes are found here, each from a mask.
int llg_forced(LlguidanceMatcher &matcher, std::int32_t *tokens, int capacity) {
  if (capacity < 1 || matcher.ended) return 0;
  const TokenTexts &texts = matcher.vocabulary->spelling();
  const std::size_t longest =
      std::min<std::size_t>(TokenTexts::kMaxBytes, static_cast<std::size_t>(capacity) * kForcedBytesPerToken);
  std::vector<std::int32_t> row(static_cast<std::size_t>((matcher.vocabulary->size() + 31) / 32));
  std::string text;
  int outcome = 1;
  while (text.size() < longest && (outcome = llg_fill(matcher, row.data(), static_cast<int>(row.size()))) >= 0) {
    const int byte = common_byte(row, texts);
    if (byte < 0) break;
    const char next = static_cast<char>(byte);
    outcome = llg_accept(matcher, texts.find({&next, 1}));
    if (outcome != 1) break;
    text.push_back(next);
  }
  const int undone = llg_rollback(matcher, static_cast<int>(text.size()));
  if (outcome < 0 || undone < 0) return -1;
  return forced_tokens({&kOps, &matcher}, texts, text, tokens, capacity);
}

int llg_is_terminated(LlguidanceMatcher &matcher) { return matcher.ended; }

const char *llg_error(LlguidanceMatcher &matcher) { return matcher.error.c_str(); }

void llg_destroy(LlguidanceMatcher &matcher) { delete &matcher; }

const weft_matcher_ops kOps = {WEFT_MATCHER_ABI,
                               guarded<llg_accept>,
                               guarded<llg_validate>,
                               guarded<llg_fill>,
                               guarded<llg_rollback>,
                               guarded<llg_fork>,
                               guarded<llg_reset>,
                               guarded<llg_forced>,
                               guarded<llg_is_terminated>,
                               guarded<llg_error>,
                               guarded<llg_destroy>,
                               nullptr,
                               nullptr};

}  // namespace

LlguidanceVocabulary::LlguidanceVocabulary(const std::vector<std::string> &texts, std::vector<std::int32_t> end_tokens,
                                           std::shared_ptr<const TokenTexts> spelling)
    : size_(static_cast<int>(texts.size())), end_tokens_(std::move(end_tokens)), spelling_(std::move(spelling)) {
  llg::need_binding();
  if (end_tokens_.empty()) throw LlguidanceRefusal("the vocabulary has no end token");
  std::vector<std::uint32_t> lengths;
  std::string bytes;
  for (const std::string &text : texts) {
    lengths.push_back(static_cast<std::uint32_t>(text.size()));
    bytes += text;
  }
  const std::vector<std::uint32_t> ends(end_tokens_.begin(), end_tokens_.end());
  llg::TokenizerInit init{};
  init.struct_size = sizeof init;
  init.vocab_size = static_cast<std::uint32_t>(size_);
  init.tok_eos = ends[0];
  init.token_lens = lengths.data();
  init.token_bytes = reinterpret_cast<const std::uint8_t *>(bytes.data());
  // A tokenizer that spells for itself is never taken for canonical: masks then allow every spelling.
  init.use_approximate_greedy_tokenize_fn = true;
  init.tok_eos_extra = ends.data() + 1;
  init.tok_eos_extra_count = static_cast<std::uint32_t>(ends.size() - 1);
  char error[1024] = "";
  tokenizer_ = api.new_tokenizer(&init, error, sizeof error);
  if (!tokenizer_) throw LlguidanceRefusal(tidy(error));
}

LlguidanceVocabulary::~LlguidanceVocabulary() { api.free_tokenizer(tokenizer_); }

LlguidanceGrammar::LlguidanceGrammar(std::shared_ptr<const LlguidanceVocabulary> vocabulary, const std::string &type,
                                     const std::string &text, const LlguidanceLimits &limits)
    : vocabulary_(std::move(vocabulary)) {
  llg::ConstraintInit init{};
  api.init_defaults(&init, vocabulary_->tokenizer());
  init.log_buffer_level = init.log_stderr_level = 0;
  const auto set = [](auto &field, auto value) {
    if (value != 0) field = value;
  };
  set(init.limits.max_items_in_row, limits.max_items_in_row);
  set(init.limits.step_max_items, limits.step_max_items);
  set(init.limits.max_lexer_states, limits.max_lexer_states);
  set(init.limits.max_grammar_size, limits.max_grammar_size);
  set(init.limits.initial_lexer_fuel, limits.initial_lexer_fuel);
  set(init.limits.step_lexer_fuel, limits.step_lexer_fuel);
  init.limits.verbose_errors = false;  // errors would carry the grammar and what was generated
  Handle start(api.new_matcher(&init, type.c_str(), text.c_str()));
  if (const char *error = api.get_error(start.get())) throw LlguidanceRefusal(tidy(error));
  start_ = std::make_shared<LlguidanceStart>(std::move(start), limits.keeps_states);
}

weft_matcher LlguidanceGrammar::matcher() {
  LlguidanceStart::Copy copy = start_->copy();
  return {&kOps, new LlguidanceMatcher{vocabulary_, start_, std::move(copy.handle), copy.work, copy.is_warm}};
}

}  // namespace weft
